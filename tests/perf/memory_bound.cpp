// Tuned kernels that memory bounds, in turns with the device's own copy of as many bytes: what they
// read and write is half read and half written by the copy. Both find a cold cache.
//
//   memory_bound [SECONDS]    for tuning each problem
#include <cstdlib>
#include <exception>
#include <random>
#include <string>

#include "kiln/kernels/cross_entropy.hpp"
#include "kiln/kernels/gated_activation.hpp"
#include "kiln/kernels/gated_fp8.hpp"
#include "kiln/kernels/layernorm.hpp"
#include "kiln/kernels/quantize.hpp"
#include "kiln/kernels/quantize_tensor_dynamic.hpp"
#include "kiln/kernels/quantize_weights.hpp"
#include "kiln/kernels/residual_add.hpp"
#include "kiln/kernels/rmsnorm.hpp"
#include "kiln/kernels/rmsnorm_fp8.hpp"
#include "kiln/kernels/rmsnorm_residual.hpp"
#include "kiln/kernels/rope.hpp"
#include "kiln/kernels/softmax.hpp"
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

/// Bytes that are as good as random: zeros would cost the memory less power.
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
               std::size_t more, Launch launch, const char* goal = "goal >= 0.98") {
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
    perf::report(text, perf::median(ratios), "x", goal);
    std::fflush(stdout);
  }

  const kiln::Runtime& runtime() const { return runtime_; }

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

