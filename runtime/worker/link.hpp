// The worker of an isolated bench: started, asked, and started anew when a trial has ended it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/device.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/worker/isolation.hpp"
#include "runtime/worker/shared_data.hpp"
#include "runtime/worker/worker_process.hpp"

namespace kiln::runtime {

/// What `read` takes from an answer. @throws EnvironmentError when the answer is malformed
template <class Read>
auto read_answer(std::span<const std::byte> answer, const Read& read) {
  try {
    FieldReader fields(answer);
    return read(fields);
  } catch (const BrokenFrame& broken) {
    throw EnvironmentError(std::string("the worker sent ") + broken.what());
  }
}

/// Numbers of rigs that the worker may forget; null once it is another worker.
using Dropped = std::vector<std::uint64_t>;

/// A trial as the program knows it: what takes it to load it into another worker.
struct WorkerRig {
  ~WorkerRig() {
    if (const auto list = dropped.lock()) list->push_back(number);
  }
  Trial trial{};
  std::uint64_t number = 0;
  std::weak_ptr<Dropped> dropped{};  ///< of the worker that has loaded it
  bool verified = false;
  std::size_t recorded = 0;  ///< launches of its recording; 0: there is none
};

/// What follows from the answer to a request to verify or to define a draw. May ask_now().
using TakeVerdict =
    std::function<Verdict(Ask what, std::uint64_t draw, std::span<const std::byte> answer)>;

/// Not thread-safe.
class WorkerLink {
 public:
  /// Starts the worker, in several tries; where it works in step, renew() does.
  /// @throws CannotIsolate: a worker is of no use here, whenever it starts; BenchLost: none can be
  /// started now
  WorkerLink(const DeviceInfo& device, WorkerSetup setup, SharedData& data, WorkerOptions options,
             TakeVerdict take_verdict);

  bool shares_cpu() const noexcept { return shares_cpu_; }
  /// Which worker it is: names of outputs that are to be judged mean something there only.
  std::uint64_t generation() const noexcept { return generation_; }

  /// @throws TrialFault; TrialCut; BenchLost; OutOfMemory
  std::optional<Refusal> load(WorkerRig& rig);
  /// Asks for something of a rig, which is loaded anew where its worker is gone. The answer.
  /// @throws likewise; EnvironmentError with the worker's words
  std::vector<std::byte> ask(WorkerRig& rig, Ask what, std::span<const std::byte> arguments = {});
  /// Asks to verify or to define. What is taken from the answer, too, comes from one worker.
  /// @throws likewise
  Verdict verify(WorkerRig& rig, Ask what, std::uint64_t draw);
  /// Asks for something that launches nothing. Nothing: the worker ended over it.
  std::optional<std::vector<std::byte>> ask(Ask what, std::span<const std::byte> arguments = {});
  /// As part of verify(), asks the worker that has verified. @throws WorkerEnd, for verify() to
  /// catch; EnvironmentError with the worker's words
  std::vector<std::byte> ask_now(Ask what, std::span<const std::byte> arguments) {
    return send(what, arguments);
  }

  /// Where the worker works in step (WorkerSetup::in_step): one that ends is not replaced, and a
  /// trial does not run again. All ranks together decide what happens to either.
  ///
  /// Ends the worker, and starts another. `give_up`: called when that has ended, or is late,
  /// because others wait for it. `given_up`: whether a rank has called that; then nothing is
  /// launched any more. @throws CannotIsolate: it starts, and says that it is of no use here;
  /// EnvironmentError: it does not start
  void renew(std::function<void()> give_up, std::function<bool()> given_up);
  void end_group() noexcept { worker_.reset(); }
  /// Seconds that it has to answer once its kernels need not wait for others any more.
  static constexpr double kGrace = 2;
  /// All that is asked from now on must be answered within `seconds`. Once they are over, `give_up`
  /// is called, and the worker has kGrace more.
  void answer_within(double seconds);
  /// Asks for what is done about its symmetric memory. @throws WorkerEnd; EnvironmentError with the
  /// worker's words
  std::vector<std::byte> ask_group(Ask what, std::span<const std::byte> arguments = {});
  bool has_worker() const noexcept { return worker_ != nullptr; }
  /// How the worker has ended since renew(); nothing: it has not, or somebody has ended it here.
  const std::optional<WorkerEnd>& ended() const noexcept { return ended_; }
  /// Seconds for a worker to read its data and to upload them.
  double data_seconds() const;
  /// Seconds that renew() takes at most.
  double renewal_seconds() const;
  /// The program itself has taken this many seconds that answer_within() allows.
  void put_off_answers(double seconds);

