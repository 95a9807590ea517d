// Tuned kernels that memory bounds, in turns with the device's own copy of as many bytes: what they
// read and write is half read and half written by the copy. Both find a cold cache.
//
//   memory_bound [SECONDS]    for tuning each problem
#include <cstdlib>
#include <exception>
#include <random>
#include <string>

#include "kiln/kernels/residual_add.hpp"
#include "kiln/kernels/rmsnorm.hpp"
#include "kiln/kernels/vector_add.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/device/cache_flush.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"

namespace {

using kiln::bfloat16;
using kiln::Stream;

constexpr int kRounds = 40;

/// As good as random to a memory: zeros would cost it less power.
std::vector<std::byte> noise(std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  std::mt19937 random(1);
  constexpr std::size_t kPattern = 1 << 16;
  for (std::size_t i = 0; i < bytes; ++i)
    result[i] = i < kPattern ? std::byte(random() & 0x3f) : result[i - kPattern];
  return result;
}

class Comparison {
 public:
  explicit Comparison(double seconds) : device_(kiln::detail::Access::engine(runtime_)->device()) {
    tuning_.max_seconds = seconds;
  }

  /// `x` and, where there is one, `w` are read, and y written. `launch(bound, stream, y, x, w)`.
  template <class T, class Kernel, class Problem, class Launch>
  void compare(const char* name, const Kernel& kernel, const Problem& problem, std::size_t elements,
               std::size_t more, Launch launch) {
    auto tuned = runtime_.tuned(kernel);
    tuned.tune(problem, tuning_);
    const auto bound = tuned.at(problem);
    const auto bytes = static_cast<std::size_t>(kernel.bytes(problem));
    const kiln::runtime::DeviceMemory y = noisy(elements * sizeof(T)),
                                      x = noisy(elements * sizeof(T)), w = noisy(more * sizeof(T)),
                                      from = noisy(bytes / 2), to = noisy(bytes / 2);
    const Stream stream = device_->tuning_stream();
    std::vector<double> ratios, times;
    for (int round = 0; round < 2 + kRounds; ++round) {
      double seconds[2];
      for (int turn = 0; turn < 2; ++turn) {
        const bool copies = (round + turn) % 2 != 0;
        flush_.run(stream);
        seconds[copies] = device_->time(stream, [&] {
          if (copies)
            device_->copy_on_device(to.data(), from.data(), bytes / 2, stream);
          else
            launch(bound, stream, static_cast<T*>(y.data()), static_cast<T*>(x.data()),
                   static_cast<T*>(w.data()));
        });
      }
      if (round < 2) continue;  // they warm up
      ratios.push_back(seconds[1] / seconds[0]);
      times.push_back(seconds[0]);
    }
    char text[96];
    std::snprintf(text, sizeof text, "%s, %.0f MB, %.0f GB/s: speed of a copy", name, 1e-6 * bytes,
                  1e-9 * bytes / perf::median(times));
    perf::report(text, perf::median(ratios), "x", "goal >= 0.98");
    std::fflush(stdout);
  }

 private:
  kiln::runtime::DeviceMemory noisy(std::size_t bytes) {
    kiln::runtime::DeviceMemory memory(device_, bytes);
    const std::vector<std::byte> values = noise(bytes);
    device_->copy_to_device(memory.data(), values.data(), bytes);
    return memory;
  }
  static kiln::RuntimeOptions on_a_gpu() {
    kiln::RuntimeOptions options;
    options.device = "cuda:0";
    options.store.disk = false;
    return options;
  }

  kiln::Runtime runtime_{on_a_gpu()};
  std::shared_ptr<kiln::runtime::Device> device_;
  kiln::runtime::CacheFlush flush_{device_};
  kiln::TuneOptions tuning_;
};

}  // namespace

int main(int argument_count, char** arguments) try {
  using namespace kiln::templates;
  Comparison comparison(argument_count > 1 ? std::atof(arguments[1]) : 6);
  for (const int n : {1 << 22, 1 << 26})
    comparison.compare<float>("vector_add f32", vector_add_kernel<float>(), Elementwise{n},
                              static_cast<std::size_t>(n), static_cast<std::size_t>(n),
                              [n](const auto& add, Stream stream, float* y, const float* x,
                                  const float* w) { add(stream, y, x, w, n); });
  for (const int rows : {1 << 11, 1 << 14}) {
    const int hidden = 4096;
    const std::size_t elements = static_cast<std::size_t>(rows) * hidden;
    comparison.compare<bfloat16>(
        "residual_add bf16", residual_add_kernel<bfloat16>(), Activations{rows, hidden}, elements,
        elements,
        [rows, hidden](const auto& add, Stream stream, bfloat16* y, const bfloat16* x,
                       const bfloat16* w) { add(stream, y, x, w, rows, hidden); });
    comparison.compare<bfloat16>(
        "rmsnorm bf16", rmsnorm_kernel<bfloat16>(), RmsNormProblem{rows, hidden}, elements, hidden,
        [rows, hidden](const auto& norm, Stream stream, bfloat16* y, const bfloat16* x,
                       const bfloat16* w) { norm(stream, y, x, w, rows, hidden, 1e-5f); });
  }
} catch (const kiln::EnvironmentError& error) {
  std::printf("skipped: %s\n", error.what());
  return 77;
} catch (const kiln::Error& error) {
  std::printf("FAILED: %s\n", error.what());
  return 1;
}
