#include "runtime/ranks/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace kiln::runtime::ranks {

float sanitized(float seconds) noexcept {
  return seconds > 0 && std::isfinite(seconds) ? seconds : std::numeric_limits<float>::infinity();
}

bool Record::answers(std::size_t candidates) const noexcept {
  return times.size() == candidates && winner < candidates && is_time(times[winner]) &&
         std::all_of(times.begin(), times.end(), [](float t) { return t > 0; });
}

std::vector<std::byte> encode_record(const Record& record) {
  std::vector<std::byte> bytes = encode(static_cast<std::uint64_t>(record.winner));
  const std::size_t head = bytes.size(), more = record.times.size() * sizeof(float);
  bytes.resize(head + more);
  if (more > 0) std::memcpy(bytes.data() + head, record.times.data(), more);
  return bytes;
}

Record decode_record(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(std::uint64_t)) return {};
  Record record;
  record.winner = static_cast<std::size_t>(decode<std::uint64_t>(bytes));
  const auto rest = bytes.subspan(sizeof(std::uint64_t));
  record.times.resize(rest.size() / sizeof(float));
  std::memcpy(record.times.data(), rest.data(), record.times.size() * sizeof(float));
  return record;
}

Pick select(std::span<const float> times, float margin) {
  const float best = *std::min_element(times.begin(), times.end());
  if (!is_time(best)) return {0, std::numeric_limits<float>::infinity()};
  const float band = best * (1 + margin);
  // The default is the first of the list: it wins a tie like any other that comes early.
  const auto found = std::find_if(times.begin(), times.end(), [&](float t) { return t <= band; });
  return {static_cast<std::size_t>(found - times.begin()), *found};
}

std::vector<std::size_t> finalists(std::span<const float> times, std::size_t count,
                                   std::span<const std::uint32_t> kinds) {
  std::vector<std::size_t> order;
  for (std::size_t i = 1; i < times.size(); ++i)
    if (is_time(times[i])) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return times[a] < times[b]; });
  const auto rest = order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), count));
  std::set<std::uint32_t> there;
  if (!kinds.empty())
    for (auto it = order.begin(); it != rest; ++it) there.insert(kinds[*it]);
  order.erase(std::remove_if(
                  rest, order.end(),
                  [&](std::size_t c) { return kinds.empty() || !there.insert(kinds[c]).second; }),
              order.end());
  if (is_time(times[0])) order.push_back(0);
  std::sort(order.begin(), order.end());
  return order;
}

Digest plan_digest(const Identity& identity, std::span<const Pick> picks) {
  Identity common = identity;
  common.device = 0;  // unlike devices may choose together
  std::vector<std::byte> bytes = encode(common);
  for (const Pick& pick : picks) {
    const auto more = encode(static_cast<std::uint64_t>(pick.candidate));
    bytes.insert(bytes.end(), more.begin(), more.end());
    bytes.push_back(std::byte{std::isfinite(pick.seconds)});
  }
  return sha256(bytes);
}

}  // namespace kiln::runtime::ranks
