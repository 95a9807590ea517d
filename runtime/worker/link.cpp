#include "runtime/worker/link.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/call_watch.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Seconds: for a worker's start; at least for what launches nothing, such as copies of the data.
constexpr double kStart = 60, kLeastAlone = 10;
/// Bytes that a worker reads and uploads in a second at least.
constexpr double kBytesPerSecond = 1e8;
constexpr int kStarts = 3;
constexpr double kPause = 0.1;  ///< seconds, between them
constexpr std::uint64_t kLeastMemory = 256ULL << 20, kUsualMemory = 2ULL << 30;
/// Trials that ended a worker, but not the next one. After this many there is no other worker: a
/// tuning must end, whatever kills its workers.
constexpr std::size_t kMostExcused = 50;
constexpr double kAtOnce = 1e-3;  ///< seconds, for what should have been answered before

const char* name_of(Ask ask) {
  switch (ask) {
    case Ask::load:
      return "load";
    case Ask::verify:
      return "verify";
    case Ask::define:
      return "define";
    case Ask::time:
      return "time";
    case Ask::record:
      return "record";
    case Ask::keep_cold:
      return "keep_cold";
    case Ask::repair:
      return "repair";
    case Ask::outputs:
      return "outputs";
    case Ask::forget:
    case Ask::let_overlap:
    case Ask::most_launches:
    case Ask::forget_recording:
    case Ask::share:
    case Ask::reach:
    case Ask::begin_in_step:
    case Ask::is_there:
      break;
  }
  return "other";
}

const char* done_to_it(Ask ask) {
  switch (ask) {
    case Ask::load:
      return "it was loaded";
    case Ask::verify:
    case Ask::define:
      return "it was verified";
    case Ask::outputs:
      return "its outputs were sent";
    default:
      return "it was timed";
  }
}

std::string_view cause_of(WorkerEnd::How how) {
  using How = WorkerEnd::How;
  switch (how) {
    case How::fault:
      return "fault";
    case How::killed:
      return "killed";
    case How::late:
      return "late";
    case How::stopped:
      return "stopped";
    case How::too_large:
      return "memory";
    case How::device:
      break;
  }
  return "device";
}

CandidateStatus status_after(WorkerEnd::How how) {
  if (how == WorkerEnd::How::stopped) return CandidateStatus::hung;
  if (how == WorkerEnd::How::too_large) return CandidateStatus::out_of_memory;
  return CandidateStatus::crashed;
}

bool launches(Ask ask) {
  return ask == Ask::load || ask == Ask::verify || ask == Ask::define || ask == Ask::time;
}

}  // namespace

/// What came of the last try.
struct WorkerLink::Start {
  std::string failure;   ///< empty: it has started
  bool useless = false;  ///< it has, and says that it is of no use
};

WorkerLink::WorkerLink(const DeviceInfo& device, WorkerSetup setup, SharedData& data,
                       WorkerOptions options, TakeVerdict take_verdict)
    : options_(std::move(options)),
      take_verdict_(std::move(take_verdict)),
      data_(data),
      setup_(std::move(setup)) {
  if (::access(options_.executable.c_str(), X_OK) != 0)
    throw CannotIsolate(options_.executable.string() + " is missing");
  if (setup_.in_step) return;
  const Start start = try_to_start();
  if (start.failure.empty()) return;
  const std::string why =
      format("{} for {} {}", options_.executable.string(), device.id, start.failure);
  if (start.useless) throw CannotIsolate(why);
  throw BenchLost("no worker can be started: " + why);
}

void WorkerLink::start() {
  dropped_ = std::make_shared<Dropped>();
  launched_.clear();
  timed_.clear();
  ++generation_;
  worker_ = std::make_unique<WorkerProcess>(options_.executable, setup_.pack(), data_.descriptor(),
                                            TimeLimit(start_seconds(), Clock::now()));
  const WorkerGreeting greeting =
      WorkerGreeting::heard(worker_->greeting(), options_.executable.string());
  if (!greeting.obstacle.empty()) {
    worker_.reset();
    if (greeting.passes) throw EnvironmentError(greeting.obstacle);
    throw CannotIsolate(greeting.obstacle);
  }
  shares_cpu_ = greeting.shares_cpu;
  allow();
  if (const auto cause = std::exchange(cause_, {}); !cause.empty() && options_.restarted)
    options_.restarted(cause);
  if (!setup_.in_step) configure();
}

double WorkerLink::data_seconds() const {
  return static_cast<double>(data_.bytes()) / kBytesPerSecond;
}

double WorkerLink::start_seconds() const { return kStart + data_seconds(); }

