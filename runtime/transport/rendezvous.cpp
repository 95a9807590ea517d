#include "runtime/transport/rendezvous.hpp"

#include <algorithm>
#include <array>

#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime::ranks {

using kiln::detail::format;

std::uint64_t draw_number() {
  const std::uint64_t number = unpredictable_bits();
  return number == 0 ? 1 : number;
}

std::string this_process() {
  std::array<char, 64> host{};
  const bool known = ::gethostname(host.data(), host.size() - 1) == 0;
  return format("{}, process {}", known ? host.data() : "a host", ::getpid());
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  if (ranks.empty()) return "nobody";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += format(" and {} more", ranks.size() - kMost);
  return text;
}

}  // namespace kiln::runtime::ranks
