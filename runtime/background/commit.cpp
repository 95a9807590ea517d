#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/communicator.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/background/background_tuning.hpp"
#include "runtime/background/ballot.hpp"
#include "runtime/background/commit_loader.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime {

using detail::format;
using nlohmann::json;
using Change = CommitReport::Change;

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;  ///< of one rank's proposals

/// Puts in use what was loaded; false where something else has been chosen meanwhile, which stays.
using PublishOne = std::function<bool(Proposal& one)>;

/// With ranks: a problem of this rank for which something provisional is in use and nothing was
/// found.
struct Unfound {
  std::weak_ptr<ServedHandle> handle;
  Values problem;
  bool given_up = false;  ///< nothing is looked for here any more
  bool settled = false;   ///< by the commit: what is in use stays, on all ranks
};

struct Committed {
  CommitReport report;
  bool settled = true;  ///< with ranks: nothing is looked for any more, on any of them
};

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

/// A commit of several ranks.
class Together {
 public:
  Together(detail::Engine& engine, const std::vector<Proposal>& found,
           std::vector<Unfound>& unfound)
      : engine_(engine),
        loader_(engine, found),
        unfound_(unfound),
        ranks_(*engine.options().tuning.ranks),
        turn_(ranks_.turn()),
        options_(engine.options().tuning.together) {}

  Committed run(std::uint64_t generation, const PublishOne& publish) try {
    Committed committed;
    CommitReport& report = committed.report;
    const Choices choices = choose(exchange());
    committed.settled = choices.open.empty();
    std::vector<KernelChange> chosen;
    for (const Choice& choice : choices.found) chosen.push_back(with(choice, choice.found));
    const Deadline built = step();
    loader_.build(chosen, built);
    std::vector<std::vector<Proposal>> loaded;
    std::vector<std::vector<JointConfig>> joint;
    std::vector<float> lacking;
    for (const KernelChange& kernel_change : chosen) {
      const Handles handles = handles_of(engine_, kernel_change);
      joint.push_back(joint_configs(kernel_change.change, handles));
      std::optional<std::vector<Proposal>> here;
      // Where all kernels of this name differ from the one that it was found for, no rank uses it.
      if ((!handles.empty() || handles_named(engine_, kernel_change.change).empty()) &&
          std::chrono::steady_clock::now() < built)
        here = loader_.load(kernel_change.change, handles, false);
      lacking.push_back(here && may_agree(joint.back()) ? 0.0F : 1.0F);
      loaded.push_back(std::move(here).value_or(std::vector<Proposal>()));
    }
    // Others may have had more to build than this rank.
    if (!lacking.empty())
      check(ranks_.reduce(lacking, Reduction::max, deadline_in(2 * options_.step_seconds)),
            "comparing");
    std::vector<Proposal> published;
    std::vector<JointConfig> agreed;
    std::vector<Choice> kept = choices.given_up;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (lacking[i] != 0) {
        kept.push_back(choices.found[i]);
        continue;
      }
      report.changes.push_back(chosen[i].change);
      std::move(loaded[i].begin(), loaded[i].end(), std::back_inserter(published));
      std::move(joint[i].begin(), joint[i].end(), std::back_inserter(agreed));
    }
    report.dropped = chosen.size() - report.changes.size();
    // Where the problem is launched later, on another rank or after it has left, nothing is looked
    // for anew.
    for (const Choice& choice : kept) {
      if (!choice.in_use) continue;
      const KernelChange stays = with(choice, choice.in_use);
      std::vector<JointConfig> all = joint_configs(stays.change, handles_of(engine_, stays));
      if (may_agree(all)) std::move(all.begin(), all.end(), std::back_inserter(agreed));
    }
    report.generation = generation + (report.changes.empty() ? 0 : 1);
    report.digest = digest_of(report);
    confirm(digest_of(report, kept, choices.open));
    // This comes first: launches of a problem that is not held here use what was agreed.
    for (const JointConfig& one : agreed)
      one.handle->problems().agree_over(one.problem, one.seen, one.config);
    for (Proposal& one : published) publish(one);
    for (std::size_t i = 0; i < unfound_.size(); ++i)
      unfound_[i].settled = std::ranges::find(choices.open, places_[i]) == choices.open.end();
    return committed;
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

  static bool may_agree(std::span<const JointConfig> joint) {
    return std::ranges::all_of(joint, [](const JointConfig& one) {
      return one.handle->problems().may_agree(one.problem);
    });
  }

