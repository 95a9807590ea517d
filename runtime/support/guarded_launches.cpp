#include "runtime/support/guarded_launches.hpp"

#include "runtime/support/foreign_exception.hpp"

namespace kiln::runtime {

GuardedEnd launch_guarded(const Guard& guard, const std::function<void()>& launches) {
  GuardedEnd end;
  bool launched = false;
  const auto watched = [&] {
    launched = true;
    try {
      launches();
    } catch (...) {
      end.own = std::current_exception();
      throw;  // the guard then ends the others' waits
    }
  };
  try {
    guard ? guard(watched) : watched();
  } catch (const std::exception& error) {
    if (!launched) throw;
    end.given_up = *error.what() ? error.what() : "unknown";
  } catch (...) {
    if (!launched) throw;
    end.given_up = kForeignException;
  }
  return end;
}

}  // namespace kiln::runtime
