// Tuning behind the launches on another device of the same kind, which needs no windows.
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "background_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// A process with two devices: one that serves, and `other` for the background.
struct WithAnother : Served {
  explicit WithAnother(const fs::path& directory) : Served(directory) {
    other->info().id = "other";
    other->compute = compute_doubling;
  }
  Runtime runtime() {
    return detail::Access::runtime(
        runtime::make_engine(options, device, [this](Target::Kind) { return compiler; }, other));
  }
  std::string refused() {
    try {
      runtime();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  std::shared_ptr<FakeDevice> other = std::make_shared<FakeDevice>(script);
};

}  // namespace

TEST_CASE("another device measures while no window is open", "[runtime][background]") {
  Directory directory;
  WithAnother process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const int before = process.device->live_allocations;
  run_once(handle, 60);
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({60}) == Values{8, 0});
  CHECK(runtime.statistics().tuned == 1);
  CHECK(process.other->timings > 0);
  // The one that serves has loaded what it launches, and nothing else has happened there.
  CHECK(process.device->timings == 0);
  CHECK(process.device->launches == 1);
  CHECK(process.device->loads == 2);
  CHECK(process.device->live_allocations == before);
  const int there = process.other->launches;
  run_once(handle, 60);
  CHECK(process.device->launches == 2);
  CHECK(process.other->launches == there);

  // The record is of both devices, as they are of one kind.
  Served next(directory.path());
  const Runtime second = next.runtime();
  const auto again = second.tuned(doubling());
  run_once(again, 60);
  CHECK(again.config({60}) == Values{8, 0});
  CHECK(second.settled());
}

TEST_CASE("what another device has found can wait for a commit", "[runtime][background]") {
  Directory directory;
  WithAnother process(directory.path());
  process.options.background.publish = Publish::at_commit;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  std::size_t changes = 0;
  REQUIRE(becomes([&] { return (changes += runtime.commit().changes.size()) > 0; }));
  CHECK(changes == 1);
  CHECK(handle.config({60}) == Values{8, 0});
  CHECK(process.device->timings == 0);
}

TEST_CASE("a window that closes does not wait for another device", "[runtime][background]") {
  Directory directory;
  WithAnother process(directory.path());
  std::atomic<bool> measuring = false, go_on = false;
  process.other->on_launch = [&](const std::string&, void**) {
    measuring = true;
    while (!go_on) std::this_thread::yield();
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  const bool came = becomes([&] { return measuring.load(); });
  runtime.window().close();  // else this would wait for ever
  go_on = true;
  CHECK(came);
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("a candidate that takes another device with it ends the background, not the program",
          "[runtime][background]") {
  Directory directory;
  WithAnother process(directory.path());
  process.of(4).launch_error = "device lost";
  process.of(8).launch_error = "device lost";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(process.other->is_lost);
  CHECK_FALSE(process.device->is_lost);
  run_once(handle, 60);
  CHECK(handle.config({60}) == Values{2, 0});
  // Other problems run, untuned, and nobody is blamed for the device that is gone.
  run_once(handle, 600);
  CHECK(handle.config({600}) == Values{2, 0});
  CHECK(runtime.settled());  // nothing better is looked for
  // So what is in use is final, also for captures.
  for (const auto& core : detail::Access::engine(runtime)->serving().handles())
    for (const Values& problem : {Values{60}, Values{600}}) {
      const detail::Ready ready = core->find(problem);
      REQUIRE(ready);
      CHECK_FALSE(ready->provisional);
    }
  const auto known = handle.known({60});
  REQUIRE(known);
  CHECK(known->count(CandidateStatus::crashed) == 1);
}

TEST_CASE("what waits for a commit outlives the device that has found it",
          "[runtime][background]") {
  Directory directory;
  WithAnother process(directory.path());
  process.options.background.publish = Publish::at_commit;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  REQUIRE(becomes([&] { return runtime.statistics().tuned == 1; }));
  for (int a : {4, 8}) process.of(a).launch_error = "device lost";
  run_once(handle, 600);
  REQUIRE(becomes([&] { return runtime.metrics().background_errors_total > 0; }));
  CHECK_FALSE(runtime.settled());
  std::size_t changes = 0;
  REQUIRE(becomes([&] {
    changes += runtime.commit().changes.size();
    return runtime.settled();
  }));
  CHECK(changes == 1);
  CHECK(handle.config({60}) == Values{8, 0});
  CHECK(handle.config({600}) == Values{2, 0});
}

TEST_CASE("another device must be another one, and of the same kind", "[runtime][background]") {
  Directory directory;
  WithAnother process(directory.path());
  SECTION("which it is") { CHECK(process.refused() == "nothing was thrown"); }
  SECTION("the runtime's own") {
    process.other->info().id = process.device->info().id;
    CHECK(process.refused().find("the runtime's own") != std::string::npos);
  }
  SECTION("another model") {
    process.other->info().fingerprint = {{"model", "Fake 2000"}};
    CHECK(process.refused().find("model is Fake 2000, and Fake 1000 for the runtime's device") !=
          std::string::npos);
  }
  SECTION("with another limit") {
    process.other->info().fingerprint.push_back({"reserved_multiprocessors", "100"});
    CHECK(process.refused().find("another kind") != std::string::npos);
  }
  SECTION("another architecture") {
    process.other->info().target.arch = "special";
    CHECK(process.refused().find("it runs special") != std::string::npos);
  }
}