/// The kernels of rows/, of which each reads and writes what its arrays hold: y, x, and `w` as
/// long.
void compare_rows(Comparison& comparison, int rows, int hidden) {
  using namespace kiln::templates;
  using kiln::float8_e4m3;
  const std::size_t elements = static_cast<std::size_t>(rows) * hidden;
  const HiddenRows tokens{rows, hidden};
  const auto compare = [&](const char* name, const auto& kernel, const auto& problem,
                           const char* goal, auto launch) {
    comparison.compare<bfloat16>(
        name, kernel, problem, elements, elements,
        [&](const auto& bound, Stream stream, bfloat16* y, const bfloat16* x, bfloat16* w) {
          launch(bound, stream, y, x, w);
        },
        goal);
  };
  compare("rmsnorm_residual bf16", rmsnorm_residual_kernel<bfloat16>(), tokens, "goal >= 0.97",
          [=](const auto& norm, Stream stream, bfloat16* y, const bfloat16* x, bfloat16* w) {
            norm(stream, y, w, x, x, rows, hidden, 1e-5f);
          });
  compare("layernorm bf16", layernorm_kernel<bfloat16>(), tokens, "goal >= 0.97",
          [=](const auto& norm, Stream stream, bfloat16* y, const bfloat16* x, const bfloat16* w) {
            norm(stream, y, x, w, w + hidden, rows, hidden, 1e-5f);
          });
  compare("rmsnorm_fp8 bf16", rmsnorm_fp8_kernel<bfloat16>(), tokens, "goal >= 0.92",
          [=](const auto& norm, Stream stream, bfloat16* y, const bfloat16* x, bfloat16* w) {
            norm(stream, reinterpret_cast<float8_e4m3*>(y), reinterpret_cast<float*>(w + hidden), x,
                 static_cast<const bfloat16*>(w), rows, hidden, 1e-5f);
          });
  const auto scaling = [=](const auto& quantize, Stream stream, bfloat16* y, const bfloat16* x,
                           bfloat16* w) {
    quantize(stream, reinterpret_cast<float8_e4m3*>(y), reinterpret_cast<float*>(w), x, rows,
             hidden);
  };
  compare("rmsnorm_fp8_blocks bf16", rmsnorm_fp8_blocks_kernel<bfloat16>(), tokens, "goal >= 0.92",
          [=](const auto& norm, Stream stream, bfloat16* y, const bfloat16* x, bfloat16* w) {
            norm(stream, reinterpret_cast<float8_e4m3*>(y), reinterpret_cast<float*>(w + hidden), x,
                 static_cast<const bfloat16*>(w), rows, hidden, 1e-5f);
          });
  // Scales lie behind the 8-bit floats, which are half as long as y.
  const auto summing = [=](const auto& norm, Stream stream, bfloat16* y, const bfloat16* x,
                           bfloat16* w) {
    norm(stream, reinterpret_cast<float8_e4m3*>(y), reinterpret_cast<float*>(y + elements / 2), w,
         x, x, rows, hidden, 1e-5f);
  };
  compare("rmsnorm_residual_fp8 bf16", rmsnorm_residual_fp8_kernel<bfloat16>(), tokens,
          "goal >= 0.92", summing);
  compare("rmsnorm_residual_fp8_blocks bf16", rmsnorm_residual_fp8_blocks_kernel<bfloat16>(),
          tokens, "goal >= 0.92", summing);
  compare("quantize_rows bf16", quantize_rows_kernel<bfloat16>(), tokens, "goal >= 0.92", scaling);
  compare("quantize_blocks bf16", quantize_blocks_kernel<bfloat16>(), tokens, "goal >= 0.92",
          scaling);
  compare("quantize_tensor_dynamic bf16", quantize_tensor_dynamic_kernel<bfloat16>(), tokens,
          "goal >= 0.92", scaling);
  compare("quantize_weights bf16", quantize_weights_kernel<bfloat16>(),
          WeightGroups{rows, hidden, 1}, "goal >= 0.92",
          [=](const auto& quantize, Stream stream, bfloat16* y, const bfloat16* x, bfloat16* w) {
            quantize(stream, reinterpret_cast<float8_e4m3*>(y), reinterpret_cast<float*>(w), x,
                     rows, hidden, 1);
          });
  compare("softmax bf16", softmax_kernel<bfloat16>(), LogitRows{rows, hidden}, "goal >= 0.95",
          [=](const auto& softmax, Stream stream, bfloat16* y, const bfloat16* x, bfloat16*) {
            softmax(stream, y, x, rows, hidden);
          });
  // The same elements as rows of a vocabulary.
  const int columns = 131072, few = static_cast<int>(elements / columns);
  compare("softmax bf16, long rows", softmax_kernel<bfloat16>(), LogitRows{few, columns},
          "goal >= 0.95",
          [=](const auto& softmax, Stream stream, bfloat16* y, const bfloat16* x, bfloat16*) {
            softmax(stream, y, x, few, columns);
          });
  compare("cross_entropy bf16, long rows", cross_entropy_kernel<bfloat16>(),
          LogitRows{few, columns}, "goal >= 0.95",
          [=](const auto& loss, Stream stream, bfloat16* y, const bfloat16* x, bfloat16* w) {
            loss(stream, reinterpret_cast<float*>(y), x, reinterpret_cast<const int*>(w), few,
                 columns, -1);
          });
}

