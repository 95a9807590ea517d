#include "runtime/choice/meeting.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/together/texts.hpp"

namespace kiln::runtime {

using kiln::detail::format;
using ranks::HeldMessage;

namespace {

// Places of HeldMessage::places: what is asked, then the alternatives in their order. Half of such
// a place says which one it is, half what it is, and the last bit whether it can do the problem.
constexpr std::size_t kAsked = 0, kFirst = 1, kMost = HeldMessage::kPlaces - kFirst;

std::uint64_t name_of(std::uint64_t place) { return place >> 32; }
bool takes_part(std::uint64_t place) { return (place & 1) != 0; }

/// All that makes an alternative's part in a problem what it is.
std::uint64_t place_of(const Contender& contender, const Entrance& entrance) {
  const detail::AlternativeDescription& what = contender.what();
  const std::vector<std::string> words{contender.version(), what.numerics, entrance.identity,
                                       what.capturable ? "captured" : "not captured"};
  std::string text = text_of(words) + text_of(contender.parameters());
  for (const Values& candidate : entrance.candidates) text += ";" + text_of(candidate);
  const std::uint64_t is = ranks::short_digest(text) >> 32;
  return (ranks::short_digest(what.name) | 1) << 32 |
         (entrance.candidates.empty() ? is & ~std::uint64_t{1} : is | 1);
}

std::string listed(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

/// Why an alternative is not the same on all ranks; empty: it is.
std::string difference(const std::vector<HeldMessage>& all, std::uint64_t mine) {
  std::vector<std::size_t> without, other;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto& theirs = all[r].places;
    const auto found =
        std::find_if(theirs.begin() + kFirst, theirs.end(),
                     [&](std::uint64_t place) { return name_of(place) == name_of(mine); });
    if (found == theirs.end() || takes_part(*found) < takes_part(mine))
      without.push_back(r);
    else if (*found != mine)
      other.push_back(r);
  }
  if (!without.empty())
    return format("{} {} not have it", listed(without), without.size() == 1 ? "does" : "do");
  if (other.empty()) return {};
  return format("{} {} another one", listed(other), other.size() == 1 ? "has" : "have");
}

/// The alternatives in `common`, in the order in which the rank lists them.
std::vector<std::uint64_t> in_order(const HeldMessage& message,
                                    const std::vector<std::uint64_t>& common) {
  std::vector<std::uint64_t> order;
  std::copy_if(message.places.begin() + kFirst, message.places.end(), std::back_inserter(order),
               [&](std::uint64_t place) { return std::ranges::count(common, place) != 0; });
  return order;
}

}  // namespace

std::vector<Entrance> meet(const detail::ChoiceDescription& choice, std::string_view how,
                           std::span<const std::unique_ptr<Contender>> contenders,
                           std::vector<Entrance> mine, std::span<const std::int64_t> problem,
                           const TuneOptions& options) {
  const std::string what =
      format("choice {} for {}", choice.name, choice.operation.describe_problem(problem));
  HeldMessage message;
  message.about = HeldMessage::About::alternatives;
  std::vector<std::uint64_t> places(contenders.size());
  tell_if_it_throws(options, [&] {
    message.places[kAsked] =
        ranks::short_digest(text_of({"choice", choice.name, std::string(how)}) + text_of(problem)) |
        1;
    std::size_t next = kFirst;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      if (next == HeldMessage::kPlaces)
        throw UserError(format("{}: ranks compare {} alternatives at most", what, kMost));
      message.places[next++] = places[i] = place_of(*contenders[i], mine[i]);
    }
  });
  std::vector<HeldMessage> all;
  if (const auto failure = exchange_held(*options.ranks, options.together, message, all)) {
    options.ranks->abort(*failure);
    throw EnvironmentError(format("{}: its ranks could not compare their alternatives: {}", what,
                                  failure->describe()));
  }
  for (std::size_t r = 0; r < all.size(); ++r)
    if (const std::string why = all[r].refusal.get(); !why.empty())
      throw EnvironmentError(format("{}: rank {} gave up: {}", what, r, why));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].places[kAsked] != all[0].places[kAsked])
      throw UserError(format("{}: rank {} does not ask for the same as rank 0", what, r));
  std::vector<std::uint64_t> common;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    Entrance& entrance = mine[i];
    const std::string why = difference(all, places[i]);
    // An alternative that no rank can use for this problem stays in the key, as without ranks.
    entrance.left_out = !why.empty();
    if (!entrance.left_out) {
      common.push_back(places[i]);
    } else if (!entrance.candidates.empty()) {
      entrance.why_not = why;
      entrance.candidates.clear();
    }
  }
  for (std::size_t r = 0; r < all.size(); ++r)
    if (in_order(all[r], common) != in_order(all[0], common))
      throw UserError(
          format("{}: rank {} lists its alternatives in another order than rank 0", what, r));
  return mine;
}

}  // namespace kiln::runtime
