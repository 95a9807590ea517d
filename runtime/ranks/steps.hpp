// What goes into the agreement of ranks and what comes out: input, actions, events, the conclusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/ranks.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/ranks/plan.hpp"
#include "runtime/ranks/shard.hpp"

namespace kiln::runtime::ranks {

/// Seconds on this rank's own clock, since an arbitrary moment. Clocks are never compared between
/// ranks.
using Time = double;

struct ProblemInput {
  std::size_t candidates = 1;    ///< the default is number 0
  std::optional<Record> record;  ///< what this rank has; one that makes no sense is as if absent
  std::vector<Cost> costs;       ///< measured or estimated, for `shard`; empty: all alike
  /// Lockstep: of each candidate. The best of each kind takes part in the finals. Empty: one kind.
  std::vector<std::uint32_t> kinds{};
};

struct AgreementInput {
  int rank = 0, size = 1;
  RankOptions options;
  Identity identity;
  std::vector<ProblemInput> problems;
  int compile_threads = 1;  ///< as in ShardOptions
  bool overlap = false;     ///< as in ShardOptions
  std::uint64_t store = 0;  ///< the same on ranks that write to the same store; 0: none
  std::uint64_t nonce = 0;  ///< random
  bool settles = false;     ///< the communicator's
  /// Why this rank cannot say what it would try; all use defaults then. Empty: it can.
  std::string trouble{};
};

// --- actions ------------------------------------------------------------------------------------

/// A collective to start. There is never a second one before it is completed or failed.
struct Exchange {
  enum class Kind { gather, reduce_max, reduce_mean, broadcast };
  Kind kind = Kind::gather;
  std::uint32_t sequence = 0;    ///< 0, 1, 2, ...
  std::vector<std::byte> bytes;  ///< gather: this rank's part; broadcast: the root's, else zeros
  std::vector<float> values;     ///< reductions
  int root = 0;
  Time deadline = 0;
};

/// Candidates to measure. Those that are not done at `until` are left out.
struct Work {
  struct Item {
    std::size_t problem = 0;
    std::vector<std::size_t> candidates;
  };
  enum class Kind {
    time,    ///< answer with their times
    finals,  ///< the same, of those that are timed once more on all ranks
    /// Answer with 1 for what could be launched, +inf for what cannot, kUntried for what was not
    /// reached; launch nothing. For lockstep.
    build,
    /// The same at the end, for what was chosen: anything but an answer in time means that this
    /// rank cannot do as the others, and all use the defaults.
    prepare,
    lockstep  ///< one candidate of a kernel that communicates: all ranks launch it now
  };
  Kind kind = Kind::time;
  std::vector<Item> items;
  Time until = 0;
  /// Lockstep: the sample that is taken of a finalist, of several launches in a row. Not set: its
  /// first trial.
  struct Sample {
    std::size_t index = 0, in_a_row = 1;
  };
  std::optional<Sample> sample{};

  bool times() const noexcept { return kind == Kind::time || kind == Kind::finals; }
  bool builds() const noexcept { return kind == Kind::build || kind == Kind::prepare; }
};

struct Settle {
  Digest question{};
  bool proposal = false;
  Time deadline = 0;
};
/// Breaks this rank's end.
struct Abort {
  RankFailure why;
};
/// Problems whose agreed record this rank writes to its store.
struct Save {
  std::vector<std::size_t> problems;
};
/// `conclusion()` can be called. Always the last action.
struct Finish {};

using Action = std::variant<Exchange, Work, Settle, Abort, Save, Finish>;

// --- events -------------------------------------------------------------------------------------

struct Begin {};
/// If a completion and the end of time are both known, the completion is told first.
struct Completed {
  std::uint32_t sequence = 0;
  std::span<const std::byte> bytes;  ///< gather: everyone's; broadcast: the root's
  std::span<const float> values;     ///< reductions
};
struct Failed {
  std::uint32_t sequence = 0;
  RankFailure why;
};
/// Times in the order of the items and their candidates. Candidates beyond the end of the list were
/// not tried.
struct Worked {
  std::vector<Times> times;
  /// If not empty: why this rank cannot go on, or cannot build what was chosen. The rank still
  /// takes part.
  std::string trouble;
  /// Lockstep: no further candidate; what all have timed so far decides.
  bool stop = false;
};
struct Settled {
  std::optional<bool> answer;
};
/// Due at `wakes()`, harmless at any time.
struct Tick {};

using Event = std::variant<Begin, Completed, Failed, Worked, Settled, Tick>;

// --- the outcome --------------------------------------------------------------------------------

struct Conclusion {
  enum class Kind {
    plan,     ///< all survivors hold this plan
    defaults  ///< all survivors use defaults, for the reason in `why`
  };
  Kind kind = Kind::defaults;
  Plan plan;
  Digest digest{};  ///< of all that ranks compare, the plan included; for tests
  RankFailure why;  ///< for defaults: which rank and what
  /// For people: which ranks' caches lacked what others had. The same on every rank.
  std::vector<std::string> notes;
  bool broken = false;       ///< this end of the communicator was aborted
  std::size_t measured = 0;  ///< candidates given to this rank to time
};

}  // namespace kiln::runtime::ranks
