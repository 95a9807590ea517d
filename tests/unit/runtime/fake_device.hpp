// A device, a compiler and a kernel without hardware. The fake compiler's code is the source's
// entry text, so that a launch knows its config and can compute, cheat, or throw as a test says.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codegen/compiler.hpp"
#include "fake_module.hpp"
#include "kiln/definition.hpp"
#include "kiln/error.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/device/array_digest.hpp"
#include "runtime/device/device.hpp"
#include "script.hpp"

namespace kiln::test {

/// Launches written down, to be made later.
class FakeReplay final : public runtime::Replay {
 public:
  std::vector<std::function<void()>> launches;
  void run(Stream) override {
    for (const auto& launch : launches) launch();
  }
};

/// Measures by a clock that the test moves.
class FakeStopwatch final : public runtime::Stopwatch {
 public:
  explicit FakeStopwatch(const std::atomic<double>& now) : now_(now) {}
  void start(Stream) override { start_ = now_; }
  void stop(Stream) override { stop_ = now_; }
  double seconds() override { return stop_ - start_; }

 private:
  const std::atomic<double>& now_;
  double start_ = 0, stop_ = 0;
};

/// Device memory is the host's. The clock counts what the script says launches take.
class FakeDevice : public runtime::Device {
 public:
  explicit FakeDevice(std::shared_ptr<Script> what) : script(std::move(what)) {
    info_.id = "fake";
    info_.name = "Fake 1000";
    info_.target = {Target::Kind::host, "generic"};
    info_.limits.max_grid = {1u << 20, 65535, 65535};
    info_.fingerprint = {{"model", "Fake 1000"}};
    info_.software = {{"driver", "1.0"}};
  }

  const DeviceInfo& info() const noexcept override { return info_; }
  DeviceInfo& info() noexcept { return info_; }

  std::shared_ptr<runtime::Module> load(const codegen::Binary& binary, const Launch&,
                                        std::span<const Launch> = {}) override {
    std::string entry(reinterpret_cast<const char*>(binary.code.data()), binary.code.size());
    std::vector<std::string> steps;
    for (std::size_t end; (end = entry.rfind('\n')) != std::string::npos; entry.resize(end))
      steps.insert(steps.begin(), entry.substr(end + 1));
    Behaviour& behaviour = (*script)[entry];
    if (on_load) on_load(entry);
    if (const std::string why = is_lost ? "device lost" : behaviour.load_error; !why.empty())
      throw EnvironmentError(why);
    ++loads;
    auto kernel = std::make_shared<FakeKernel>(entry, behaviour, live_kernels, modules_apart);
    for (const std::string& step : steps)
      kernel->steps.push_back(
          std::make_unique<FakeKernel>(step, (*script)[step], live_kernels, modules_apart));
    return kernel;
  }

  void launch(const runtime::Module& loaded, const Launch& launch, Stream,
              void** args) const override {
    const auto& kernel = static_cast<const FakeKernel&>(loaded);
    if (recording_) {
      recording_->launches.push_back(
          [this, &loaded, launch, args] { this->launch(loaded, launch, {}, args); });
      return;
    }
    const Behaviour& b = kernel.behaviour;
    launches.fetch_add(1, std::memory_order_relaxed);
    if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0)
      throw EnvironmentError("launch of an empty grid");
    if (!b.launch_error.empty() && kernel.launches++ >= b.fails_after)
      is_lost |= b.launch_error == "device lost";
    if (is_lost || (!b.launch_error.empty() && kernel.launches > b.fails_after))
      throw EnvironmentError(is_lost ? "device lost" : b.launch_error);
    if (on_launch) on_launch(kernel.entry, args);
    if (on_description) on_description(launch);
    if (b.run_with)
      b.run_with(args, kernel.variables);
    else if (b.run)
      b.run(args);
    else if (compute)
      compute(args);
    now_.fetch_add(b.seconds * pace, std::memory_order_relaxed);
  }

  std::vector<runtime::ModuleVariable> variables(const runtime::Module& loaded) const override {
    std::vector<runtime::ModuleVariable> found;
    for (auto& [name, bytes] : static_cast<const FakeKernel&>(loaded).variables)
      found.push_back({name, bytes.data(), bytes.size()});
    return found;
  }

  int occupancy(const runtime::Module& loaded, int, unsigned) const override {
    return static_cast<const FakeKernel&>(loaded).behaviour.occupancy;
  }