  /// What is unsettled on any of the ranks.
  std::vector<Entry> exchange() {
    json own = json::array();
    for (const Entry& entry : loader_.entries()) own.push_back(to_json(entry));
    for (const Unfound& one : unfound_) {
      places_.emplace_back();
      const auto handle = one.handle.lock();
      if (!handle) continue;
      Entry entry = loader_.entry_of(*handle, one.problem);
      entry.given_up = one.given_up;
      own.push_back(to_json(entry));
      places_.back() = std::move(entry.place);
    }
    const std::string text = own.dump();
    if (text.size() > kMostBytes)
      throw InternalError("the proposals of a commit are larger than a rank may send");
    const auto count = static_cast<std::size_t>(ranks_.size());
    const Opening opening{.size = text.size(), .nonce = unpredictable_bits()};
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
    }
    std::vector<std::byte> mine(largest), all(count * largest);
    std::memcpy(mine.data(), text.data(), text.size());
    check(ranks_.gather(mine, all, step()), "exchanging");
    std::vector<Entry> entries;
    for (std::size_t rank = 0; rank < count; ++rank) {
      const auto* const begin = reinterpret_cast<const char*>(all.data() + rank * largest);
      for (const json& one : json::parse(begin, begin + openings_[rank].size))
        entries.push_back(entry_from(one));
    }
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
    bool confirmed = !failure;
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
    all_know_ = true;
    throw EnvironmentError(
        "Runtime::commit: the ranks came to different results, so nothing is published; do all of "
        "them commit at the same step, with the same kernels?");
  }

  detail::Engine& engine_;
  CommitLoader loader_;
  std::vector<Unfound>& unfound_;
  std::vector<KernelChange> places_;  ///< of `unfound_`
  Communicator& ranks_;
  const std::unique_lock<std::recursive_mutex> turn_;
  const RankOptions& options_;
  /// The first message of each rank: the size of its proposals, and a random number.
  struct Opening {
    static constexpr std::uint64_t kMagic = 0x336d6d636e6c696b;  // "kilncmm3"
    std::uint64_t magic = kMagic, size = 0, nonce = 0;
  };
  std::vector<Opening> openings_;  ///< of all ranks
  bool all_know_ = false;          ///< that this commit fails
};

/// Publishes what was found, on all handles of its kernel that have launched its problem. Without
/// ranks that is all that was found. With ranks collective: what is unsettled on any of them is
/// exchanged. Each problem gets the config that most ranks have found (of equals, the least), every
/// rank loads it, and what all have loaded is published. What a rank cannot load, and what nobody
/// has found and all that looked for it have given up, stays as it is, on all ranks.
/// @throws EnvironmentError when a rank fails; then no rank publishes anything, where the
/// communicator settles, else possibly some do when a rank dies during the last exchange
Committed agree_on_commit(detail::Engine& engine, const std::vector<Proposal>& found,
                          std::vector<Unfound>& unfound, std::uint64_t generation,
                          const PublishOne& publish) {
  if (engine.options().tuning.ranks)
    return Together(engine, found, unfound).run(generation, publish);
  CommitReport report;
  CommitLoader loader(engine, found);
  for (const Proposal& one : found) {
    const auto handle = one.handle.lock();
    if (!handle) continue;
    const KernelChange kernel_change = loader.kernel_change_of(one, *handle);
    auto loaded = loader.load(kernel_change.change, {&handle, 1}, true);
    if (!loaded) {
      ++report.dropped;
      continue;
    }
    // Other handles of the kernel get it, too, unless they have found something themselves or their
    // rules forbid it.
    for (const auto& other : handles_of(engine, kernel_change)) {
      const bool has_own = std::ranges::any_of(found, [&](const Proposal& its) {
        return its.place == other.get() && its.launchable.problem == one.launchable.problem;
      });
      if (has_own) continue;
      if (auto more = loader.load(kernel_change.change, {&other, 1}, true))
        std::move(more->begin(), more->end(), std::back_inserter(*loaded));
    }
    bool published = false;
    for (Proposal& ready : *loaded) published = publish(ready) || published;
    if (published) report.changes.push_back(kernel_change.change);
  }
  std::ranges::sort(report.changes, {}, [](const Change& c) {
    return std::tie(c.kernel, c.types, c.problem, c.config);
  });
  report.changes.erase(std::unique(report.changes.begin(), report.changes.end()),
                       report.changes.end());
  report.generation = generation + (report.changes.empty() ? 0 : 1);
  report.digest = digest_of(report);
  return {std::move(report)};
}

}  // namespace

CommitReport BackgroundTuning::commit() {
  const std::lock_guard alone(committing_);
  std::vector<Proposal> found;
  std::vector<Unfound> unfound;
  {
    const std::lock_guard lock(jobs_->mutex);
    if (engine_.options().tuning.ranks)
      for (const auto& [place, one] : jobs_->unsettled)
        if (std::ranges::none_of(jobs_->found, [&place = place](const Proposal& its) {
              return its.place == place.first && its.launchable.problem == place.second;
            }))
          unfound.push_back({one.handle, place.second, one.given_up});
    found.swap(jobs_->found);
  }
  Committed committed;
  try {
    committed = agree_on_commit(engine_, found, unfound, generation_, [this](Proposal& one) {
      const auto handle = one.handle.lock();
      return handle && publish(handle, std::move(one.launchable), one.seen);
    });
  } catch (...) {
    const std::lock_guard lock(jobs_->mutex);
    for (Proposal& one : found)
      if (jobs_->unsettled.contains({one.place, one.launchable.problem}))
        jobs_->found.push_back(std::move(one));
    throw;
  }
  const auto keep = [this](const std::weak_ptr<ServedHandle>& of, const Values& problem) {
    const auto handle = of.lock();
    if (handle && unsettled(handle.get(), problem)) keep_in_use(handle, problem);
  };
  for (const Proposal& one : found) keep(one.handle, one.launchable.problem);
  for (const Unfound& one : unfound)
    if (const auto handle = one.handle.lock(); one.settled && handle && handle->find(one.problem))
      keep(one.handle, one.problem);  // a launch may just be putting it in use
  if (!committed.report.changes.empty()) ++generation_;
  all_settled_ = committed.settled;
  return std::move(committed.report);
}

}  // namespace kiln::runtime