double WorkerLink::renewal_seconds() const {
  return kStarts * (start_seconds() + kPause) + kLeastAlone;
}

WorkerLink::Start WorkerLink::try_to_start() {
  Start last;
  for (int tried = 0; tried < kStarts; ++tried) {
    if (tried > 0) std::this_thread::sleep_for(std::chrono::duration<double>(kPause));
    try {
      start();
      return {};
    } catch (const CannotIsolate& error) {
      return {error.what(), true};
    } catch (const std::exception& error) {
      worker_.reset();
      last = {error.what()};
    }
  }
  return last;
}

void WorkerLink::start_again() {
  if (setup_.in_step) throw TrialFault(CandidateStatus::crashed, "its worker has ended before");
  if (!lost_.empty()) throw BenchLost(lost_);
  if (const Start start = try_to_start(); !start.failure.empty())
    give_up(format("no worker can be started any more: {}", start.failure));
}

void WorkerLink::renew(std::function<void()> give_up, std::function<bool()> given_up) {
  given_up_ = std::move(given_up);
  worker_.reset();
  if (generation_ > 0 && cause_.empty()) cause_ = "peer";
  ended_.reset();
  give_up_ = std::move(give_up);
  answers_ = {};
  const Start start = try_to_start();
  if (start.failure.empty()) return;
  const std::string why = format("{} {}", options_.executable.string(), start.failure);
  if (start.useless) throw CannotIsolate(why);
  throw EnvironmentError(why);
}

void WorkerLink::answer_within(double seconds) {
  answer_seconds_ = seconds;
  answers_ = TimeLimit(seconds, Clock::now());
}

std::vector<std::byte> WorkerLink::ask_group(Ask what, std::span<const std::byte> arguments) {
  if (!worker_) start_again();
  try {
    std::vector<std::byte> answer = send(what, arguments);
    if (what == Ask::reach) configure();  // it has a bench now
    return answer;
  } catch (const WorkerEnd& end) {
    end_worker(nullptr, end);
    note_end(end);
    throw;
  }
}

void WorkerLink::note_end(const WorkerEnd& end) {
  if (!setup_.in_step) return;
  ended_ = end;
  give_up_();
}

void WorkerLink::give_up(const std::string& why) {
  lost_ = why;
  throw BenchLost(lost_);
}

/// The worker is gone. @param rig that it was at work on, which will be tried again or is to blame;
/// null: there was none
void WorkerLink::end_worker(const WorkerRig* rig, const WorkerEnd& end) {
  if (rig) timed_.erase(rig->number);
  unchecked_ = unchecked_ || !timed_.empty();
  timed_.clear();
  worker_.reset();
  cause_ = cause_of(end.how());
}

/// What a bench is told once.
void WorkerLink::configure() {
  if (overlap_) send(Ask::let_overlap, FieldWriter().integer(*overlap_ ? 1 : 0).finish());
  if (!cold_) return;
  FieldWriter fields;
  fields.integer(*cold_ ? 1 : 0);
  put(fields, deadline_.left());
  note_warnings(send(Ask::keep_cold, fields.finish()));
}

void WorkerLink::note_warnings(std::span<const std::byte> answer) {
  for (const std::string& text : read_answer(answer, [](FieldReader& f) { return f.texts(); }))
    if (warned_.insert(text).second) warnings_.push_back(text);
}

WorkerLink::Allowance WorkerLink::allowance() const {
  if (options_.memory > 0) return {options_.memory};
  std::uint64_t shared = 0;  // with other ranks, of which all that it has touched counts
  for (const PeerShape& group : setup_.groups)
    shared += static_cast<std::uint64_t>(group.ranks) * group.bytes;
  const std::uint64_t wanted = kUsualMemory + 4 * data_.bytes() + workspace_ + shared;
  const auto there = options_.available ? options_.available() : available_memory();
  if (!there) return {wanted};
  const auto spare = static_cast<std::uint64_t>(std::max<std::int64_t>(0, *there)) / 4 * 3;
  const std::uint64_t most = std::max(spare, kLeastMemory);
  return {std::min(wanted, most), most < wanted};
}

void WorkerLink::allow() {
  const Allowance allowed = allowance();
  scarce_ = allowed.scarce;
  worker_->allow(allowed.bytes);
}

WorkerLink::Allowed WorkerLink::allowed(Ask what) const {
  if (answers_.at()) return {std::max(answers_.left(), kAtOnce)};
  double most = options_.candidate_seconds;
  if (!(most > 0)) most = usual_limit(longest_);
  const bool cut = options_.most_seconds > 0 && longest_ > 0 && options_.most_seconds < most;
  const double seconds = cut ? options_.most_seconds : most;
  return {launches(what) ? seconds : std::max(seconds, kLeastAlone), cut};
}

