#include "runtime/background/joint_commit.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/communicator.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/background/ballot.hpp"
#include "runtime/background/commit_loader.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime {

using detail::format;
using nlohmann::json;
using Change = CommitReport::Change;

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;  ///< of one rank's proposals

/// What the ranks agree on for a problem of a handle, whether it has launched that or not.
struct JointConfig {
  std::shared_ptr<ServedHandle> handle;
  Values problem, config;
  std::optional<Values> seen;  ///< agreed on before; a later decision of the program stays
};

std::vector<JointConfig> joint_configs(const Change& change,
                                       std::span<const std::shared_ptr<ServedHandle>> handles) {
  std::vector<JointConfig> joint;
  for (const auto& handle : handles) {
    if (auto values = values_of(change, handle->definition())) {
      auto seen = handle->problems().agreed(values->problem);
      joint.push_back(
          {handle, std::move(values->problem), std::move(values->config), std::move(seen)});
    }
  }
  return joint;
}

/// What keeps ranks from publishing a change: the greatest of any of them counts. With `failure`
/// nothing is published at all.
enum class Lacks { nothing, time, means, failure };

/// What a rank has of a change that was chosen.
struct Obtained {
  PendingChange pending;
  Handles handles{};
  std::vector<JointConfig> joint{};
  Lacks lacks = Lacks::means;
};

/// What all ranks do if they have come to the same digest.
struct Decision {
  Committed committed{};
  std::vector<Proposal> published{};
  std::vector<JointConfig> agreed{};
  Digest digest{};  ///< zeros: this rank has failed
};

/// Whether the build has ended, or ends before the deadline.
bool ends(const std::shared_future<void>& build, Deadline deadline) {
  if (!build.valid()) return true;
  std::future_status status = build.wait_until(deadline);
  if (status == std::future_status::deferred && std::chrono::steady_clock::now() < deadline) {
    build.wait();
    status = std::future_status::ready;
  }
  return status == std::future_status::ready;
}

bool has_failed(const std::shared_future<void>& build) noexcept try {
  if (build.valid()) build.get();
  return false;
} catch (...) {
  return true;
}

KernelChange without_config(KernelChange kernel_change) {
  kernel_change.change.config.clear();
  return kernel_change;
}

std::vector<Proposal> loaded_of(const std::vector<PendingChange>& pending) {
  std::vector<Proposal> loaded;
  for (const PendingChange& one : pending)
    loaded.insert(loaded.end(), one.loaded.begin(), one.loaded.end());
  return loaded;
}

/// A commit of several ranks.
class Together {
 public:
  Together(detail::Engine& engine, CommitWork& work)
      : engine_(engine),
        work_(work),
        loaded_before_(loaded_of(work.pending)),
        loader_(engine, work.definitions, work.found, loaded_before_),
        waits_(work.waits || !work.loads_behind),
        ranks_(*engine.options().tuning.ranks),
        turn_(ranks_.turn()),
        options_(engine.options().tuning.together) {}

  Committed run(const PublishOne& publish) try {
    const Choices choices = choose(exchange());
    std::vector<Obtained> all;
    attempt([&] { all = obtain(choices.found); });
    compare(all, choices.found.size());
    Decision decision;
    attempt([&] { decision = decide(choices, all); });
    confirm(decision.digest);
    // This comes first: launches of a problem that is not held here use what was agreed.
    for (const JointConfig& one : decision.agreed)
      one.handle->problems().agree_over(one.problem, one.seen, one.config);
    for (Proposal& one : decision.published) publish(one);
    const Places pending_places = places_of(decision.committed.pending);
    for (std::size_t i = 0; i < work_.unfound.size(); ++i) {
      work_.unfound[i].pending = pending_places.contains(places_[i]);
      work_.unfound[i].settled =
          !work_.unfound[i].pending &&
          !std::ranges::binary_search(choices.open, places_[i], PlaceOrder());
    }
    return std::move(decision.committed);
  } catch (const std::exception& error) {
    leave(error.what());
    throw;
  } catch (...) {
    leave("Runtime::commit failed");
    throw;
  }

