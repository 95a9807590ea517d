#include "runtime/support/guarded_launches.hpp"

#include "runtime/support/rank_exchange.hpp"

namespace kiln::runtime {

void GuardedLaunches::run(const std::function<void()>& launch) {
  if (failure_) std::rethrow_exception(failure_);
  if (!given_up_.empty()) throw GivenUp(given_up_);
  ++begun_;
  if (!guard_) return launch();
  bool launched = false;
  std::exception_ptr own;
  const auto watched = [&] {
    launched = true;
    try {
      launch();
    } catch (...) {
      own = std::current_exception();
      throw;  // the guard then ends the others' waits
    }
  };
  try {
    guard_(watched);
  } catch (...) {
    if (!launched) {
      failure_ = std::current_exception();
      throw;
    }
    given_up_ = failure_of([] { throw; });
  }
  if (!launched && given_up_.empty()) {
    failure_ = std::make_exception_ptr(
        UserError("RankOptions::guard has returned without calling the launches it was given"));
    std::rethrow_exception(failure_);
  }
  if (own) std::rethrow_exception(own);
  if (!given_up_.empty()) throw GivenUp(given_up_);
}

void GuardedLaunches::share_failure(const std::function<void()>& work) {
  const std::size_t before = begun_;
  try {
    work();
  } catch (...) {
    if (begun_ == before) try {
        run([] { throw; });
      } catch (...) {  // this rank's own failure is what its program hears of
      }
    throw;
  }
}

}  // namespace kiln::runtime
