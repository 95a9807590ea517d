// Wrong requests, ranks that do not come, and use after the end.
#include <atomic>
#include <limits>

#include "findings.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "ranks_on_host.hpp"
#include "runtime/device/host/shared_memory.hpp"
#include "runtime/device/host_memory_device.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// A host device that says it is something else, or that nobody reaches.
class OddDevice final : public runtime::HostMemoryDevice {
 public:
  bool reachable = true, full = false;
  DeviceInfo description = runtime::host_info();

  const DeviceInfo& info() const noexcept override { return description; }
  std::shared_ptr<runtime::Module> load(const codegen::Binary&, const Launch&,
                                        std::span<const Launch>) override {
    return nullptr;
  }
  void launch(const runtime::Module&, const Launch&, Stream, void**) const override {}
  int occupancy(const runtime::Module&, int, unsigned) const override { return 0; }
  void synchronize(Stream) override {}
  Stream tuning_stream() override { return {}; }
  double time(Stream, const std::function<void()>&) override { return 0; }
  bool shares_cpu() const noexcept override { return true; }
  runtime::PeerAccess* peer_access() noexcept override { return reachable ? &access_ : nullptr; }

 private:
  struct Access final : runtime::PeerAccess {
    explicit Access(OddDevice& owner) : device(owner), base(runtime::make_host_peer_access()) {}
    std::unique_ptr<runtime::PeerMemory> share(std::size_t bytes,
                                               runtime::PeerScope scope) override {
      if (device.full) throw EnvironmentError("no memory left");
      return base->share(bytes, scope);
    }
    std::unique_ptr<runtime::PeerMemory> open(const runtime::PeerHandle& handle,
                                              std::size_t bytes) override {
      return base->open(handle, bytes);
    }
    void reach(PeerAccess&) override {
      if (!device.reaches) throw EnvironmentError("no way to get there");
    }
    std::unique_ptr<runtime::PeerMemory> map_host(void* memory, std::size_t bytes) override {
      return base->map_host(memory, bytes);
    }
    OddDevice& device;
    std::unique_ptr<runtime::PeerAccess> base;
  };
  Access access_{*this};

 public:
  bool reaches = true;
};

/// What each of three ranks gets when rank 1 asks for something else.
std::vector<std::string> refused(const SymmetricOptions& others, const SymmetricOptions& odd) {
  const Ends ends = ends_of(3);
  return on_ranks(ends, [&](int rank, Communicator&) {
    symmetric(ends, rank, rank == 1 ? odd : others)->close();
  });
}

std::vector<std::string> refused(const std::function<void(OddDevice&)>& spoil) {
  const Ends ends = ends_of(3);
  return on_ranks(ends, [&](int rank, Communicator&) {
    const auto device = std::make_shared<OddDevice>();
    if (rank == 1) spoil(*device);
    detail::SymmetricCore(device, ends[static_cast<std::size_t>(rank)], {.bytes = 8}).close();
  });
}

void check_all(const std::vector<std::string>& texts, const std::string& part) {
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(has(text, part));
  }
}

/// So that no thread starts too late for what comes next.
bool all_here(Communicator& ranks) { return !ranks.gather({}, {}, deadline_in(120)); }

}  // namespace

TEST_CASE("what ranks ask for differs: all hear of it, with ranks and values", "[symmetric]") {
  check_all(refused({.bytes = 64}, {.bytes = 128}), "rank 1 has 128 bytes, but rank 0 has 64");
  check_all(refused({.bytes = 64, .flags = 2}, {.bytes = 64, .flags = 3}),
            "rank 1 has 3 flags, but rank 0 has 2");
  check_all(refused({.bytes = 64}, {.bytes = 0}), "rank 1 has 0 bytes, but rank 0 has 64");
  check_all(refused({.bytes = 64}, {.bytes = 64, .seconds = -1}),
            "rank 1: SymmetricOptions::seconds");
  check_all(
      refused({.bytes = 64}, {.bytes = 64, .seconds = std::numeric_limits<double>::quiet_NaN()}),
      "rank 1: SymmetricOptions::seconds");
  check_all(refused([](OddDevice& d) { d.description.limits.compute_capability = 90; }),
            "rank 1 has cuda as its kind of device, but rank 0 has host");
  check_all(refused([](OddDevice& d) { d.reachable = false; }),
            "rank 1: other ranks cannot reach the memory of device host");
}

TEST_CASE("requests that make no sense are refused on all ranks", "[symmetric]") {
  check_all(refused({.bytes = 0}, {.bytes = 0}), "SymmetricOptions::bytes is 0");
  check_all(refused({.bytes = 8, .flags = 0}, {.bytes = 8, .flags = 0}),
            "SymmetricOptions::flags is 0");
  const SymmetricOptions flags{.bytes = 8, .flags = 1u << 24};
  check_all(refused(flags, flags), "16777216 flags for each of 3 ranks are too many");
  const SymmetricOptions huge{.bytes = std::numeric_limits<std::size_t>::max()};
  check_all(refused(huge, huge), "bytes are too many");
  const SymmetricOptions large{.bytes = std::size_t{1} << 46};
  check_all(refused(large, large), "symmetric memory");
  CHECK_THROWS_AS(detail::SymmetricCore(runtime::make_host_device(), nullptr, {.bytes = 8}),
                  UserError);
}

TEST_CASE("a rank that gets no memory, or does not reach the others, is named to all",
          "[symmetric]") {
  check_all(refused([](OddDevice& d) { d.full = true; }), "rank 1 failed: no memory left");
  check_all(refused([](OddDevice& d) { d.reaches = false; }), "rank 1 failed: no way to get there");
}