/// q and k and, where they go to a cache, v: slices of one array, as projections leave them.
void compare_rope(Comparison& comparison, int tokens) {
  using namespace kiln::templates;
  constexpr int kQHeads = 32, kKvHeads = 8, kWidth = 128, kPositions = 4096, kBlock = 16;
  constexpr RopeStride kQ = kQHeads * kWidth, kKv = kKvHeads * kWidth, kAll = kQ + 2 * kKv;
  const int blocks = (tokens + kBlock - 1) / kBlock;
  std::vector<std::int64_t> positions, slots;
  for (std::int64_t t = 0; t < tokens; ++t) {
    positions.push_back(t * 1000003 % kPositions);
    slots.push_back(t * 1000003 % (blocks * kBlock));
  }
  const auto p = comparison.runtime().array(positions), s = comparison.runtime().array(slots);
  const auto table = comparison.runtime().array(
      std::vector<float>(static_cast<std::size_t>(kPositions) * kWidth, 0.7f));
  const auto compare = [&](const char* name, const auto& kernel, const auto& problem, auto launch) {
    const std::size_t elements = static_cast<std::size_t>(tokens) * kAll;
    comparison.compare<bfloat16>(name, kernel, problem, elements, kWidth, launch, "goal >= 0.92");
  };
  const RopeProblem apart{tokens, kQHeads, kKvHeads, kWidth, kWidth, kQ, kKv, kAll, kAll};
  const auto rotate = [&](const auto& rope, Stream stream, bfloat16* y, const bfloat16* x,
                          auto... norm) {
    rope(stream, y, y + tokens * kQ, x, x + kQ, table.data(), p.data(), tokens, kQHeads, kKvHeads,
         kWidth, kWidth, kPositions, kQ, kKv, kAll, kAll, norm...);
  };
  compare("rope bf16", rope_kernel<bfloat16>(), apart,
          [&](const auto& rope, Stream stream, bfloat16* y, const bfloat16* x, const bfloat16*) {
            rotate(rope, stream, y, x);
          });
  compare("rope_interleaved bf16", rope_kernel<bfloat16>(RopeOrder::interleaved), apart,
          [&](const auto& rope, Stream stream, bfloat16* y, const bfloat16* x, const bfloat16*) {
            rotate(rope, stream, y, x);
          });
  compare("rope_norm bf16", rope_norm_kernel<bfloat16>(), apart,
          [&](const auto& rope, Stream stream, bfloat16* y, const bfloat16* x, const bfloat16* w) {
            rotate(rope, stream, y, x, w, w, 1e-5f);
          });
  compare("rope_norm_paged bf16", rope_norm_paged_kernel<bfloat16>(),
          RopePagedProblem{tokens, kQHeads, kKvHeads, kWidth, kWidth, kBlock, kBlock * kKv, kQ,
                           kAll, kAll, kAll},
          [&](const auto& rope, Stream stream, bfloat16* y, const bfloat16* x, const bfloat16* w) {
            bfloat16* const k_cache = y + tokens * kQ;
            rope(stream, y, k_cache, k_cache + blocks * kBlock * kKv, x, x + kQ, x + kQ + kKv,
                 table.data(), p.data(), s.data(), tokens, kQHeads, kKvHeads, kWidth, kWidth,
                 kPositions, blocks, kBlock, kBlock * kKv, kQ, kAll, kAll, kAll, w, w, 1e-5f);
          });
}

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
        "silu_mul bf16", gated_activation_kernel<bfloat16, kiln::epilogue::Silu>(),
        Activations{rows, hidden}, 2 * elements, 1,
        [rows, hidden](const auto& activate, Stream stream, bfloat16* y, const bfloat16* x,
                       const bfloat16*) { activate(stream, y, x, rows, hidden); });
    const auto quantize = [rows, hidden](const auto& activate, Stream stream, bfloat16* y,
                                         const bfloat16* x, bfloat16* w) {
      activate(stream, reinterpret_cast<kiln::float8_e4m3*>(y), reinterpret_cast<float*>(w), x,
               rows, hidden);
    };
    using kiln::epilogue::Silu;
    comparison.compare<bfloat16>("silu_mul_fp8_rows bf16", gated_fp8_rows_kernel<bfloat16, Silu>(),
                                 HiddenRows{rows, hidden}, 2 * elements, elements, quantize,
                                 "goal >= 0.92");
    comparison.compare<bfloat16>(
        "silu_mul_fp8_blocks bf16", gated_fp8_blocks_kernel<bfloat16, Silu>(),
        HiddenRows{rows, hidden}, 2 * elements, elements, quantize, "goal >= 0.92");
    comparison.compare<bfloat16>(
        "rmsnorm bf16", rmsnorm_kernel<bfloat16>(), RmsNormProblem{rows, hidden}, elements, hidden,
        [rows, hidden](const auto& norm, Stream stream, bfloat16* y, const bfloat16* x,
                       const bfloat16* w) { norm(stream, y, x, w, rows, hidden, 1e-5f); });
    compare_rows(comparison, rows, hidden);
    compare_rope(comparison, rows);
  }
} catch (const kiln::EnvironmentError& error) {
  std::printf("skipped: %s\n", error.what());
  return 77;
} catch (const kiln::Error& error) {
  std::printf("FAILED: %s\n", error.what());
  return 1;
}
