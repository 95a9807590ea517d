#include "runtime/worker/worker_group.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/host/shared_memory.hpp"
#include "runtime/device/peer_stalls.hpp"
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
  ShortText failure{};
  GroupSeconds seconds{};
  double data = 0;  ///< seconds for its worker to upload its data
  std::uint64_t count = 0;
  std::array<PeerShape, kMostGroups> shapes{};
  std::array<PeerOffer, kMostGroups> offers{};
};

/// What makes the offers useless; empty: nothing.
std::string mistake_of(const std::vector<Offers>& all) {
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].failure.empty()) return format("rank {}: {}", r, all[r].failure.text());
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
        ranks.push_back(open_shared_memory(one.offers[g].control, sizeof(PeersControl)));
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
    return *static_cast<PeersControl*>(controls_[group][rank]->data());
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

std::string WorkerGroup::form(IsolatedBench* bench, const std::string& why) {
  disband();
  Offers mine;
  mine.seconds = seconds_;
  double starting = seconds_.make;
  mine.failure = ShortText(failure_of([&] {
    if (!bench) throw CannotIsolate(why);
    const std::vector<PeerShape>& groups = bench->groups();
    if (groups.size() > kMostGroups)
      throw CannotIsolate(format("the kernel takes {} symmetric memories, more than {}",
                                 groups.size(), kMostGroups));
    link_ = &bench->link();
    mine.data = link_->data_seconds();
    starting = std::max(starting, link_->renewal_seconds());
    link_->renew(
        [this] {
          if (switch_) switch_->give_up(exchange_.rank());
        },
        [this] { return switch_ && switch_->given_up(exchange_.rank()); });
    link_->begin_step(kAlone);
    const std::vector<std::byte> answer = link_->ask_group(Ask::share);
    read_answer(answer, [&](FieldReader& fields) {
      for (std::size_t g = 0; g < groups.size(); ++g) {
        mine.shapes[g] = groups[g];
        mine.offers[g] = get<PeerOffer>(fields);
      }
    });
    mine.count = groups.size();
  }));
  const std::vector<Offers> all = exchange_.all(mine, deadline_in(starting + seconds_.step));
  std::string wrong = mistake_of(all);
  double data = 0;
  for (const Offers& one : all) {
    longest_.candidate = std::max(longest_.candidate, one.seconds.candidate);
    longest_.step = std::max(longest_.step, one.seconds.step);
    longest_.make = std::max(longest_.make, one.seconds.make);
    data = std::max(data, one.data);
  }
  if (wrong.empty()) {
    const ShortText failure(failure_of([&] {
      switch_ = std::make_unique<Switch>(all, bench->groups());
      FieldWriter offers;
      for (std::size_t g = 0; g < bench->groups().size(); ++g)
        for (const Offers& one : all) put(offers, one.offers[g]);
      link_->begin_step(kAlone + data);
      link_->ask_group(Ask::reach, offers.finish());
    }));
    const std::vector<ShortText> failures =
        exchange_.all(failure, deadline_in(kAlone + data + WorkerLink::kGrace + longest_.step));
    for (std::size_t r = 0; r < failures.size() && wrong.empty(); ++r)
      if (!failures[r].empty()) wrong = format("rank {}: {}", r, failures[r].text());
  }
  if (!wrong.empty()) {
    disband();
    return wrong;
  }
  formed_ = true;
  launched_ = 0;
  return {};
}

/// All ranks judge the same messages.
WorkerGroup::Said WorkerGroup::agree(const Said& mine, double seconds) {
  const std::vector<Said> all = exchange_.all(mine, deadline_in(seconds + longest_.step));
  std::size_t cause = 0;
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r].severity() > all[cause].severity()) cause = r;
  Said agreed = all[cause];
  if (agreed.severity() == 0) return agreed;
  agreed.reason = ShortText(format("rank {}: {}", cause, agreed.reason.text()));
  if (agreed.trouble) throw EnvironmentError(agreed.reason.text());
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
                                         const std::string& why, std::shared_ptr<Rig>& rig) {
  Said said;
  if (!bench || !trial) {
    said.trouble = bench ? 0 : 1;
    said.fail(CandidateStatus::launch_failed, why);
    return said;
  }
  try {
    bench->link().begin_step(std::max(kAlone, seconds_.candidate));
    auto loaded = bench->load(*trial);
    if (const auto* refusal = std::get_if<Refusal>(&loaded)) {
      said.fail(refusal->status, refusal->reason);
    } else {
      rig = std::get<std::shared_ptr<Rig>>(std::move(loaded));
      bench->link().ask_group(Ask::reset);
    }
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
    bench.link().begin_step(seconds_.candidate);
    candidate = measure_in_step(bench, rig, timing, candidate.config);
    if (candidate.status != CandidateStatus::measured)
      said.fail(candidate.status, candidate.reason);
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

Candidate WorkerGroup::measure(IsolatedBench* bench, const Trial* trial, const std::string& why,
                               const Values& config) {
  for (bool again = false;; again = true) {
    if (lost_.empty() && !formed_)
      if (const std::string wrong = form(bench, why); !wrong.empty())
        lost_ = format("workers cannot be started any more: {}", wrong);
    if (!lost_.empty()) return rejected(config, CandidateStatus::not_tried, lost_);
    std::shared_ptr<Rig> rig;
    Candidate candidate;
    candidate.config = config;
    const double loading = std::max(kAlone, longest_.candidate) + WorkerLink::kGrace;
    Said agreed = agree(get_ready(bench, trial, why, rig), loading);
    const bool ready = agreed.ok();
    if (ready) {
      // The time of the programs' own checks is none of the candidate's.
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
            excused_, agreed.reason.text());
        continue;
      }
    }
    if (agreed.ok()) return candidate;
    return rejected(config, agreed.outcome(), agreed.reason.text());
  }
}

std::optional<Candidate> WorkerGroup::meet(const std::optional<Refusal>& refusal,
                                           const Values& config) {
  Said said;
  if (refusal) said.fail(refusal->status, refusal->reason);
  const Said agreed = agree(said, longest_.make);
  if (agreed.ok()) return {};
  return rejected(config, agreed.outcome(), agreed.reason.text());
}

}  // namespace kiln::runtime
