// What threads of a test find wrong. Catch2's assertions belong to the test's own thread
// (tests/catch_session.cpp); this takes their place on others.
#pragma once

#include <mutex>
#include <source_location>
#include <string>
#include <string_view>

namespace kiln::test {

/// Safe to use from several threads at once.
class Findings {
 public:
  /// Notes the caller's line unless `right`.
  void check(bool right, std::source_location where = std::source_location::current()) {
    if (right) return;
    const std::lock_guard lock(mutex_);
    lines_ += "line " + std::to_string(where.line()) + "; ";
  }
  /// Checks that `call` throws an `Error` whose message contains `part`.
  template <class Error, class Call>
  void check_throws(const Call& call, std::string_view part = "",
                    std::source_location where = std::source_location::current()) {
    bool right = false;
    try {
      call();
    } catch (const Error& error) {
      right = std::string_view(error.what()).find(part) != std::string_view::npos;
    } catch (...) {
    }
    check(right, where);
  }
  /// The lines noted so far: empty if nothing is wrong. The test asserts that once its threads have
  /// ended.
  std::string wrong() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::string lines_;
};

}  // namespace kiln::test