TEST_CASE("a rank that does not join is named at the deadline", "[symmetric]") {
  const Ends ends = ends_of(3);
  const auto thrown = on_ranks(ends, [&](int rank, Communicator& ranks) {
    if (!all_here(ranks)) throw EnvironmentError("a thread has not started");
    if (rank != 2) symmetric(ends, rank, {.bytes = 8, .seconds = 3});
  });
  CHECK(has(thrown[0], "rank 2 is late"));
  CHECK(has(thrown[1], "rank 2 is late"));
}

TEST_CASE("a rank that is gone before close() is named, and the rest can still be closed",
          "[symmetric]") {
  Ends ends = ends_of(3);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8});
    if (rank == 2) {
      ends[2].reset();  // this rank's end goes with its memory, which it never closes
      return;
    }
    findings.check_throws<EnvironmentError>([&] { memory->close(); }, "rank 2 is gone");
    findings.check_throws<UserError>([&] { memory->close(); }, "closed twice");
  });
}

TEST_CASE("a rank that fails and resets meets one in a barrier, and both go on", "[symmetric]") {
  const Ends ends = ends_of(2);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8});
    if (rank == 0)
      findings.check_throws<UserError>(
          [&] { memory->within(deadline_in(1000), [] { throw UserError("no such kernel"); }); });
    else
      findings.check_throws<EnvironmentError>([&] { memory->barrier(); }, "rank 0 gave up");
    memory->reset();
    memory->barrier();
    memory->within(deadline_in(120), [&] { findings.check(peer_barrier(*memory->peers(), 0, 1)); });
    // Nobody has given up this time.
    if (rank == 1)
      findings.check_throws<EnvironmentError>([&] { memory->barrier(); },
                                              "rank 0 has left this barrier");
    memory->reset();
    memory->within(deadline_in(120), [&] { findings.check(peer_barrier(*memory->peers(), 0, 1)); });
    if (rank == 0)
      findings.check_throws<EnvironmentError>([&] { memory->barrier(); },
                                              "rank 1 has left this barrier");
    memory->close();
  });
}

TEST_CASE("ranks that come for different things are named", "[symmetric]") {
  const Ends ends = ends_of(3);
  check_on_ranks(ends, [&](int rank, Communicator& ranks, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8});
    if (rank == 0)
      findings.check_throws<EnvironmentError>([&] { memory->reset(); }, "rank 2 is in close()");
    else if (rank == 1)
      try {
        memory->barrier();
        findings.check(false);
      } catch (const EnvironmentError& error) {  // close() of rank 2 may already have given up
        findings.check(has(error.what(), "rank 0 has left this barrier") ||
                       has(error.what(), "rank 2 gave up"));
      }
    else
      findings.check_throws<EnvironmentError>([&] { memory->close(); }, "rank 0 is in reset()");
    findings.check(all_here(ranks));  // memory that is destroyed before gives up for all
  });
}

TEST_CASE("another thread gives up while ranks close", "[symmetric]") {
  const Ends ends = ends_of(2);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings&) {
    for (int round = 0; round < 20; ++round) {
      const auto memory = symmetric(ends, rank, {.bytes = 8});
      std::atomic<bool> begun{false}, closed{false};
      std::thread other([&] {
        for (; !closed; begun = true) {
          memory->abort();
          try {
            static_cast<void>(memory->aborted());
            static_cast<void>(memory->stalled());
          } catch (const UserError&) {  // closed by now
          }
        }
      });
      while (!begun) std::this_thread::yield();
      memory->close();
      closed = true;
      other.join();
    }
  });
}

TEST_CASE("memory that is destroyed unclosed gives up for all", "[symmetric]") {
  const Ends ends = ends_of(2);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8});
    if (rank == 0) return;
    findings.check_throws<EnvironmentError>(
        [&] {
          memory->within(deadline_in(1000),
                         [&] { findings.check(!wait(*memory->peers(), 0, 0, 1)); });
        },
        "rank 0 gave up");
  });
}

TEST_CASE("memory whose close() fails gives up for all", "[symmetric]") {
  const Ends ends = ends_of(2);
  check_on_ranks(ends, [&](int rank, Communicator&, Findings& findings) {
    const auto memory = symmetric(ends, rank, {.bytes = 8, .seconds = 1});
    if (rank == 0) {
      findings.check_throws<EnvironmentError>(
          [&] {
            memory->within(deadline_in(1000),
                           [&] { findings.check(!wait(*memory->peers(), 1, 0, 1)); });
          },
          "rank 1 gave up");
    } else {
      findings.check_throws<EnvironmentError>([&] { memory->close(); }, "rank 0");
    }
  });
}

TEST_CASE("after close() everything is refused", "[symmetric]") {
  const Ends ends = ends_of(1);
  const auto memory = symmetric(ends, 0, {.bytes = 8});
  CHECK_THROWS_AS(memory->data(1), UserError);
  CHECK_THROWS_AS(memory->data(-1), UserError);
  memory->close();
  CHECK_THROWS_AS(memory->close(), UserError);
  CHECK_THROWS_AS(memory->data(0), UserError);
  CHECK_THROWS_AS(memory->peers(), UserError);
  CHECK_THROWS_AS(memory->within(deadline_in(1), [] {}), UserError);
  CHECK_THROWS_AS(memory->aborted(), UserError);
  CHECK_THROWS_AS(memory->stalled(), UserError);
  CHECK_THROWS_AS(memory->barrier(), UserError);
  CHECK_THROWS_AS(memory->reset(), UserError);
  memory->abort();
}
