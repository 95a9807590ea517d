#include "kiln/target.hpp"

#include <algorithm>
#include <array>
#include <charconv>

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

/// `sm_90a`: 90 and 'a'; without a letter '\0'.
struct Chip {
  int number = 0;
  char suffix = '\0';
};

Chip chip_of(std::string_view arch) {
  Chip chip;
  arch.remove_prefix(std::min<std::size_t>(arch.size(), 3));
  const char* end = arch.data() + arch.size();
  const char* rest = std::from_chars(arch.data(), end, chip.number).ptr;
  if (rest != end) chip.suffix = *rest;
  return chip;
}

/// Embedded chips run their own binaries only.
bool is_embedded(int number) { return number == 87 || number == 88 || number == 110; }

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

int compute_capability(const Target& target) noexcept {
  return target.kind == Target::Kind::cuda ? chip_of(target.arch).number : 0;
}

std::vector<Target> targets_that_run_on(const Target& target) {
  std::vector<Target> targets{target};
  if (target.kind == Target::Kind::host) {
    const auto place = std::find(kCpuLevels.begin(), kCpuLevels.end(), target.arch);
    // `generic` is whatever the compiler uses for this machine's family, so it is not a level.
    if (place != kCpuLevels.end())
      for (auto level = place; level > kCpuLevels.begin() + 1;)
        targets.push_back({Target::Kind::host, *--level});
    return targets;
  }
  const Chip chip = chip_of(target.arch);
  for (auto other = kCudaArchs.rbegin(); other != kCudaArchs.rend(); ++other) {
    const Chip made_for = chip_of(*other);
    const bool earlier = made_for.number / 10 == chip.number / 10 &&
                         made_for.number < chip.number && !is_embedded(made_for.number) &&
                         !is_embedded(chip.number);
    if (made_for.suffix != 'a' && (earlier || made_for.number == chip.number) &&
        *other != target.arch)
      targets.push_back({Target::Kind::cuda, *other});
  }
  return targets;
}

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