 private:
  /// The other ranks must not wait for a rank that does not take part.
  void leave(const char* why) noexcept {
    if (!all_know_) ranks_.abort({RankFailure::Kind::aborted, {ranks_.rank()}, why});
  }

  Deadline step() const { return deadline_in(options_.step_seconds); }

  /// What fails on this rank alone is told in the next exchange, so all throw, and their
  /// communicator stays usable.
  template <class Work>
  void attempt(const Work& work) try {
    work();
  } catch (const std::exception& error) {
    failure_ = std::current_exception();
    why_failed_ = error.what();
  } catch (...) {
    failure_ = std::current_exception();
    why_failed_ = kForeignException;
  }

  [[noreturn]] void give_up(const std::string& why) {
    all_know_ = true;
    if (failure_) std::rethrow_exception(failure_);
    throw EnvironmentError(format("Runtime::commit: {}", why));
  }

  void check(const Communicator::Failure& failure, const char* doing) {
    if (!failure) return;
    ranks_.abort(*failure);
    all_know_ = true;
    throw EnvironmentError(
        format("Runtime::commit: {} the proposals of the ranks failed, so nothing "
               "is published: {}",
               doing, failure->describe()));
  }

  static KernelChange with(const Choice& choice, const std::optional<Named>& config) {
    KernelChange chosen = choice.place;
    chosen.change.config = *config;
    return chosen;
  }

  /// The builds of all changes run meanwhile. One that takes longer than a step makes its own
  /// change pending, and no other.
  std::vector<Obtained> obtain(const std::vector<Choice>& found) {
    const Deadline built = step();
    // The other ranks wait for two steps.
    const Deadline loaded = deadline_after(built, options_.step_seconds / 2);
    std::vector<Obtained> all;
    for (const Choice& choice : found) all.push_back(begin(with(choice, choice.found)));
    for (Obtained& one : all)
      if (one.lacks == Lacks::time) obtain(one, built, loaded);
    return all;
  }

  Obtained begin(const KernelChange& chosen) {
    Obtained own{.pending = {chosen}, .handles = loader_.handles_of(chosen)};
    own.joint = joint_configs(chosen.change, own.handles);
    // Where all kernels of this name differ from the one that it was found for, no rank uses it.
    if (!may_agree(own.joint) ||
        (own.handles.empty() && !handles_named(engine_, chosen.change).empty()))
      return own;
    const auto before = std::ranges::find(work_.pending, chosen, &PendingChange::kernel_change);
    if (before != work_.pending.end()) {
      if (before->state == PendingChange::State::failed) return own;
      own.pending.build = before->build;
    }
    own.pending.loaded = loader_.at_hand(chosen.change, own.handles);
    own.lacks = Lacks::time;
    if (waits_) build(own);
    return own;
  }

  void build(Obtained& own) {
    std::shared_future<void>& build = own.pending.build;
    if (!build.valid()) build = loader_.build(own.pending.kernel_change, own.handles);
  }

  void obtain(Obtained& own, Deadline built, Deadline loaded) {
    const Change& change = own.pending.kernel_change.change;
    std::shared_future<void> needed;
    if (!loader_.is_at_hand(change, own.handles)) {
      if (!waits_) return;
      build(own);  // of what was launched since it began
      needed = own.pending.build;
      if (!ends(needed, built) || std::chrono::steady_clock::now() >= loaded) return;
      if (work_.loads_behind && has_failed(needed)) {  // the background tries once more
        own.pending.build = {};
        return;
      }
    }
    // As of now, like what is in use: what the program has chosen since begins both.
    for (JointConfig& one : own.joint) one.seen = one.handle->problems().agreed(one.problem);
    if (auto all = loader_.load(change, own.handles, false, needed)) {
      own.pending.loaded = *std::move(all);
      own.pending.state = PendingChange::State::loaded;
      own.lacks = Lacks::nothing;
    } else {
      own.lacks = Lacks::means;
    }
  }

