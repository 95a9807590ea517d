// The agreement of ranks on a plan, as a pure state machine: no clock, no thread, no transport.
// Events go in, actions come out; a driver performs them (drive.hpp, or a simulation).
//
// Before it, on the same communicator, runtime/together asks which rank holds which winners.
//
//   digest    gather: is the same asked of everyone? A difference is named; all use defaults.
//   vote      gather: which rank has a record of which problem? From here on every rank derives the
//             same list of exchanges, whatever it had cached.
//   share     broadcast per problem that only some have (if so asked)
//   costs     shard: one maximum of what candidates cost
//   tune      no exchange inside, but in lockstep: per problem
//             ready  one maximum of which ranks can run what
//             go     one maximum, which only ranks reach that have `ready`
//             then per candidate one run and one reduction; a candidate that fails on one rank
//             fails on all. Where candidates run in workers, Tasks makes exchanges of its own on
//             the same communicator, with each run and before the first one (WorkerGroup).
//   reduce    per problem one reduction (leader: broadcast); a failed candidate is +inf
//   finals    shard: the best few and the default, timed by everyone, one reduction per problem
//             whose candidates several ranks have timed; a problem that one rank has as a whole is
//             decided there, as if that rank tuned alone
//   prepare   no exchange: each rank builds what was chosen; a rank that cannot is in trouble
//   compare   gather: plan digests, and from a rank in trouble its reason
//   confirm   gather: "I have seen that all plans are equal"
//   settle    where the communicator can: what all ranks do, whichever died meanwhile
//   save      one rank per store, only now
//
// What is guaranteed. Let a gather finish on a rank only when every rank has contributed to it,
// and let ranks fail by stopping or by being late, never by lying.
//
//  1. It ends. Every wait has a deadline, by which the communicator must return: the driver sends
//     no Tick while it waits for that. A Tick, which the simulation sends, ends an exchange whose
//     end is not reported.
//  2. No rank holds the plan unless all ranks computed it and built what it names: to finish
//     `confirm`, every rank must have finished `compare`. A failure before `confirm` leaves all
//     survivors with the defaults, because a rank that fails contributes nothing more. No save
//     happens before.
//  3. A failure during `confirm` may let some ranks finish it and others not. No number of further
//     rounds mends that: whichever is the last has the same gap (two generals). So
//     a. with `settle` (one register, first proposal wins, outlives ranks), all survivors do the
//        same: ranks that finished propose the plan, ranks that failed propose the defaults, and
//        every rank obeys the answer. A rank that cannot reach the register takes the defaults and
//        aborts; that is case b for this rank.
//     b. without, ranks that finished hold the plan and ranks that failed hold the defaults. But a
//        rank that failed has aborted: its end is broken, so no rank that holds the plan can
//        finish another collective with one that does not. They never drift apart in silence; the
//        next exchange of the job fails on every rank. The gap is one gather of 8 bytes per rank,
//        with nothing in between.
//  4. Which exchange comes next depends on what gathers, broadcasts and maxima gave, which are the
//     same everywhere, never on a mean, whose last bit may differ between ranks. As long as no
//     exchange fails, every rank makes the same number of collectives of the same kinds and sizes,
//     and the communicator is usable afterwards, also when the answer is "defaults". What Tasks
//     exchanges in lockstep must keep to the same rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/ranks/steps.hpp"

namespace kiln::runtime::ranks {

/// @throws UserError naming what makes no sense for a job of this size.
void check(const RankOptions& options, int size);

/// Copyable, so that every continuation of a state can be explored.
class Agreement {
 public:
  /// @throws UserError on options or input that make no sense, naming the field.
  explicit Agreement(AgreementInput input);

  /// Never throws on account of what other ranks sent. Events that do not fit (late completions,
  /// a second answer) are ignored.
  std::vector<Action> handle(const Event& event, Time now);

  /// When to send a Tick at the latest; nothing: no exchange is waited for.
  std::optional<Time> wakes() const noexcept;
  const std::optional<Conclusion>& conclusion() const noexcept { return conclusion_; }
  /// Collectives started so far.
  std::uint32_t exchanges() const noexcept { return sequence_; }
  /// What is going on, for logs: `vote`.
  const char* phase() const noexcept;

