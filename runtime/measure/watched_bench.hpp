// A bench whose trials run in this process, where nothing can end them: they have a deadline all
// the same.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "runtime/measure/bench.hpp"
#include "runtime/measure/call_watch.hpp"

namespace kiln::runtime {

class WatchedBench final : public TrialBench {
 public:
  using Tell = std::function<void(const Overdue&)>;
  /// What keeps others from being timed at the same time, around each trial.
  struct Alone {
    std::function<void()> begin;
    /// False: somebody was, so a sample has to be taken again, unless other ranks take it, too.
    std::function<bool()> end;
  };

  /// What becomes of a trial that takes longer than it may.
  enum class Late {
    rejected,  ///< it is `hung`, even if it returns
    told       ///< nothing else
  };
  /// @param limit seconds for one verification or one sample. 0: usual_limit(), after which a trial
  /// is told of, but not rejected.
  /// @param tell what is told: on another thread while the trial runs, once more on this one
  /// when it has returned. The inner bench must outlive this.
  /// @param alone empty: nothing has to be done
  WatchedBench(TrialBench& inner, double limit, Tell tell, Alone alone = {},
               Late late = Late::rejected);

  /// The inner bench's rig of one of this bench's.
  static const Rig& inner(const Rig& rig);

  /// Is told first. Empty: nobody else is.
  void when_overdue(Tell tell) { also_tell_ = std::move(tell); }

  void expect() override { inner_.expect(); }
  bool knows_results() const noexcept override { return inner_.knows_results(); }
  std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial& trial) override;
  Verdict verify(Rig& rig) override;
  void keep_cold(bool cold, const TimeLimit& deadline) override {
    inner_.keep_cold(cold, deadline);
  }
  void let_overlap(bool overlap) override { inner_.let_overlap(overlap); }
  void keep_in_step(GuardedLaunches* launches) override {
    in_step_ = launches != nullptr;
    inner_.keep_in_step(launches);
  }
  std::size_t most_launches(const Rig& rig) const override;
  double time(Rig& rig, std::size_t launches) override;
  bool record(Rig& rig, std::size_t launches) override;
  void forget_recording(Rig& rig) override;
  double host_seconds(Rig& rig) override;
  std::string repair() override { return inner_.repair(); }
  bool take_unchecked() noexcept override { return inner_.take_unchecked(); }
  bool lost() noexcept override { return inner_.lost(); }
  bool shares_cpu() const noexcept override { return inner_.shares_cpu(); }

 private:
  struct WatchedRig;

  template <class Work>
  auto watched(Rig& rig, const Work& work);
  template <class Work>
  auto alone(bool again, const Work& work);
  void tell(double seconds, bool returned);

  TrialBench& inner_;
  const double limit_;
  const bool rejects_;
  const Tell tell_;
  const Alone alone_;
  Tell also_tell_;
  bool in_step_ = false;
  double longest_ = 0;                   ///< seconds that a call took; 0: none has ended
  const WatchedRig* at_work_ = nullptr;  ///< in a call
  double allowed_ = 0;                   ///< for that call
  bool told_ = false;                    ///< of that call
  CallWatch watch_;                      ///< last: its thread uses what is above
};

}  // namespace kiln::runtime