  std::optional<std::int64_t> available() const override {
    if (!capacity) return free_memory;
    return static_cast<std::int64_t>(*capacity - std::min(*capacity, in_use.load()));
  }
  std::size_t granularity() const noexcept override { return page; }
  void* allocate(std::size_t bytes) override {
    if (bytes > memory || (capacity && in_use + bytes + taken_by_others > *capacity)) {
      ++refused;
      throw EnvironmentError("out of device memory");
    }
    ++live_allocations;
    allocated += bytes;
    in_use += bytes;
    peak = std::max(peak.load(), in_use.load());
    return std::malloc(bytes);
  }
  void release(void* address, std::size_t bytes) noexcept override {
    --live_allocations;
    in_use -= bytes;
    std::free(address);
  }
  void copy_to_device(void* to, const void* from, std::size_t n) override {
    std::memcpy(to, from, n);
  }
  void copy_to_host(void* to, const void* from, std::size_t n) override {
    downloaded += n;
    std::memcpy(to, from, n);
  }
  std::vector<std::uint64_t> digests(const void* first, std::size_t bytes, std::size_t stride,
                                     std::size_t count) override {
    std::vector<std::uint64_t> found;
    for (std::size_t i = 0; has_digests && i < count; ++i) {
      found.push_back(
          runtime::array_digest({static_cast<const std::byte*>(first) + i * stride, bytes}));
    }
    return found;
  }
  void copy_on_device(void* to, const void* from, std::size_t n, Stream) override {
    std::memcpy(to, from, n);
  }
  void fill(void* at, std::byte value, std::size_t n, Stream) override {
    if (on_fill) on_fill(at, n);
    std::memset(at, static_cast<int>(value), n);
  }
  bool capturing(Stream stream) const override { return captured && stream.handle == captured; }
  void synchronize(Stream) override {}
  Stream tuning_stream() override { return {}; }
  double time(Stream, const std::function<void()>& enqueue) override {
    ++timings;
    now_ = 0;
    timing = true;
    try {
      enqueue();
    } catch (...) {
      timing = false;
      throw;
    }
    timing = false;
    return clock ? clock(now_.load()) : now_.load();
  }
  void pass(double seconds) { now_.fetch_add(seconds, std::memory_order_relaxed); }  // no kernel's
  std::unique_ptr<runtime::Stopwatch> stopwatch() override {
    return std::make_unique<FakeStopwatch>(now_);
  }
  std::unique_ptr<runtime::Replay> capture(Stream, const std::function<void()>& enqueue) override {
    if (!records) return nullptr;
    auto replay = std::make_unique<FakeReplay>();
    recording_ = replay.get();
    enqueue();
    recording_ = nullptr;
    ++captures;
    return replay;
  }
  bool shares_cpu() const noexcept override { return host; }
  bool lost() noexcept override { return is_lost; }

  std::shared_ptr<Script> script;
  bool records = false;                     ///< can capture()
  bool has_digests = false;                 ///< of its memory
  std::atomic<std::size_t> downloaded = 0;  ///< bytes
  bool host = false;                        ///< shares the CPU
  mutable bool is_lost = false;             ///< from a launch on that fails with "device lost"
  std::function<void(void* at, std::size_t bytes)> on_fill;
  std::atomic<bool> timing = false;        ///< inside time()
  std::atomic<std::size_t> allocated = 0;  ///< bytes, over all allocations ever
  std::atomic<int> captures = 0;
  void* captured = nullptr;                  ///< the stream that somebody captures
  std::function<void(void** args)> compute;  ///< what a right instance does
  std::function<void(const std::string& entry, void** args)> on_launch;
  std::function<void(const Launch&)> on_description;  ///< what a launch is described by
  std::function<void(const std::string& entry)> on_load;
  std::function<double(double)> clock;  ///< what the clock shows for this many seconds
  double pace = 1;                      ///< of the whole machine
  std::size_t memory = std::size_t{1} << 30;
  std::optional<std::int64_t> free_memory;        ///< what it says
  std::optional<std::size_t> capacity;            ///< bytes; it then says what is free of them
  std::size_t page = 1;                           ///< granularity()
  std::atomic<std::size_t> taken_by_others = 0;   ///< of what it says is free
  std::atomic<std::size_t> in_use = 0, peak = 0;  ///< bytes
  std::atomic<int> refused = 0;                   ///< allocations
  bool modules_apart = false;  ///< each module is as if it had variables of its own
  std::atomic<int> live_kernels{0}, live_allocations{0}, loads{0}, timings{0};
  mutable std::atomic<int> launches{0};

 private:
  DeviceInfo info_;
  FakeReplay* recording_ = nullptr;
  mutable std::atomic<double> now_{0};
};

}  // namespace kiln::test
