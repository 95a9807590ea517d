# Shared by the scripts beside it; sourced, never run.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
kiln_cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/kiln"
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$1" >&2; exit "${2:-2}"; }
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as one line "NAME   1.2 s"; what it printed is shown only if it fails. Of a command
# that counts its work as Ninja does, "[120/180] 42 s" is shown meanwhile: on a terminal in place,
# elsewhere as a line every ten seconds.
# step NAME COMMAND...
step() {
  local name=$1 log start=${EPOCHREALTIME/[.,]/} shown=$SECONDS rc=0 again='' tenths file line
  shift
  file=$(mktemp)
  exec {log}<>"$file"
  rm -f "$file"  # stays readable through its descriptor, and nothing is left behind by an interrupt
  if [[ -t 1 ]]; then again=$'\r\e[K' && printf '%-10s' "$name"; fi
  while IFS= read -r line; do
    printf '%s\n' "$line" >&"$log"
    if [[ $line =~ ^\[[0-9]+/[0-9]+\] ]] && { [[ $again ]] || ((SECONDS - shown >= 10)); }; then
      shown=$SECONDS
      printf '%s%-10s%s %d s' "$again" "$name" "${BASH_REMATCH[0]}" \
        $(((${EPOCHREALTIME/[.,]/} - start) / 1000000))
      [[ $again ]] || printf '\n'
    fi
  done < <("$@" 2>&1 </dev/null)
  wait "$!" || rc=$?
  tenths=$(((${EPOCHREALTIME/[.,]/} - start) / 100000))
  printf '%s%-10s' "$again" "$name"
  if ((rc)); then
    printf 'failed (exit %d): %s\n' "$rc" "$*"
    tail -n 100 "/proc/self/fd/$log"
  else
    printf '%6d.%d s\n' $((tenths / 10)) $((tenths % 10))
  fi
  exec {log}>&-
  return "$rc"
}

# A root with include/ and lib/ (or lib64/) that holds CUDA 13's headers and NVRTC. Earlier
# toolkits are passed over: their NVRTC does not take a struct as a template parameter.
is_cuda_root() {
  local lib
  [[ -f $1/include/cuda.h && -f $1/include/nvrtc.h && -f $1/include/cuda_bf16.h &&
    -f $1/include/crt/host_defines.h ]] || return 1
  for lib in "$1"/lib64/libnvrtc.so.1[3-9] "$1"/lib/libnvrtc.so.1[3-9]; do
    [[ -f $lib ]] && return 0
  done
  return 1
}

cuda_wheels="$kiln_cache/cuda-13.0"

# Prints the CUDA root in use; fails if there is none.
cuda_root() {
  local dir
  for dir in "${KILN_CUDA_ROOT:-}" "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda \
    /usr/local/cuda-1[3-9]* "$cuda_wheels"; do
    if [[ -n $dir ]] && is_cuda_root "$dir"; then
      say "$dir"
      return
    fi
  done
  return 1
}

# What draws the plots of `kiln report`: Vega-Lite with all that it needs, as one script.
plots="$kiln_cache/vega-lite-6.4.js"

# Boost's version in the header of an include folder, as 108100; 0 if there is none.
boost_version() {
  local version
  version=$(sed -n 's/^#define BOOST_VERSION \([0-9]*\).*/\1/p' "$1/boost/version.hpp" 2>/dev/null) || :
  say "${version:-0}"
}

boost_private="$kiln_cache/boost-1.81"

has_llvm() {
  [[ -e /usr/lib/llvm-19/include/clang/Basic/Version.h ]] || have llvm-config-19 ||
    { have llvm-config && [[ $(llvm-config --version) == 19.* ]]; }
}

# What scripts/setup provides, for the build and for the programs it makes.
environment() {
  local dir
  # ccache knows a source again in another build folder, and in another clone.
  export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$root}"
  if dir=$(cuda_root); then export KILN_CUDA_ROOT=$dir; fi
  if [[ -d $boost_private/usr/include && $(boost_version /usr/include) -lt 108100 ]]; then
    export BOOST_ROOT="$boost_private/usr"
  fi
}

# Configures a build folder, again only if its arguments changed. A folder that another checkout
# made, or that is broken, is made anew; one that was configured by hand is taken as it is, unless
# arguments are given; a folder that is no build folder is left alone.
# configure DIR MESON_ARGUMENT...
configure() {
  local dir=$1 stamp="$1/.kiln-arguments" arguments source by_hand=
  shift
  if [[ $# -eq 0 && ! -e $stamp ]]; then by_hand=yes; fi
  has_llvm || set -- "$@" -Dllvm=disabled
  if [[ -n ${KILN_CUDA_ROOT:-} ]]; then set -- "$@" "-Dtoolkit_include=$KILN_CUDA_ROOT/include"; fi
  if [[ -f $plots ]]; then set -- "$@" "-Dplots=$plots"; fi
  arguments="$* BOOST_ROOT=${BOOST_ROOT:-}"
  if [[ -e $dir/meson-private ]]; then
    source=$(sed -n 's/.*"source": *"\([^"]*\)".*/\1/p' "$dir/meson-info/meson-info.json" 2>/dev/null |
      head -n 1) || :
    if [[ $source == "$root" && -f $dir/build.ninja &&
      (-n $by_hand || (-f $stamp && $(<"$stamp") == "$arguments")) ]]; then
      return 0
    fi
    if [[ -n $source ]]; then say "$dir was configured differently: it is made again"; fi
    rm -rf -- "$dir"
  elif [[ -d $dir && -n $(ls -A "$dir") ]]; then
    say "$dir exists and is not a build folder: move it away, or name another with BUILD_DIR"
    return 2
  fi
  meson setup "$dir" "$root" "$@" || return
  printf '%s' "$arguments" >"$stamp"
}
