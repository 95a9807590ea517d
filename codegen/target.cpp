#include "kiln/target.hpp"

#include <array>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

// `a` code runs on exactly that chip, `f` on its family. Whether the installed NVRTC knows one is
// found out when it compiles.
constexpr std::array kCudaArchs = {"sm_75",   "sm_80",   "sm_86",  "sm_87",   "sm_88",   "sm_89",
                                   "sm_90",   "sm_90a",  "sm_100", "sm_100a", "sm_100f", "sm_103",
                                   "sm_103a", "sm_103f", "sm_110", "sm_110a", "sm_110f", "sm_120",
                                   "sm_120a", "sm_120f", "sm_121", "sm_121a", "sm_121f"};

// From narrow to wide: this_host() takes the last one that the CPU supports.
constexpr std::array kCpuLevels = {"generic", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};

template <class List>
bool contains(const List& list, std::string_view text) {
  for (std::string_view known : list) {
    if (known == text) return true;
  }
  return false;
}

template <class List>
void append(std::string& out, const List& list) {
  for (std::string_view known : list) {
    out += out.empty() ? "" : " ";
    out += known;
  }
}

}  // namespace

Target Target::parse(std::string_view text) {
  if (text == "host") return this_host();
  if (contains(kCudaArchs, text)) return {Kind::cuda, std::string(text)};
  if (contains(kCpuLevels, text)) return {Kind::host, std::string(text)};
  std::string known = "host";
  append(known, kCpuLevels);
  append(known, kCudaArchs);
  throw UserError(detail::format("unknown target \"{}\"; known targets: {}", text, known));
}

Target Target::this_host() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // libgcc and compiler-rt also ask whether the operating system saves the wide registers.
  if (__builtin_cpu_supports("x86-64-v4")) return {Kind::host, "x86-64-v4"};
  if (__builtin_cpu_supports("x86-64-v3")) return {Kind::host, "x86-64-v3"};
  if (__builtin_cpu_supports("x86-64-v2")) return {Kind::host, "x86-64-v2"};
  return {Kind::host, "x86-64"};
#else
  return {Kind::host, "generic"};
#endif
}

}  // namespace kiln