  void forget_recording(WorkerRig& rig);
  void keep_cold(bool cold, const TimeLimit& deadline);
  void let_overlap(bool overlap);
  /// As TrialBench.
  std::string repair();
  bool take_unchecked() noexcept { return std::exchange(unchecked_, false); }
  /// What workers have warned of, each warning once.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

 private:
  double start_seconds() const;
  /// How much more memory the worker may take.
  struct Allowance {
    std::uint64_t bytes = 0;
    bool scarce = false;  ///< it would be more if the machine had more to spare now
  };
  /// How long the worker may work at one request.
  struct Allowed {
    double seconds = 0;
    bool cut = false;  ///< the candidate's own deadline is later
  };

  void start();
  void start_again();
  struct Start;
  Start try_to_start();
  void note_end(const WorkerEnd& end);
  [[noreturn]] void blame(const WorkerEnd& end) const;
  void configure();
  template <class Work>
  auto attempt(WorkerRig& rig, const Work& work);
  std::optional<Refusal> load_now(WorkerRig& rig);
  void make_ready(WorkerRig& rig);
  Verdict verify_now(const WorkerRig& rig, Ask what, std::uint64_t draw);
  void end_worker(const WorkerRig* rig, const WorkerEnd& end);
  [[noreturn]] void give_up(const std::string& why);
  void look_for_damage();
  void note_warnings(std::span<const std::byte> answer);
  std::vector<std::byte> send(Ask what, std::span<const std::byte> arguments);
  std::vector<std::byte> send_for(const WorkerRig& rig, Ask what,
                                  std::span<const std::byte> arguments);
  bool alone(const WorkerRig& rig) const;
  Allowed allowed(Ask what) const;
  Allowance allowance() const;
  void allow();

  const WorkerOptions options_;
  const TakeVerdict take_verdict_;
  SharedData& data_;
  WorkerSetup setup_;
  std::unique_ptr<WorkerProcess> worker_;
  std::shared_ptr<Dropped> dropped_ = std::make_shared<Dropped>();
  std::set<std::uint64_t> launched_;  ///< rigs, in this worker
  std::set<std::uint64_t> timed_;     ///< of these, since the last look for damage
  std::string damage_;                ///< that was found, but not told yet
  bool unchecked_ = false;            ///< launches were timed, and what they changed is unknown
  std::uint64_t generation_ = 0;
  std::uint64_t workspace_ = 0;  ///< the largest of a trial
  bool shares_cpu_ = false;
  bool scarce_ = false;     ///< the worker may take less memory than usual
  std::string_view cause_;  ///< why the worker before is gone; empty: there was none
  std::string lost_;        ///< why no worker will be started any more; empty: one can be
  Ask last_ = Ask::load;    ///< what the worker was asked for last
  Allowed allowed_;         ///< for that
  std::set<std::string> warned_;
  std::vector<std::string> warnings_;  ///< not told yet
  std::optional<bool> cold_, overlap_;
  TimeLimit deadline_;       ///< of keep_cold
  double longest_ = 0;       ///< seconds that a verification or a sample took; 0: none has ended
  std::size_t excused_ = 0;  ///< trials that ended a worker, but not the next one
  std::function<void()> give_up_;   ///< as renew()
  std::function<bool()> given_up_;  ///< likewise
  double answer_seconds_ = 0;       ///< as answer_within()
  TimeLimit answers_;               ///< when they are over
  std::optional<WorkerEnd> ended_;  ///< in step
};

}  // namespace kiln::runtime
