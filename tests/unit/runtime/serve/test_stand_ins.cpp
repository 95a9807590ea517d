// What runs instead of the launchable that a problem does not have yet, in launches and in regions.
#include <atomic>
#include <thread>

#include "kiln/region.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/engine_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Launches and says which instance that was; empty where it was none.
class Launcher {
 public:
  Launcher(Process& process, DynamicTuned handle) : handle_(std::move(handle)) {
    process.device->on_launch = [this, here = std::this_thread::get_id()](const auto& entry,
                                                                          void**) {
      if (std::this_thread::get_id() == here) entry_ = entry;
    };
  }

  std::string launched(int n) {
    std::vector<float> x(static_cast<std::size_t>(n)), y(x);
    entry_.clear();
    handle_({}, Values{n}, y.data(), static_cast<const float*>(x.data()), n);
    return entry_;
  }
  std::string in_a_region(int n) {
    std::vector<float> x(static_cast<std::size_t>(n)), y(x);
    entry_.clear();
    Region production;
    production(handle_, {}, Values{n}, y.data(), static_cast<const float*>(x.data()), n);
    return entry_;
  }

 private:
  DynamicTuned handle_;
  std::string entry_;
};

void make(const fs::path& directory, Mode mode, int n, const KernelDefinition& kernel) {
  Process process(directory);
  process.options.mode = mode;
  process.of(8).seconds = 0.5e-3;
  CHECK_FALSE(process.runtime().tuned(kernel).prepare({n}));
}

}  // namespace

TEST_CASE("while a problem is tuned its default is launched, in a region what is on record",
          "[runtime][stand_ins]") {
  Directory directory;
  make(directory.path(), Mode::tune_now, 60, doubling({1, 2, 8}));
  Process process(directory.path());
  process.of(16).seconds = 0.25e-3;
  process.options.while_busy = WhileBusy::use_default;
  std::atomic<bool> inside{false}, go{false};
  process.compiler->on_compile = [&](const codegen::Source&) {
    inside = true;
    while (!go) std::this_thread::yield();
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling({1, 2, 8, 16}));  // 16 is new: it must be compiled
  Launcher launcher(process, handle);
  std::thread other([&] { handle.prepare({60}); });
  while (!inside) std::this_thread::yield();
  CHECK(launcher.launched(60) == "k<2, 0>");
  CHECK(launcher.launched(60) == "k<2, 0>");
  CHECK(launcher.in_a_region(60) == "k<8, 0>");
  CHECK(launcher.launched(60) == "k<8, 0>");  // the better one of the two
  go = true;
  other.join();
  CHECK(launcher.launched(60) == "k<16, 0>");
  CHECK(launcher.in_a_region(60) == "k<16, 0>");
}

TEST_CASE("a launch that another tuning leaves no time takes what is on record until it can tune",
          "[runtime][stand_ins]") {
  Directory directory;
  make(directory.path(), Mode::tune_now, 60, doubling({1, 2, 8}));
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  process.of(16).seconds = 0.25e-3;
  process.options.while_busy = GENERATE(WhileBusy::use_default, WhileBusy::wait);
  process.options.tuning.max_seconds = patient(1.5);
  const bool retunes = GENERATE(false, true);
  process.options.tuning.retune = retunes;
  std::atomic<bool> inside{false}, go{false};
  process.compiler->on_compile = [&](const codegen::Source& source) {
    if (source.kernel != "slow" || source.entry != "k<2, 0>") return;  // its default: waited for
    inside = true;
    while (!go) std::this_thread::yield();
  };
  const Runtime runtime = process.runtime();
  // 16 is new: what is on record answers no more.
  const auto handle = runtime.tuned(retunes ? doubling({1, 2, 8}) : doubling({1, 2, 8, 16}));
  Launcher launcher(process, handle);
  KernelDefinition slow = doubling({1, 2});
  slow.name = "slow";
  const auto busy = runtime.tuned(slow);
  std::thread other([&] { busy.prepare({60}); });
  while (!inside) std::this_thread::yield();
  CHECK(launcher.launched(60) == "k<8, 0>");
  CHECK(launcher.launched(60) == "k<8, 0>");
  CHECK(runtime.statistics().tuned == 0);
  go = true;
  other.join();
  CHECK(launcher.launched(60) == (retunes ? "k<8, 0>" : "k<16, 0>"));
  CHECK(runtime.statistics().tuned == 2);
}

TEST_CASE("launches use what a tuning that only waited finds on record", "[runtime][stand_ins]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  REQUIRE(handle.tune({60}).winner().config == Values{2, 0});
  std::atomic<bool> inside{false}, go{false};
  process.compiler->on_compile = [&](const codegen::Source&) {
    inside = true;
    go.wait(false);
  };
  KernelDefinition slow = doubling({16}, 16);
  slow.name = "slow";
  const auto busy = runtime.tuned(slow);
  std::thread other([&] { busy.prepare({60}); });
  while (!inside) std::this_thread::yield();
  TuneOptions options;
  options.retune = true;
  {
    Process second(directory.path());
    second.of(8).seconds = 0.5e-3;
    const TuneResult better = second.runtime().tuned(doubling()).tune({60}, options);
    CHECK(better.winner().config == Values{8, 0});
  }
  options.max_seconds = 0.02;
  CHECK(handle.tune({60}, options).winner().config == Values{8, 0});
  CHECK(handle.config({60}) == Values{8, 0});
  go = true;
  go.notify_all();
  other.join();
}

TEST_CASE("what a region can load again is missing to launches until it is prepared",
          "[runtime][stand_ins]") {
  Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::lookup_only;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Launcher launcher(process, handle);
  CHECK_THROWS_AS(launcher.launched(50), MissingError);
  CHECK_THROWS_AS(launcher.in_a_region(50), MissingError);
  make(directory.path(), Mode::untuned, 50, doubling());
  CHECK_THROWS_AS(launcher.launched(50), MissingError);
  CHECK(launcher.in_a_region(50) == "k<2, 0>");
  CHECK_THROWS_AS(launcher.launched(50), MissingError);
  CHECK_FALSE(handle.prepare({50}));
  CHECK(launcher.launched(50) == "k<2, 0>");
}

TEST_CASE("a run that collects skips what is missing until it is prepared",
          "[runtime][stand_ins]") {
  Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::collect;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Launcher launcher(process, handle);
  CHECK(handle.prepare({50}));
  CHECK(launcher.launched(50).empty());
  CHECK(launcher.launched(60).empty());
  CHECK(handle.config({60}) == Values{2, 0});
  CHECK_THROWS_AS(launcher.in_a_region(60), MissingError);
  CHECK(runtime.wanted().wanted.size() == 2);
  make(directory.path(), Mode::untuned, 50, doubling());
  CHECK(launcher.launched(60).empty());
  CHECK_FALSE(handle.prepare({60}));
  CHECK(launcher.launched(60) == "k<2, 0>");
}
