#include "runtime/ranks/messages.hpp"

#include <algorithm>
#include <map>

#include "kiln/detail/format.hpp"

namespace kiln::runtime::ranks {

namespace {

/// The value that most hold; of several such, the one of the lowest rank.
std::uint64_t usual(std::span<const std::uint64_t> values) {
  std::map<std::uint64_t, std::size_t> counts;
  for (const std::uint64_t v : values) ++counts[v];
  std::uint64_t best = values[0];
  for (const std::uint64_t v : values)
    if (counts[v] > counts[best]) best = v;
  return best;
}

template <class Read>
Difference differing(std::span<const DigestMessage> messages, const char* what, Read read) {
  const auto same = [&](const DigestMessage& m) { return read(m) == read(messages[0]); };
  if (std::all_of(messages.begin(), messages.end(), same)) return {};
  std::vector<std::uint64_t> values;
  for (const DigestMessage& m : messages) values.push_back(read(m));
  const std::uint64_t most = usual(values);
  Difference difference;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != most) difference.ranks.push_back(static_cast<int>(i));
  if (!difference.ranks.empty()) difference.what = what;
  return difference;
}

}  // namespace

std::uint64_t short_digest(std::span<const std::byte> bytes) {
  const Digest digest = sha256(bytes);
  return decode<std::uint64_t>(digest);
}
std::uint64_t short_digest(std::string_view text) {
  return short_digest(std::as_bytes(std::span(text.data(), text.size())));
}

std::uint64_t settings_digest(const RankOptions& o, bool settles) {
  return short_digest(detail::format("{} {} {} {} {} {} {} {} {}", to_string(o.strategy),
                                     to_string(o.reduction), static_cast<int>(o.on_partial_cache),
                                     o.lockstep, static_cast<bool>(o.guard), o.leader, o.finalists,
                                     std::bit_cast<std::uint32_t>(o.margin), settles));
}

Difference find_difference(std::span<const std::byte> digests, int size, bool like_devices) {
  std::vector<DigestMessage> m(static_cast<std::size_t>(size));
  std::memcpy(m.data(), digests.data(), m.size() * sizeof(DigestMessage));
  // The first difference explains those that follow from it.
  Difference d = differing(m, "something that is not a message of Kiln",
                           [](const DigestMessage& x) { return x.magic; });
  const auto then = [&](const char* what, auto read) {
    if (d.what.empty()) d = differing(m, what, read);
  };
  then("another version of Kiln's messages",
       [](const DigestMessage& x) -> std::uint64_t { return x.protocol; });
  then("other settings for tuning together", [](const DigestMessage& x) { return x.settings; });
  then("another build of Kiln or of the compiler",
       [](const DigestMessage& x) { return x.identity.build; });
  then("another target", [](const DigestMessage& x) { return x.identity.target; });
  then("another kernel", [](const DigestMessage& x) { return x.identity.kernel; });
  then("other problems, or other options of timing",
       [](const DigestMessage& x) { return x.identity.problems; });
  then("another candidate list", [](const DigestMessage& x) { return x.identity.candidates; });
  if (like_devices)
    then("another model of device", [](const DigestMessage& x) { return x.identity.device; });
  return d;
}

}  // namespace kiln::runtime::ranks

namespace kiln {

const char* to_string(RankStrategy strategy) noexcept {
  switch (strategy) {
    case RankStrategy::replicate:
      return "replicate";
    case RankStrategy::shard:
      return "shard";
    case RankStrategy::leader:
      return "leader";
  }
  return "?";
}

const char* to_string(RankReduction reduction) noexcept {
  return reduction == RankReduction::max ? "max" : "mean";
}

}  // namespace kiln
