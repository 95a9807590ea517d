// A tunable function on the fake device: each call takes what a test says, by the device's clock.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kiln/config.hpp"
#include "kiln/function.hpp"
#include "unit/runtime/engine_fixture.hpp"

namespace kiln::test {
enum class Method { ring, tree };
struct SumKnobs {
  int blocks;
  Method method;
};
struct SumProblem {
  int n;
};
}  // namespace kiln::test
KILN_CONFIG(kiln::test::SumKnobs, blocks, method)
KILN_PROBLEM(kiln::test::SumProblem, n)

namespace kiln::test {

using Sum = Function<SumKnobs, SumProblem, void(std::vector<float>&, int)>;

/// The fake device's clock, advanced by what runs on it; steady, so that tests are not timed.
class ClockedDevice final : public runtime::Device {
 public:
  ClockedDevice() {
    info_.id = "clocked";
    info_.name = "Clock 1";
    info_.target = {Target::Kind::host, "generic"};
    info_.fingerprint = {{"model", "Clock 1"}};
    info_.software = {{"driver", "1.0"}};
  }
  DeviceInfo& info() noexcept { return info_; }
  const DeviceInfo& info() const noexcept override { return info_; }
  std::shared_ptr<runtime::Module> load(const codegen::Binary&, const Launch&,
                                        std::span<const Launch>) override {
    throw EnvironmentError("no kernels here");
  }
  void launch(const runtime::Module&, const Launch&, Stream, void**) const override {
    throw EnvironmentError("no kernels here");
  }
  int occupancy(const runtime::Module&, int, unsigned) const override { return 1; }
  void* allocate(std::size_t bytes) override {
    ++live;
    return std::malloc(bytes);
  }
  void release(void* memory, std::size_t) noexcept override {
    --live;
    std::free(memory);
  }
  void copy_to_device(void* to, const void* from, std::size_t n) override {
    std::memcpy(to, from, n);
  }
  void copy_to_host(void* to, const void* from, std::size_t n) override {
    std::memcpy(to, from, n);
  }
  void copy_on_device(void* to, const void* from, std::size_t n, Stream) override {
    std::memcpy(to, from, n);
  }
  void fill(void* at, std::byte value, std::size_t n, Stream) override {
    ++fills;
    filled_while_timed = filled_while_timed || timing;
    std::memset(at, std::to_integer<int>(value), n);
  }
  void synchronize(Stream) override {
    if (!sync_error.empty()) throw EnvironmentError(std::exchange(sync_error, {}));
  }
  Stream tuning_stream() override { return {}; }
  double time(Stream, const std::function<void()>& enqueue) override {
    struct Timed {
      bool& on;
      ~Timed() { on = false; }
    } const timed{timing = true};
    const double start = now;
    enqueue();
    return now - start;
  }
  std::unique_ptr<runtime::Replay> capture(Stream, const std::function<void()>& enqueue) override {
    ++captures;
    enqueue();
    return nullptr;
  }
  bool lost() noexcept override { return is_lost; }
  bool shares_cpu() const noexcept override { return on_cpu; }

  double now = 0;  ///< seconds
  bool timing = false, is_lost = false, filled_while_timed = false;
  bool on_cpu = false;  ///< what is built and what is timed share it
  int fills = 0, captures = 0, live = 0;
  std::string sync_error;

 private:
  DeviceInfo info_;
};

/// One rank, or one process: a device, a runtime on a directory, and what its function was called
/// with.
struct Caller {
  std::shared_ptr<ClockedDevice> device = std::make_shared<ClockedDevice>();
  RuntimeOptions options;
  FunctionOptions function_options;
  std::map<std::pair<int, Method>, double> seconds;  ///< by knobs; others: 1 ms
  std::map<std::pair<int, Method>, int> calls;
  std::function<void(const SumKnobs&, std::vector<float>&)> work;  ///< in a call, before its end

  explicit Caller(const fs::path& directory) {
    options.store.directory = directory;
    options.compile_threads = 1;
    options.log = [this](LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex_);
      lines_.emplace_back(level, text);
    };
  }

  /// Adds n to every element.
  Sum sum() {
    return {.name = "sum",
            .space = Space<SumKnobs, SumProblem>{{2, Method::ring}}
                         .values(&SumKnobs::blocks, {1, 2, 4, 8})
                         .values(&SumKnobs::method, {Method::ring, Method::tree}),
            .call =
                [this](const SumKnobs& k, Stream, std::vector<float>& x, int n) {
                  const std::pair key{k.blocks, k.method};
                  {
                    std::lock_guard lock(mutex_);
                    ++calls[key];
                  }
                  if (work) work(k, x);
                  for (float& element : x) element += static_cast<float>(n);
                  const auto found = seconds.find(key);
                  device->now += found == seconds.end() ? 1e-3 : found->second;
                },
            .problem = [](const std::vector<float>&, int n) { return SumProblem{n}; }};
  }
  Runtime runtime() {
    return detail::Access::runtime(std::make_shared<detail::Engine>(
        options, device, [](Target::Kind) -> std::shared_ptr<codegen::Compiler> {
          throw EnvironmentError("no compiler here");
        }));
  }
  auto tuned(const Sum& function) { return kiln::tuned(runtime(), function, function_options); }

  int total() const {
    std::lock_guard lock(mutex_);
    int count = 0;
    for (const auto& [knobs, number] : calls) count += number;
    return count;
  }
  /// How often a part of a message was said at a level.
  int said(LogLevel level, std::string_view part) const {
    std::lock_guard lock(mutex_);
    int count = 0;
    for (const auto& [at, text] : lines_)
      count += at == level && text.find(part) != std::string::npos;
    return count;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

inline bool operator==(const SumKnobs& a, const SumKnobs& b) {
  return a.blocks == b.blocks && a.method == b.method;
}

}  // namespace kiln::test
