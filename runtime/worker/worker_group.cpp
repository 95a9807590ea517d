#include "runtime/worker/worker_group.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/host/shared_memory.hpp"
#include "runtime/device/peer_stalls.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/worker/link.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Symmetric memories of one kernel: messages have a fixed size.
constexpr std::size_t kMostGroups = 4;
/// Seconds for what launches nothing.
constexpr double kAlone = 10;
/// As for one worker: a tuning must end, whatever ends its workers.
constexpr std::size_t kMostExcusedTogether = 50;

/// What a rank's worker offers to the others.
struct Offers {
  GroupSeconds seconds{};
  double data = 0;  ///< seconds for its worker to upload its data
  std::uint64_t count = 0;
  std::array<PeerShape, kMostGroups> shapes{};
  std::array<PeerOffer, kMostGroups> offers{};
};

/// What makes the offers useless; empty: nothing.
std::string mistake_of(const std::vector<Offers>& all) {
  for (std::size_t r = 1; r < all.size(); ++r) {
    const auto same = [&](std::size_t g) {
      PeerShape theirs = all[r].shapes[g];
      theirs.rank = all[0].shapes[g].rank;
      return theirs == all[0].shapes[g];
    };
    bool alike = all[r].count == all[0].count;
    for (std::size_t g = 0; g < kMostGroups; ++g) alike = alike && same(g);
    if (!alike)
      return format("the kernel of rank {} takes other symmetric memory than rank 0's", r);
  }
  return {};
}

Candidate rejected(const Values& config, CandidateStatus status, std::string reason) {
  Candidate candidate;
  candidate.config = config;
  candidate.status = status;
  candidate.reason = std::move(reason);
  return candidate;
}

}  // namespace

/// Why a rank is in no group.
struct WorkerGroup::Failure {
  ShortText why{};          ///< empty: it is in one
  std::uint32_t ended = 0;  ///< its worker has ended, or has not started

  bool failed() const { return !why.empty(); }
  /// The failure that counts. An end makes other ranks fail.
  static Failure of(const std::vector<Failure>& all) {
    for (const bool ended : {true, false})
      for (std::size_t r = 0; r < all.size(); ++r)
        if (all[r].failed() && (all[r].ended != 0) == ended)
          return {ShortText(format("rank {}: {}", r, all[r].why.get())), all[r].ended};
    return {};
  }
};

/// What came of a candidate on a rank.
struct WorkerGroup::Said {
  std::uint32_t status = static_cast<std::uint32_t>(CandidateStatus::measured);
  std::uint32_t trouble = 0;  ///< the rank cannot go on, which is nobody's fault
  std::uint32_t gone = 0;     ///< its worker has ended
  std::uint32_t excused = 0;  ///< others have ended it
  std::uint32_t gave_up = 0;  ///< waits were ended, of its kernels or of others
  ShortText reason{};

  CandidateStatus outcome() const { return static_cast<CandidateStatus>(status); }
  bool ok() const { return outcome() == CandidateStatus::measured; }
  void fail(CandidateStatus as, const std::string& why) {
    status = static_cast<std::uint32_t>(as);
    reason = ShortText(why.empty() ? "unknown" : why);
  }
  /// The failure with the highest number caused the others.
  int severity() const {
    if (trouble) return 5;
    if (gone) return outcome() == CandidateStatus::hung ? 3 : 4;
    if (gave_up) return 2;
    return ok() ? 0 : 1;
  }
};

/// What workers' kernels look at while they wait, in memory of the host.
class WorkerGroup::Switch {
 public:
  /// @throws EnvironmentError
  Switch(const std::vector<Offers>& all, const std::vector<PeerShape>& groups) : groups_(groups) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      auto& ranks = controls_.emplace_back();
      for (const Offers& one : all)
        ranks.push_back(open_shared_memory(one.offers[g].control, sizeof(RankControl)));
    }
  }

  void give_up(int rank) const noexcept {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      for (std::size_t r = 0; r < controls_[g].size(); ++r) give_up_at(control(g, r), rank);
  }
  bool given_up(int rank) const noexcept {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      if (given_up_by(control(g, static_cast<std::size_t>(rank))) != 0) return true;
    return false;
  }
  /// Empty: nobody has, as this rank knows.
  std::string why_given_up(int rank) const {
    for (std::size_t g = 0; g < groups_.size(); ++g)
      if (std::string why = runtime::why_given_up(
              [&](int r) {
                const PeersControl& one = control(g, static_cast<std::size_t>(r));
                return PeersControl{given_up_by(one),
                                    __atomic_load_n(&one.stalled, __ATOMIC_RELAXED)};
              },
              rank, groups_[g].ranks, groups_[g].flags);
          !why.empty())
        return why;
    return {};
  }

 private:
  PeersControl& control(std::size_t group, std::size_t rank) const {
    return static_cast<RankControl*>(controls_[group][rank]->data())->kernels;
  }

  const std::vector<PeerShape> groups_;
  std::vector<std::vector<std::unique_ptr<PeerMemory>>> controls_;  ///< by group, by rank
};

