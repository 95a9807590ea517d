// Catch2 itself: of version 2 this is where all of it is compiled, once.
#define CATCH_CONFIG_RUNNER
#include <atomic>
#include <cstdio>
#include <thread>

#include "kiln_test.hpp"
#include "run_tests.hpp"

#if CATCH_VERSION_MAJOR >= 3
using Listener = Catch::EventListenerBase;
using Ended = void;
#else
using Listener = Catch::TestEventListenerBase;
using Ended = bool;  // unused by Catch2
#endif

namespace {

std::atomic<int> elsewhere{0};

/// Catch2's assertions are not thread-safe: an assertion on any thread but the main one fails the
/// program, whatever it asserts.
class MainThreadOnly final : public Listener {
 public:
  using Listener::Listener;
  // One or the other is called for every assertion.
  void assertionStarting(const Catch::AssertionInfo& info) override { expect_main(info.lineInfo); }
  Ended assertionEnded(const Catch::AssertionStats& stats) override {
    expect_main(stats.assertionResult.getSourceInfo());
    return Ended();
  }

 private:
  void expect_main(const Catch::SourceLineInfo& where) {
    if (std::this_thread::get_id() == main_) return;
    ++elsewhere;
    std::fprintf(stderr, "%s:%zu: an assertion on a thread other than the test's\n", where.file,
                 where.line);
  }

  const std::thread::id main_ = std::this_thread::get_id();
};
CATCH_REGISTER_LISTENER(MainThreadOnly)

}  // namespace

namespace kiln::test {

int run_tests(int argc, char** argv) {
  const int result = Catch::Session().run(argc, argv);
  return result == 0 && elsewhere > 0 ? 1 : result;
}

}  // namespace kiln::test