  /// What any rank lacks, all do.
  void compare(std::vector<Obtained>& all, std::size_t count) {
    if (count == 0) return;
    std::vector<float> lacking(count, static_cast<float>(Lacks::failure));
    for (std::size_t i = 0; !failure_ && i < count; ++i)
      lacking[i] = static_cast<float>(all[i].lacks);
    // Others may have had more to build than this rank.
    check(ranks_.reduce(lacking, Reduction::max, deadline_in(2 * options_.step_seconds)),
          "comparing");
    if (lacking.front() == static_cast<float>(Lacks::failure))
      give_up("another rank failed while it loaded what was found, so nothing is published");
    for (std::size_t i = 0; i < count; ++i)
      all[i].lacks = static_cast<Lacks>(static_cast<int>(lacking[i]));
  }

  Decision decide(const Choices& choices, std::vector<Obtained>& all) {
    Decision decision;
    Committed& committed = decision.committed;
    CommitReport& report = committed.report;
    std::vector<Choice> kept = choices.given_up;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Obtained& one = all[i];
      if (one.lacks == Lacks::time) {
        committed.pending.push_back(std::move(one.pending));
      } else if (one.lacks == Lacks::means) {
        ++report.dropped;
        kept.push_back(choices.found[i]);
      } else {
        report.changes.push_back(one.pending.kernel_change.change);
        std::ranges::move(one.pending.loaded, std::back_inserter(decision.published));
        std::ranges::move(one.joint, std::back_inserter(decision.agreed));
      }
    }
    report.pending = committed.pending.size();
    committed.settled = choices.open.empty() && committed.pending.empty();
    // Where the problem is launched later, on another rank or after it has left, nothing is looked
    // for anew.
    for (const Choice& choice : kept) {
      if (!choice.in_use) continue;
      const KernelChange stays = with(choice, choice.in_use);
      std::vector<JointConfig> its = joint_configs(stays.change, loader_.handles_of(stays));
      if (may_agree(its)) std::ranges::move(its, std::back_inserter(decision.agreed));
    }
    report.generation = work_.generation + (report.changes.empty() ? 0 : 1);
    report.digest = digest_of(report);
    std::vector<KernelChange> pending;
    for (const PendingChange& one : committed.pending) pending.push_back(one.kernel_change);
    decision.digest = digest_of(report, kept, choices.open, pending);
    return decision;
  }

  static bool may_agree(std::span<const JointConfig> joint) {
    return std::ranges::all_of(joint, [](const JointConfig& one) {
      return one.handle->problems().may_agree(one.problem);
    });
  }

  std::string own_entries() {
    json own = json::array();
    for (const Entry& entry : loader_.entries()) own.push_back(to_json(entry));
    for (const Unfound& one : work_.unfound) {
      places_.emplace_back();
      const auto handle = one.handle.lock();
      if (!handle) continue;
      Entry entry = loader_.entry_of(*handle, one.problem);
      entry.given_up = one.given_up;
      // A commit came to it just before a launch put it in use.
      if (const auto agreed = handle->problems().agreed(one.problem))
        entry.found = detail::Tunable(handle->definition()).named_config(*agreed);
      own.push_back(to_json(entry));
      places_.back() = std::move(entry.place);
    }
    for (const PendingChange& one : work_.pending)
      own.push_back(to_json(Entry{.place = without_config(one.kernel_change),
                                  .found = one.kernel_change.change.config,
                                  .agreed = true}));
    std::string text = own.dump();
    if (text.size() > kMostBytes)
      throw InternalError("the proposals of a commit are larger than a rank may send");
    return text;
  }

  /// What is unsettled on any of the ranks.
  std::vector<Entry> exchange() {
    std::string text;
    attempt([&] { text = own_entries(); });
    if (failure_) text = why_failed_;
    const auto count = static_cast<std::size_t>(ranks_.size());
    const Opening opening{.size = text.size(),
                          .nonce = unpredictable_bits(),
                          .waits = work_.waits ? 1U : 0U,
                          .failed = failure_ ? 1U : 0U};
    openings_.resize(count);
    check(ranks_.gather(std::as_bytes(std::span(&opening, 1)),
                        std::as_writable_bytes(std::span(openings_)),
                        deadline_in(options_.first_seconds)),
          "exchanging");
    std::uint64_t largest = 0;
    for (const Opening& one : openings_) {
      if (one.magic != Opening::kMagic || one.size > kMostBytes)
        throw EnvironmentError(
            "Runtime::commit: another rank is not in a commit, or runs another version of Kiln");
      largest = std::max(largest, one.size);
      waits_ = waits_ || one.waits != 0;
    }
    std::vector<std::byte> mine(largest), all(count * largest);
    std::memcpy(mine.data(), text.data(), text.size());
    check(ranks_.gather(mine, all, step()), "exchanging");
    const auto text_of = [&](std::size_t rank) {
      return std::string_view(reinterpret_cast<const char*>(all.data() + rank * largest),
                              openings_[rank].size);
    };
    for (std::size_t rank = 0; rank < count; ++rank)
      if (openings_[rank].failed)
        give_up(format("rank {} has failed, so nothing is published: {}", rank, text_of(rank)));
    std::vector<Entry> entries;
    for (std::size_t rank = 0; rank < count; ++rank)
      for (const json& one : json::parse(text_of(rank))) entries.push_back(entry_from(one));
    return entries;
  }

  /// No two commits settle the same one: answers may outlive a job.
  Digest question(const Digest& digest) const {
    detail::KeyBuilder key("commit's question", 1);
    key.add("digest", digest);
    for (const Opening& one : openings_) key.add("nonce", static_cast<std::int64_t>(one.nonce));
    return key.finish().digest;
  }

  /// All ranks publish, or none.
  void confirm(const Digest& digest) {
    const auto count = static_cast<std::size_t>(ranks_.size());
    std::vector<std::byte> all(count * sizeof(Digest));
    const auto mine = std::as_bytes(std::span(&digest, 1));
    const Communicator::Failure failure = ranks_.gather(mine, all, step());
    const auto other = [&](std::size_t rank) {
      return std::memcmp(all.data() + rank * sizeof(Digest), mine.data(), sizeof(Digest)) != 0;
    };
    bool confirmed = !failure && !failure_;
    for (std::size_t rank = 0; !failure && rank < count; ++rank)
      confirmed = confirmed && !other(rank);
    if (ranks_.settles()) {
      const auto answer = ranks_.settle(question(digest), confirmed, step());
      if (answer && *answer) return;
      check(failure, "confirming");
      // It cannot be known what the others read, or one of them has failed.
      if (confirmed)
        check(RankFailure{RankFailure::Kind::aborted,
                          {},
                          answer ? "a rank failed in the last exchange"
                                 : "the folder where the ranks settle their answer cannot be "
                                   "reached"},
              "confirming");
    } else if (confirmed) {
      return;
    }
    check(failure, "confirming");
    give_up(
        "the ranks came to different results, or one of them has failed, so nothing is published; "
        "do all of them commit at the same step, with the same kernels?");
  }

  detail::Engine& engine_;
  CommitWork& work_;
  const std::vector<Proposal> loaded_before_;
  CommitLoader loader_;
  bool waits_;                        ///< what the commit publishes is loaded here
  std::vector<KernelChange> places_;  ///< of what was not found
  Communicator& ranks_;
  const std::unique_lock<std::recursive_mutex> turn_;
  const RankOptions& options_;
  /// The first message of each rank: the size of its proposals or, where it has failed, of the
  /// reason, and a random number.
  struct Opening {
    static constexpr std::uint64_t kMagic = 0x356d6d636e6c696b;  // "kilncmm5"
    std::uint64_t magic = kMagic, size = 0, nonce = 0, waits = 0, failed = 0;
  };
  std::vector<Opening> openings_;  ///< of all ranks
  bool all_know_ = false;          ///< that this commit fails
  std::exception_ptr failure_;     ///< of this rank alone
  std::string why_failed_;
};

}  // namespace

Places places_of(const std::vector<PendingChange>& pending) {
  Places places;
  for (const PendingChange& one : pending) places.insert(one.kernel_change);
  return places;
}

Committed commit_with_ranks(detail::Engine& engine, CommitWork work, const PublishOne& publish) {
  return Together(engine, work).run(publish);
}

}  // namespace kiln::runtime