/// The answer. @throws WorkerEnd; OutOfMemory, EnvironmentError with the worker's words
std::vector<std::byte> WorkerLink::send(Ask what, std::span<const std::byte> arguments) {
  if (options_.journal) options_.journal(worker_->id(), name_of(what));
  last_ = what;
  allowed_ = allowed(what);
  std::vector<std::byte> request = FieldWriter().integer(static_cast<std::uint64_t>(what)).finish();
  request.insert(request.end(), arguments.begin(), arguments.end());
  const auto begin = Clock::now();
  const double over =
      answers_.at() ? std::chrono::duration<double>(begin - *answers_.at()).count() : 0;
  const WorkerProcess::Late late{give_up_, std::clamp(kGrace - over, kAtOnce, kGrace)};
  const std::vector<std::byte> answer =
      worker_->ask(request, TimeLimit(allowed_.seconds, begin), setup_.in_step ? &late : nullptr);
  const AnswerKind kind = read_answer(answer, [](FieldReader& fields) {
    const auto first = static_cast<AnswerKind>(fields.integer());
    if (first == AnswerKind::lost)
      throw WorkerEnd(WorkerEnd::How::device, "lost its device: " + fields.text());
    if (first == AnswerKind::no_memory) throw OutOfMemory(fields.text());
    if (first == AnswerKind::failed) throw EnvironmentError(fields.text());
    return first;
  });
  if (what == Ask::verify || what == Ask::time)
    longest_ = std::max(longest_, std::chrono::duration<double>(Clock::now() - begin).count());
  if (kind == AnswerKind::refused) return answer;
  return {answer.begin() + sizeof(std::uint64_t), answer.end()};
}

std::vector<std::byte> WorkerLink::send_for(const WorkerRig& rig, Ask what,
                                            std::span<const std::byte> arguments) {
  std::vector<std::byte> all = FieldWriter().integer(rig.number).finish();
  all.insert(all.end(), arguments.begin(), arguments.end());
  return send(what, all);
}

/// Whether no other rig was launched there, which could have damaged the worker.
bool WorkerLink::alone(const WorkerRig& rig) const {
  return launched_.empty() || (launched_.size() == 1 && launched_.contains(rig.number));
}

/// Does `work` for a rig, and finds out whether it is to blame where a worker ends over it.
template <class Work>
auto WorkerLink::attempt(WorkerRig& rig, const Work& work) {
  using How = WorkerEnd::How;
  for (bool again = false;; again = true) {
    try {
      auto result = work();
      if (again) ++excused_;
      return result;
    } catch (const WorkerEnd& end) {
      const bool was_alone = alone(rig);
      end_worker(&rig, end);
      if (setup_.in_step) {
        note_end(end);
        blame(end);
      }
      const std::string when = done_to_it(last_);
      if (end.how() == How::late && allowed_.cut)
        throw TrialCut(allowed_.seconds,
                       format("the budget of {:.3g} s ended while {}", allowed_.seconds, when));
      const bool excused = end.how() == How::killed || end.how() == How::stopped || !was_alone;
      if (excused && !again) {
        if (excused_ < kMostExcused) continue;
        give_up(
            format("workers ended {} times through no fault of the candidates at work; the last "
                   "one {}",
                   excused_, end.what()));
      }
      blame(end);
    }
  }
}

/// What was done last has ended the worker.
void WorkerLink::blame(const WorkerEnd& end) const {
  using How = WorkerEnd::How;
  const std::string when = done_to_it(last_);
  if (end.how() == How::late)
    throw TrialFault(CandidateStatus::hung,
                     format("it did not end within {:.3g} s while {}",
                            answers_.at() ? answer_seconds_ : allowed_.seconds, when));
  const std::string why = format("while {}, its worker {}", when, end.what());
  // If the machine had more memory to spare, the trial might have succeeded.
  if (end.how() == How::too_large && scarce_)
    throw OutOfMemory(why + ", because the machine has little to spare now");
  throw TrialFault(status_after(end.how()), why);
}

std::optional<Refusal> WorkerLink::load(WorkerRig& rig) {
  return attempt(rig, [&] {
    if (!worker_) start_again();
    return load_now(rig);
  });
}