WorkerGroup::WorkerGroup(std::shared_ptr<Communicator> ranks, const GroupSeconds& seconds)
    : exchange_(std::move(ranks), "workers of ranks"), seconds_(seconds), longest_(seconds) {}

WorkerGroup::~WorkerGroup() = default;

void WorkerGroup::disband() noexcept {
  if (link_) link_->end_group();
  link_ = nullptr;
  formed_ = false;
  switch_.reset();
}

template <class Work>
WorkerGroup::Failure WorkerGroup::failure_in(const Work& work) const {
  bool useless = false;
  Failure failure;
  failure.why = ShortText(failure_of([&] {
    try {
      work();
    } catch (const CannotIsolate&) {
      useless = true;
      throw;
    } catch (const WorkerEnd& end) {
      throw EnvironmentError(std::string("its worker ") + end.what());
    }
  }));
  failure.ended = failure.failed() && !useless && link_ && !link_->has_worker() ? 1 : 0;
  return failure;
}

std::string WorkerGroup::begin(IsolatedBench* bench, const std::string& why) {
  const Failure failure = form_again_once(bench, why);
  if (failure.failed() && !failure.ended) return failure.why.get();
  if (failure.failed()) lost_ = format("workers cannot be started: {}", failure.why.get());
  begun_ = true;
  return {};
}

/// Workers are what a machine that lacks memory ends first, so an end need not come again.
WorkerGroup::Failure WorkerGroup::form_again_once(IsolatedBench* bench, const std::string& why) {
  const Failure failure = form(bench, why);
  return failure.ended ? form(bench, why) : failure;
}

WorkerGroup::Failure WorkerGroup::form(IsolatedBench* bench, const std::string& why) {
  struct Message {
    Failure failure;
    Offers offers;
  };
  disband();
  Message mine;
  mine.offers.seconds = seconds_;
  double starting = seconds_.make;
  mine.failure = failure_in([&] {
    if (!bench) throw CannotIsolate(why);
    const std::vector<PeerShape>& groups = bench->groups();
    if (groups.size() > kMostGroups)
      throw CannotIsolate(format("the kernel takes {} symmetric memories, more than {}",
                                 groups.size(), kMostGroups));
    link_ = &bench->link();
    mine.offers.data = link_->data_seconds();
    starting = std::max(starting, link_->renewal_seconds());
    link_->renew(
        [this] {
          if (switch_) switch_->give_up(exchange_.rank());
        },
        [this] { return switch_ && switch_->given_up(exchange_.rank()); });
    link_->answer_within(kAlone);
    const std::vector<std::byte> answer = link_->ask_group(Ask::share);
    read_answer(answer, [&](FieldReader& fields) {
      for (std::size_t g = 0; g < groups.size(); ++g) {
        mine.offers.shapes[g] = groups[g];
        mine.offers.offers[g] = get<PeerOffer>(fields);
      }
    });
    mine.offers.count = groups.size();
  });
  std::vector<Failure> failures;
  std::vector<Offers> all;
  for (const Message& one : exchange_.all(mine, deadline_in(starting + seconds_.exchange))) {
    failures.push_back(one.failure);
    all.push_back(one.offers);
  }
  double data = 0;
  for (const Offers& one : all) {
    longest_.candidate = std::max(longest_.candidate, one.seconds.candidate);
    longest_.exchange = std::max(longest_.exchange, one.seconds.exchange);
    longest_.make = std::max(longest_.make, one.seconds.make);
    data = std::max(data, one.data);
  }
  Failure failure = Failure::of(failures);
  if (!failure.failed()) failure.why = ShortText(mistake_of(all));
  if (!failure.failed()) {
    const auto reach = [&] {
      switch_ = std::make_unique<Switch>(all, bench->groups());
      FieldWriter offers;
      for (std::size_t g = 0; g < bench->groups().size(); ++g)
        for (const Offers& one : all) put(offers, one.offers[g]);
      link_->answer_within(kAlone + data);
      link_->ask_group(Ask::reach, offers.finish());
    };
    const Failure here = failure_in([&] {
      try {
        reach();
      } catch (...) {
        // What cannot be opened may have gone with this rank's worker: its end is the reason then.
        if (link_->has_worker()) {
          link_->answer_within(kAlone);
          link_->ask_group(Ask::is_there);
        }
        throw;
      }
    });
    failure = Failure::of(exchange_.all(
        here, deadline_in(2 * (kAlone + WorkerLink::kGrace) + data + longest_.exchange)));
  }
  formed_ = !failure.failed();
  if (!formed_) disband();
  launched_ = 0;
  return failure;
}

/// All ranks judge the same messages.
WorkerGroup::Said WorkerGroup::agree(const Said& mine, double seconds) {
  const std::vector<Said> all = exchange_.all(mine, deadline_in(seconds + longest_.exchange));
  std::size_t cause = 0;
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r].severity() > all[cause].severity()) cause = r;
  Said agreed = all[cause];
  if (agreed.severity() == 0) return agreed;
  agreed.reason = ShortText(format("rank {}: {}", cause, agreed.reason.get()));
  if (agreed.trouble) throw EnvironmentError(agreed.reason.get());
  return agreed;
}

