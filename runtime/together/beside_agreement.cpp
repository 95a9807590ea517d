#include "runtime/together/beside_agreement.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>

#include "kiln/detail/format.hpp"
#include "runtime/together/measuring_together.hpp"

namespace kiln::runtime {

using ranks::HeldMessage;

namespace {

/// What a communicator throws is a failure of this rank.
template <class Exchange>
Communicator::Failure failure_of(const Communicator& communicator, const Exchange& exchange) {
  try {
    return exchange();
  } catch (const std::exception& error) {
    return RankFailure{RankFailure::Kind::system, {communicator.rank()}, error.what()};
  } catch (...) {
    return RankFailure{RankFailure::Kind::system, {communicator.rank()}, "the communicator failed"};
  }
}

}  // namespace

Communicator::Failure exchange_held(Communicator& communicator, const RankOptions& options,
                                    const HeldMessage& mine, std::vector<HeldMessage>& all) {
  // Also where the options make no sense.
  const double asked = options.first_seconds;
  const double seconds = asked > 0 && std::isfinite(asked) ? asked : RankOptions{}.first_seconds;
  const auto size = static_cast<std::size_t>(communicator.size());
  const std::vector<std::byte> sent = ranks::encode(mine);
  std::vector<std::byte> bytes(sent.size() * size);
  if (auto failure = failure_of(
          communicator, [&] { return communicator.gather(sent, bytes, deadline_in(seconds)); }))
    return failure;
  for (std::size_t r = 0; r < size; ++r) {
    all.push_back(ranks::decode<HeldMessage>(bytes, r));
    if (all.back().magic != HeldMessage::kMagic || all.back().protocol != ranks::kProtocol)
      return RankFailure{RankFailure::Kind::mismatch,
                         {static_cast<int>(r)},
                         "it runs another version of Kiln, or asks something else"};
    if (all.back().about != mine.about && mine.refusal.empty() && all.back().refusal.empty())
      return RankFailure{RankFailure::Kind::mismatch,
                         {static_cast<int>(r)},
                         mine.about == HeldMessage::About::winners
                             ? "it asks for a choice among alternatives"
                             : "it asks for the config of one"};
  }
  return {};
}

bool refuse(Communicator& communicator, const RankOptions& options, std::string_view why) {
  if (MeasuringTogether::here()) return true;  // the others are not in what is refused
  HeldMessage mine;
  mine.refusal.set(why);
  std::vector<HeldMessage> all;
  if (const auto failure = exchange_held(communicator, options, mine, all)) {
    communicator.abort(*failure);
    return false;
  }
  return std::ranges::none_of(all, [](const HeldMessage& one) { return one.refusal.empty(); });
}

bool take_greatest(Workshop& workshop, const TuneOptions& options, std::span<float> values) {
  const auto turn = options.ranks->turn();
  Communicator& ranks = *options.ranks;
  const auto failure = failure_of(ranks, [&] {
    return ranks.reduce(values, Reduction::max, deadline_in(options.together.step_seconds));
  });
  if (!failure) return true;
  workshop.log(LogLevel::warning, detail::format("rank {} of {}: {}", ranks.rank(), ranks.size(),
                                                 failure->describe()));
  ranks.abort(*failure);
  return false;
}

bool holds_on_all(Workshop& workshop, const TuneOptions& options, bool mine) {
  float lacking = mine ? 0 : 1;
  return take_greatest(workshop, options, {&lacking, 1}) && lacking == 0;
}

TuningTurn::Hold take_turn(TuningTurn& turn, const TuneOptions& options, TuningTurn::Kind kind) {
  constexpr double kPart = 0.75;
  const bool alone = options.ranks->size() == 1;
  const TimeLimit enough(
      alone ? options.max_seconds.value_or(0) : kPart * options.together.first_seconds,
      Clock::now());
  TuningTurn::Hold taken = turn.take(enough, options.stop, kind);
  if (!taken)
    throw EnvironmentError(options.stop.stop_requested()
                               ? "it was stopped while another tuning of its process went on"
                               : "another tuning of its process went on for too long");
  return taken;
}

bool announce_absence(const TuneOptions& options, const char* why) {
  if (!options.ranks) return true;
  const auto turn = options.ranks->turn();
  return refuse(*options.ranks, options.together, why);
}

}  // namespace kiln::runtime