 private:
  enum class Phase {
    created,
    digest,
    vote,
    share,
    costs,
    tune,
    reduce,
    finals,
    reduce_finals,
    build,
    ready,
    go,
    lockstep,
    reduce_one,
    finalists,
    lockstep_finals,
    reduce_final,
    prepare,
    compare,
    confirm,
    settle,
    done
  };
  /// Where a problem's agreed times come from.
  enum class Source { tune, own_record, shared_record };
  struct Problem {
    Source source = Source::tune;
    int root = 0;             ///< the rank that shares its record
    std::uint64_t voted = 0;  ///< digest of the record that was voted for
    Times mine, agreed;
    Times ready;                        ///< lockstep: no time where some rank cannot run it
    Times first_round;                  ///< what finalists were chosen by
    std::vector<std::size_t> again;     ///< the finalists
    std::optional<std::size_t> winner;  ///< by record
  };
  using Actions = std::vector<Action>;

  Actions completed(const Completed& event, Time now);
  Actions worked(const Worked& event, Time now);
  Actions read_digests(std::span<const std::byte> bytes, Time now);
  Actions read_votes(std::span<const std::byte> bytes, Time now);
  Actions read_shared(std::span<const std::byte> bytes, Time now);
  Actions read_costs(std::span<const float> values, Time now);
  Actions read_reduced(const Completed& event, Time now);
  Actions read_ready(std::span<const float> values, Time now);
  Actions read_one(std::span<const float> values, Time now);
  Actions read_finalists(std::span<const float> values, Time now);
  Actions read_final(std::span<const float> values, Time now);
  Actions read_plans(std::span<const std::byte> bytes, Time now);
  Actions read_confirmations(std::span<const std::byte> bytes, Time now);

  Actions share_next(Time now);
  Actions begin_tuning(Time now);
  Actions time_shares(Time now);
  Actions reduce_next(Time now);
  Actions begin_finals(Time now);
  Actions begin_lockstep();
  Actions lockstep_next(Time now);
  Actions name_finalists(Time now);
  Actions next_final(Time now);
  void end_lockstep_finals();
  Actions next_in_lockstep(Time now);
  Actions choose(Time now);
  Actions prepared(const Worked& event, Time now);
  Actions compare(Time now);
  Actions settle(bool proposal, Time now);
  Actions settled(std::optional<bool> answer);
  Actions finish_plan();
  Actions finish_defaults(RankFailure why);
  Actions give_up(RankFailure why, Time now);

  /// Breaks this end, unless it is broken already; the conclusion follows.
  Actions abort_with(RankFailure why);

  Exchange exchange(Phase phase, Exchange::Kind kind, Time deadline);
  Exchange gather(Phase phase, std::vector<std::byte> bytes, Time deadline);
  Work work(Phase phase, Work::Kind kind, std::vector<Work::Item> items, Time until);
  Exchange::Kind reduction() const noexcept;
  bool sharded() const noexcept;
  bool tuned(std::size_t problem) const noexcept;
  std::size_t next_tuned(std::size_t from) const noexcept;
  bool divided(std::size_t problem) const noexcept;
  bool any_divided() const noexcept;
  std::vector<std::size_t> to_save() const;

  AgreementInput in_;
  Phase phase_ = Phase::created;
  std::uint32_t sequence_ = 0;
  std::optional<Time> deadline_;
  std::vector<std::byte> sent_;  ///< to the gather that is waited for
  std::vector<Problem> problems_;
  std::vector<Work::Item> items_;  ///< given out
  /// Each rank's store and device. The device is a part of a record's key.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> stores_;
  bool like_devices_ = true;
  std::uint64_t nonces_ = 0;                 ///< digest of everyone's
  std::vector<std::vector<int>> owners_;     ///< shard: of each problem's candidates
  std::size_t current_ = 0, candidate_ = 0;  ///< the problem (and candidate) in exchange
  /// Lockstep: the candidates in the finals of the current problem, with their times so far.
  std::vector<std::pair<std::size_t, Times>> finalists_;
  std::size_t turn_ = 0, in_a_row_ = 1;
  Time tune_until_ = 0;
  std::string trouble_;
  std::vector<std::string> notes_;
  RankFailure failure_;  ///< why `confirm` failed, while it is being settled
  bool broken_ = false;  ///< this end was aborted
  Plan plan_;
  Digest digest_{};
  std::size_t measured_ = 0;
  std::optional<Conclusion> conclusion_;
};

}  // namespace kiln::runtime::ranks