std::optional<Refusal> WorkerLink::load_now(WorkerRig& rig) {
  rig.number = 0;
  if (rig.trial.plan.workspace && rig.trial.plan.workspace->total() > workspace_) {
    workspace_ = rig.trial.plan.workspace->total();
    allow();
  }
  FieldWriter fields;
  fields.integer(dropped_->size());
  for (const std::uint64_t number : std::exchange(*dropped_, {})) fields.integer(number);
  put_trial(fields, rig.trial);
  const std::vector<std::byte> answer = send(Ask::load, fields.finish());
  return read_answer(answer, [&](FieldReader& said) -> std::optional<Refusal> {
    const std::uint64_t first = said.integer();
    if (answer.size() > sizeof first) {
      const auto status = static_cast<CandidateStatus>(said.integer());
      return Refusal{status, said.text()};
    }
    rig.number = first;
    rig.dropped = dropped_;
    return {};
  });
}

/// Loads the rig again where its worker is gone, and has it as it was there.
void WorkerLink::make_ready(WorkerRig& rig) {
  // What was launched now could signal ranks that still wait, and hide what they wait for.
  if (setup_.in_step && given_up_()) throw TrialFault(CandidateStatus::hung, "a rank gave up");
  if (!worker_) start_again();
  if (rig.dropped.lock() == dropped_) return;
  if (const auto refusal = load_now(rig)) {
    if (refusal->status == CandidateStatus::not_tried) throw OutOfMemory(refusal->reason);
    throw EnvironmentError(refusal->reason);
  }
  launched_.insert(rig.number);
  // Verifying puts right what timed launches have changed, and does not tell.
  if (rig.verified) look_for_damage();
  for (std::uint64_t draw = 0; rig.verified && draw < setup_.draws.size(); ++draw)
    if (const Verdict verdict = verify_now(rig, Ask::verify, draw); !verdict.right)
      throw TrialFault(CandidateStatus::wrong_result,
                       format("verified once more in a new worker, {}", verdict.why));
  if (rig.recorded > 0) send_for(rig, Ask::record, FieldWriter().integer(rig.recorded).finish());
}

std::vector<std::byte> WorkerLink::ask(WorkerRig& rig, Ask what,
                                       std::span<const std::byte> arguments) {
  return attempt(rig, [&] {
    make_ready(rig);
    launched_.insert(rig.number);
    if (what == Ask::time) timed_.insert(rig.number);
    return send_for(rig, what, arguments);
  });
}

Verdict WorkerLink::verify(WorkerRig& rig, Ask what, std::uint64_t draw) {
  return attempt(rig, [&] {
    make_ready(rig);
    launched_.insert(rig.number);
    return verify_now(rig, what, draw);
  });
}

Verdict WorkerLink::verify_now(const WorkerRig& rig, Ask what, std::uint64_t draw) {
  return take_verdict_(what, draw, send_for(rig, what, FieldWriter().integer(draw).finish()));
}

void WorkerLink::put_off_answers(double seconds) {
  if (answers_.at()) answers_ = TimeLimit(answers_.left() + seconds, Clock::now());
}

void WorkerLink::look_for_damage() {
  if (timed_.empty()) return;
  const std::string found =
      read_answer(send(Ask::repair, {}), [](FieldReader& f) { return f.text(); });
  timed_.clear();
  if (damage_.empty()) damage_ = found;
}

std::string WorkerLink::repair() {
  const auto answer = ask(Ask::repair);
  timed_.clear();
  if (answer && damage_.empty())
    damage_ = read_answer(*answer, [](FieldReader& fields) { return fields.text(); });
  return std::exchange(damage_, {});
}

std::optional<std::vector<std::byte>> WorkerLink::ask(Ask what,
                                                      std::span<const std::byte> arguments) {
  if (!worker_) return {};
  try {
    return send(what, arguments);
  } catch (const WorkerEnd& end) {
    end_worker(nullptr, end);
    note_end(end);
    ++excused_;
    return {};
  }
}

void WorkerLink::forget_recording(WorkerRig& rig) {
  if (std::exchange(rig.recorded, 0) > 0 && worker_ && rig.dropped.lock() == dropped_)
    ask(Ask::forget_recording, FieldWriter().integer(rig.number).finish());
}

void WorkerLink::keep_cold(bool cold, const TimeLimit& deadline) {
  cold_ = cold;
  deadline_ = deadline;
  FieldWriter fields;
  fields.integer(cold ? 1 : 0);
  put(fields, deadline.left());
  if (const auto answer = ask(Ask::keep_cold, fields.finish())) note_warnings(*answer);
}

void WorkerLink::let_overlap(bool overlap) {
  overlap_ = overlap;
  ask(Ask::let_overlap, FieldWriter().integer(overlap ? 1 : 0).finish());
}

}  // namespace kiln::runtime