/// Whether the worker has ended, and how.
void WorkerGroup::note_end(IsolatedBench& bench, Said& said) const {
  const WorkerLink& link = bench.link();
  said.gone = link.has_worker() ? 0 : 1;
  if (!link.ended()) return;
  const WorkerEnd::How how = link.ended()->how();
  said.excused = how == WorkerEnd::How::killed || how == WorkerEnd::How::stopped;
  if (said.gone && said.ok())
    said.fail(how == WorkerEnd::How::late ? CandidateStatus::hung : CandidateStatus::crashed,
              std::string("its worker ") + link.ended()->what());
}

WorkerGroup::Said WorkerGroup::get_ready(IsolatedBench* bench, const Trial* trial,
                                         const Refusal& why, std::shared_ptr<Rig>& rig) {
  Said said;
  if (!bench || !trial) {
    said.trouble = bench ? 0 : 1;
    said.fail(why.status, why.reason);
    return said;
  }
  try {
    bench->link().answer_within(std::max(kAlone, seconds_.candidate));
    auto loaded = bench->load(*trial);
    if (const auto* refusal = std::get_if<Refusal>(&loaded)) {
      said.fail(refusal->status, refusal->reason);
    } else {
      rig = std::get<std::shared_ptr<Rig>>(std::move(loaded));
      bench->link().ask_group(Ask::begin_in_step);
    }
  } catch (const OutOfMemory& error) {  // it passes by itself
    said.fail(CandidateStatus::not_tried, error.what());
  } catch (const std::exception& error) {
    said.fail(CandidateStatus::launch_failed, error.what());
  } catch (...) {
    said.fail(CandidateStatus::launch_failed, kForeignException);
  }
  note_end(*bench, said);
  return said;
}

WorkerGroup::Said WorkerGroup::launch(IsolatedBench& bench, Rig& rig, const TimingPolicy& timing,
                                      Candidate& candidate) {
  Said said;
  try {
    bench.link().answer_within(seconds_.candidate);
    GuardedLaunches launches;  // the worker is ended instead
    candidate = measure_in_step(bench, rig, timing, candidate.config, launches);
    if (candidate.status != CandidateStatus::measured)
      said.fail(candidate.status, candidate.reason);
  } catch (const OutOfMemory& error) {  // it passes by itself
    said.fail(CandidateStatus::not_tried, error.what());
  } catch (const std::exception& error) {
    said.fail(CandidateStatus::launch_failed, error.what());
  } catch (...) {
    said.fail(CandidateStatus::launch_failed, kForeignException);
  }
  note_end(bench, said);
  if (said.gone) return said;
  if (const std::string why = switch_->why_given_up(exchange_.rank()); !why.empty()) {
    said.gave_up = 1;
    said.fail(CandidateStatus::hung, why);
  }
  return said;
}

Candidate WorkerGroup::measure(IsolatedBench* bench, const Trial* trial, const Refusal& why,
                               const Values& config) {
  for (bool again = false;; again = true) {
    if (lost_.empty() && !formed_)
      if (const Failure failure = form_again_once(bench, why.reason); failure.failed())
        lost_ = format("workers cannot be started any more: {}", failure.why.get());
    if (!lost_.empty()) return rejected(config, CandidateStatus::not_tried, lost_);
    std::shared_ptr<Rig> rig;
    Candidate candidate;
    candidate.config = config;
    const double loading = std::max(kAlone, longest_.candidate) + WorkerLink::kGrace;
    Said agreed = agree(get_ready(bench, trial, why, rig), loading);
    const bool ready = agreed.ok();
    if (ready) {
      // The time of the programs' own checks does not count as the candidate's.
      const double checks = bench->checks() ? longest_.make : 0;
      agreed = agree(launch(*bench, *rig, trial->timing, candidate),
                     longest_.candidate + WorkerLink::kGrace + checks);
    }
    const bool first = launched_ == 0;
    launched_ += ready ? 1 : 0;
    if (agreed.gone) {
      rig.reset();
      disband();
      if (!again && (agreed.excused || !first)) {
        if (++excused_ < kMostExcusedTogether) continue;
        lost_ = format(
            "workers ended {} times through no fault of the candidates at work; the last "
            "one of {}",
            excused_, agreed.reason.get());
        continue;
      }
    }
    if (agreed.ok()) return candidate;
    return rejected(config, agreed.outcome(), agreed.reason.get());
  }
}

std::optional<Candidate> WorkerGroup::meet(const std::optional<Refusal>& refusal,
                                           const Values& config) {
  Said said;
  if (refusal) said.fail(refusal->status, refusal->reason);
  const Said agreed = agree(said, longest_.make);
  if (agreed.ok()) return {};
  return rejected(config, agreed.outcome(), agreed.reason.get());
}

}  // namespace kiln::runtime
