// The shipped kernels on real hardware: exact on ragged problems, whole or not; and handles as
// programs use them.
#include <algorithm>
#include <cstring>
#include <random>

#include "build_all.hpp"
#include "kiln/measure.hpp"
#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/entry_arguments.hpp"
#include "runtime/runtime.hpp"
#include "templates/kernels.hpp"

using namespace kiln::templates;
using kiln::runtime::Device;
using kiln::runtime::DeviceMemory;

namespace {

std::shared_ptr<Device> device() {
  static const auto opened = kiln::runtime::open_device("cuda", {});
  return opened;
}

/// `count` elements of T, `offset` elements past an aligned address. An output lies between margins
/// that a kernel may not touch; an input ends where its memory ends, so that a memory checker sees
/// every element that is read beyond it.
template <class T>
class GpuArray {
 public:
  GpuArray(std::size_t count, std::size_t offset, bool output)
      : count_(count),
        front_((output ? kMargin : 0) + offset * sizeof(T)),
        bytes_(front_ + count * sizeof(T) + (output ? kMargin : 0), kPoison),
        memory_(device(), bytes_.size()) {
    upload();
  }

  T* data() const { return reinterpret_cast<T*>(static_cast<char*>(memory_.data()) + front_); }
  /// Small integers: every sum in float is exact, so results can be compared bit by bit.
  void integers(int bound, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> pick(-bound, bound);
    for (std::size_t i = 0; i < count_; ++i) set(i, T(static_cast<float>(pick(random))));
    upload();
  }
  float operator[](std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + front_ + i * sizeof(T), sizeof(T));
    return static_cast<float>(value);
  }
  void download() { device()->copy_to_host(bytes_.data(), memory_.data(), bytes_.size()); }
  bool margins_intact() const {
    const std::size_t end = front_ + count_ * sizeof(T);
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      if ((i < front_ || i >= end) && bytes_[i] != kPoison) return false;
    return true;
  }

 private:
  static constexpr std::size_t kMargin = 512;     // bytes
  static constexpr unsigned char kPoison = 0xff;  // a NaN in every type

  void set(std::size_t i, T value) {
    std::memcpy(bytes_.data() + front_ + i * sizeof(T), &value, sizeof(T));
  }
  void upload() { device()->copy_to_device(memory_.data(), bytes_.data(), bytes_.size()); }

  std::size_t count_, front_;
  std::vector<unsigned char> bytes_;
  DeviceMemory memory_;
};

/// Configs of one kernel, compiled side by side and loaded.
template <class Kernel>
class Instances {
 public:
  using Config = typename Kernel::ConfigType;
  using Problem = typename Kernel::ProblemType;

  Instances(const Kernel& kernel, const std::vector<Config>& configs)
      : kernel_(kernel), definition_(kernel.definition()), configs_(configs) {
    kiln::runtime::Builder builder(
        std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false}),
        kiln::runtime::make_compiler, {}, 0);
    std::vector<kiln::Values> values;
    for (const Config& c : configs) {
      const auto v = kiln::to_values(c);
      values.emplace_back(v.begin(), v.end());
    }
    const auto builds =
        kiln::test::build_all(builder, definition_, values, device()->info().target);
    for (std::size_t i = 0; i < configs.size(); ++i) {
      INFO(describe(i));
      if (const auto* failure = std::get_if<kiln::CompileFailure>(&builds[i].outcome))
        FAIL(failure->log);
      const kiln::Launch g = kernel.launch(configs[i], kernel_problem(), device()->info().limits);
      loaded_.push_back(device()->load(*builds[i].binary(), g));
    }
  }

  std::size_t size() const { return configs_.size(); }
  std::string describe(std::size_t i) const {
    const auto v = kiln::to_values(configs_[i]);
    return definition_.name + " " + definition_.space.describe(kiln::Values(v.begin(), v.end()));
  }
  template <class... Args>
  void operator()(std::size_t i, const Problem& problem, Args... args) const {
    void* arguments[] = {static_cast<void*>(&args)...};
    const auto config = kiln::to_values(configs_[i]), values = kiln::to_values(problem);
    const auto plan = kiln::detail::plan(definition_, config, values, device()->info().limits);
    const kiln::runtime::EntryArguments entry(*device(), plan.maps, sizeof...(args));
    entry.with(arguments, nullptr,
               [&](void** args_of) { device()->launch(*loaded_[i], plan.launch, {}, args_of); });
    device()->synchronize({});
  }

 private:
  static Problem kernel_problem() {
    auto problem = kiln::to_values(Problem{});
    for (auto& field : problem) field = 1;
    return kiln::from_values<Problem>(problem);
  }

  Kernel kernel_;
  kiln::KernelDefinition definition_;
  std::vector<Config> configs_;
  std::vector<std::shared_ptr<kiln::runtime::Module>> loaded_;
};

template <class T>
float rounded(float x) {
  return static_cast<float>(T(x));
}

/// Counts wrong elements; on integers the right ones are exact.
template <class T>
std::size_t wrong_products(const Instances<GemmKernel<T>>& gemm, std::size_t config,
                           const GemmProblem& p, std::size_t offset) {
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
             k = static_cast<std::size_t>(p.k);
  GpuArray<T> c(m * n, offset, true), a(m * k, offset, false), b(n * k, offset, false);
  a.integers(2, 1);
  b.integers(2, 2);
  gemm(config, p, c.data(), static_cast<const T*>(a.data()), static_cast<const T*>(b.data()), p.m,
       p.n, p.k);
  c.download();
  std::size_t wrong = c.margins_intact() ? 0 : m * n + 1;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::size_t l = 0; l < k; ++l) sum += a[i * k + l] * b[j * k + l];
      if (!(c[i * n + j] == rounded<T>(sum))) ++wrong;
    }
  return wrong;
}

template <class T>
void check_gemm(const std::vector<Gemm>& configs) {
  const Instances<GemmKernel<T>> gemm(gemm_kernel<T>(), configs);
  // Whole tiles; one of everything; ragged m, n, k in turn; k that no access divides; no k at all.
  for (std::size_t i = 0; i < gemm.size(); ++i)
    for (const GemmProblem& p : std::vector<GemmProblem>{{128, 256, 128},
                                                         {1, 1, 1},
                                                         {17, 64, 64},
                                                         {64, 33, 64},
                                                         {16, 64, 72},
                                                         {70, 35, 33},
                                                         {130, 31, 104},
                                                         {3, 4, 0}})
      for (std::size_t offset : {0, 1}) {
        CAPTURE(gemm.describe(i), p.m, p.n, p.k, offset);
        CHECK(wrong_products<T>(gemm, i, p, offset) == 0);
      }
}

}  // namespace

TEMPLATE_TEST_CASE("gemm is exact with tensor cores", "[gpu][templates]", kiln::float16,
                   kiln::bfloat16) {
  constexpr GemmBody kMma = GemmBody::mma;
  check_gemm<TestType>({gemm_kernel<TestType>().space.default_config(),
                        {kMma, 64, 64, 32, 3, 32, 32, 8, 4},
                        {kMma, 16, 64, 64, 5, 16, 16, 8, 8},
                        {kMma, 32, 32, 32, 2, 16, 32, 8, 1},
                        {kMma, 32, 64, 32, 1, 32, 64, 8, 4},
                        {kMma, 128, 32, 32, 4, 64, 16, 8, 4},
                        {kMma, 256, 128, 64, 3, 64, 64, 8, 8},
                        {kMma, 128, 256, 32, 4, 64, 64, 8, 1}});
}

TEMPLATE_TEST_CASE("gemm is exact with Hopper's tensor cores", "[gpu][templates]", kiln::float16,
                   kiln::bfloat16) {
  if (device()->info().limits.compute_capability != 90) KILN_SKIP("not a Hopper GPU");
  constexpr GemmBody kWgmma = GemmBody::wgmma;
  check_gemm<TestType>({{kWgmma, 64, 64, 64, 3, 64, 64, 8, 1},
                        {kWgmma, 64, 128, 64, 5, 64, 128, 8, 8},
                        {kWgmma, 128, 128, 64, 4, 64, 64, 8, 4},
                        {kWgmma, 128, 256, 64, 4, 64, 256, 8, 8},
                        {kWgmma, 256, 128, 64, 4, 128, 128, 8, 4}});
}

TEMPLATE_TEST_CASE("gemm is exact through tensor maps", "[gpu][templates]", kiln::float16,
                   kiln::bfloat16) {
  if (device()->info().limits.compute_capability != 90) KILN_SKIP("not a Hopper GPU");
  constexpr GemmBody kTma = GemmBody::tma, kTurns = GemmBody::pingpong;
  using C = kiln::templates::GemmCluster;
  const Instances<GemmKernel<TestType>> gemm(
      gemm_kernel<TestType>(),
      {{kTurns, 128, 128, 64, 1, 128, 64, 8, 8},
       {kTurns, 64, 160, 64, 1, 64, 64, 8, 4, C::two_n},
       {kTurns, 128, 192, 64, 1, 128, 64, 8, 8, C::two_m, 1, true},
       {kTma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m},
       {kTma, 256, 128, 64, 1, 128, 64, 8, 16, C::two_n},
       {kTma, 192, 112, 64, 1, 64, 64, 8, 8},
       {kTma, 64, 32, 128, 1, 64, 64, 8, 8, C::none, 3, false, false, 1, false, true},
       {kTma, 128, 96, 64, 1, 64, 64, 8, 8, C::split_3},
       {kTma, 64, 16, 128, 1, 64, 64, 8, 8, C::none, 2, false, true, 1, false, true},
       {kTma, 128, 64, 64, 1, 128, 64, 8, 8, C::split_4, 1, false, true}});
  // Whole tiles, ragged ones in each direction, several waves, one row, one slice of k and none.
  for (std::size_t i = 0; i < gemm.size(); ++i)
    for (const GemmProblem& p : std::vector<GemmProblem>{{256, 256, 128},
                                                         {1, 8, 8},
                                                         {17, 64, 64},
                                                         {64, 40, 72},
                                                         {130, 328, 200},
                                                         {300, 520, 264},
                                                         {1100, 2600, 72},
                                                         {3, 4096, 1032}})
      for (std::size_t offset : {0, 8}) {
        CAPTURE(gemm.describe(i), p.m, p.n, p.k, offset);
        CHECK(wrong_products<TestType>(gemm, i, p, offset) == 0);
      }
}

TEMPLATE_TEST_CASE("gemm is exact on streams of few rows", "[gpu][templates]", kiln::float16,
                   kiln::bfloat16) {
  constexpr GemmBody kStream = GemmBody::stream;
  const Instances<GemmKernel<TestType>> gemm(gemm_kernel<TestType>(),
                                             {{kStream, 8, 16, 512, 2, 8, 64, 8, 8},
                                              {kStream, 16, 32, 1024, 4, 16, 64, 8, 8},
                                              {kStream, 16, 16, 4096, 8, 16, 64, 8, 8}});
  for (std::size_t i = 0; i < gemm.size(); ++i)
    for (const GemmProblem& p :
         std::vector<GemmProblem>{{1, 1, 8}, {8, 33, 64}, {5, 1003, 1032}, {3, 4096, 4096}})
      for (std::size_t offset : {0, 8}) {
        CAPTURE(gemm.describe(i), p.m, p.n, p.k, offset);
        CHECK(wrong_products<TestType>(gemm, i, p, offset) == 0);
      }
}

TEMPLATE_TEST_CASE("gemm is exact without tensor cores", "[gpu][templates]", float, kiln::float16,
                   kiln::bfloat16) {
  constexpr GemmBody kSimt = GemmBody::simt;
  std::vector<Gemm> configs{{kSimt, 32, 64, 32, 2, 4, 4, 4, 8},
                            {kSimt, 64, 64, 32, 3, 8, 4, 4, 1},
                            {kSimt, 16, 32, 64, 1, 1, 2, 4, 4},
                            {kSimt, 128, 64, 32, 4, 8, 8, 4, 4}};
  check_gemm<TestType>(configs);
}

TEMPLATE_TEST_CASE("sums of vectors are exact", "[gpu][templates]", float, kiln::float16,
                   kiln::bfloat16) {
  const Instances<VectorAddKernel<TestType>> add(
      vector_add_kernel<TestType>(),
      {{64, 1}, {128, 2}, {256, 4}, {256, 8}, {512, 16}, {1024, 32}});
  for (std::size_t i = 0; i < add.size(); ++i)
    for (const int n : {1, 63, 4096, 32768, 100003})
      for (std::size_t offset : {0, 1, 2}) {
        CAPTURE(add.describe(i), n, offset);
        const auto count = static_cast<std::size_t>(n);
        GpuArray<TestType> out(count, offset, true), a(count, offset, false), b(count, 0, false);
        a.integers(100, 3);
        b.integers(100, 4);
        add(i, Elementwise{n}, out.data(), static_cast<const TestType*>(a.data()),
            static_cast<const TestType*>(b.data()), n);
        out.download();
        std::size_t wrong = out.margins_intact() ? 0 : count + 1;
        for (std::size_t e = 0; e < count; ++e) wrong += !(out[e] == a[e] + b[e]);
        CHECK(wrong == 0);
      }
}

// Everything else that a tuner may pick: a random part of each space, on ragged problems.
TEST_CASE("no config of a shipped kernel is wrong", "[gpu][templates][slow]") {
  kiln::RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  const kiln::Runtime runtime(options);
  const kiln::Registry registry = kiln::shipped_kernels();
  const auto types_of = [&](const std::string& name) {
    return std::ranges::find(registry.kernels(), name, &kiln::RegisteredKernel::name)->types;
  };
  struct Case {
    const char* kernel;
    kiln::Values problem;
  };
  for (const Case& c : std::vector<Case>{
           {"vector_add", {262144}},
           {"residual_add", {64, 1000}},
           {"silu_mul", {64, 1000}},
           {"gelu_mul", {1024, 14336}},
           {"relu_mul", {7, 999}},
           {"silu_mul_fp8_rows", {64, 1000}},
           {"gelu_mul_fp8_rows", {1024, 14336}},
           {"relu_mul_fp8_rows", {7, 999}},
           {"silu_mul_fp8_blocks", {63, 1000}},
           {"gelu_tanh_mul_fp8_blocks", {1024, 14336}},
           {"silu_mul_fp8_tensor", {63, 1001}},
           {"rmsnorm", {64, 1000}},
           {"rmsnorm", {16, 4096}},
           {"rmsnorm", {4, 999}},
           {"rmsnorm_residual", {64, 1000}},
           {"rmsnorm_residual", {4096, 4096}},
           {"rmsnorm_fp8", {64, 1001}},
           {"rmsnorm_fp8", {4096, 4096}},
           {"rmsnorm_fp8_blocks", {64, 1001}},
           {"rmsnorm_fp8_blocks", {4096, 4096}},
           {"rmsnorm_residual_fp8", {64, 1001}},
           {"rmsnorm_residual_fp8", {4096, 4096}},
           {"rmsnorm_residual_fp8_blocks", {64, 1000}},
           {"rmsnorm_residual_fp8_blocks", {4096, 4096}},
           {"layernorm", {64, 999}},
           {"layernorm", {4096, 4096}},
           {"softmax", {16, 50257}},
           {"softmax", {4096, 1024}},
           {"cross_entropy", {64, 50257}},
           {"quantize_rows", {64, 1001}},
           {"quantize_rows", {4096, 4096}},
           {"quantize_blocks", {63, 1000}},
           {"quantize_blocks", {1024, 7168}},
           {"quantize_tensor", {63, 1001}},
           {"quantize_tensor_dynamic", {63, 1001}},
           {"quantize_tensor_dynamic", {4096, 4096}},
           {"quantize_blocks_masked", {63, 1000, 5}},
           {"quantize_weights", {300, 1000, 3}},
           {"quantize_weights", {4096, 4096, 1}},
           {"rope", {64, 8, 2, 128, 128, 1024, 256, 1536, 1536}},
           {"rope", {33, 5, 1, 37, 12, 185, 37, 185, 38}},
           {"rope_norm", {17, 3, 1, 96, 64, 288, 96, 384, 384}},
           {"rope_norm_interleaved", {1024, 32, 8, 128, 128, 4096, 1024, 5120, 5120}},
           {"rope_paged_interleaved", {63, 4, 4, 80, 48, 16, 5136, 320, 960, 960, 960}},
           {"rope_norm_paged", {256, 16, 2, 64, 64, 8, 1024, 1024, 1280, 1280, 1280}},
           {"sort_by_expert", {1, 8, 256}},
           {"sort_by_expert", {333, 8, 384}},
           {"sort_by_expert", {40000, 8, 128}},
           {"sort_by_expert", {9999, 1, 1}},
           {"gemm", {64, 200, 136}},
           {"gemm", {512, 512, 100}},
           {"gemm", {32, 100, 77}}})
    for (const std::string& type : types_of(c.kernel)) {
      const kiln::KernelDefinition kernel = registry.make(c.kernel, type);
      CAPTURE(kernel.name, type, kernel.describe_problem(c.problem));
      kiln::TuneOptions tuning;
      tuning.strategy = "random";
      tuning.max_evaluations = 16;
      const kiln::DynamicTuned tuned = runtime.tuned(kernel);
      const kiln::TuneResult result = tuned.tune(c.problem, tuning);
      for (const kiln::Candidate& candidate : result.candidates) {
        CAPTURE(result.describe(candidate), candidate.reason);
        CHECK((candidate.status == kiln::CandidateStatus::measured ||
               candidate.status == kiln::CandidateStatus::exceeds_limits));
      }
      CHECK(result.count(kiln::CandidateStatus::measured) > 4);
      const kiln::Verification launched = tuned.verify(c.problem);
      CAPTURE(launched.why);
      CHECK(launched.right);
    }
}

TEST_CASE("a handle's launches become part of the caller's graph", "[gpu]") {
  kiln::RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  const kiln::Runtime runtime(options);
  const auto add = runtime.tuned(vector_add_kernel<float>());
  const int n = 10000;
  auto out = runtime.array<float>(n);
  const auto a = runtime.array(std::vector<float>(n, 1.5f)),
             b = runtime.array(std::vector<float>(n, 2.25f));
  out.upload(std::vector<float>(n, 0.0f));
  const kiln::Stream stream = device()->tuning_stream();
  const auto launch = [&] { add(stream, out.data(), a.data(), b.data(), n); };
  // A first launch would be compiled and loaded; that is refused while the stream is captured.
  CHECK_FALSE(device()->capture(stream, launch));
  launch();
  device()->synchronize(stream);
  CHECK(out.download() == std::vector<float>(n, 3.75f));
  out.upload(std::vector<float>(n, 0.0f));
  const auto graph = device()->capture(stream, launch);
  REQUIRE(graph);
  CHECK(out.download() == std::vector<float>(n, 0.0f));  // recorded, not run
  graph->run(stream);
  device()->synchronize(stream);
  CHECK(out.download() == std::vector<float>(n, 3.75f));
}

TEST_CASE("work is timed as graphs, or with a cold cache", "[gpu][clock]") {
  kiln::RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  const kiln::Runtime runtime(options);
  const auto add = runtime.tuned(vector_add_kernel<float>());
  const int n = 1 << 20;  // 12 MiB: all of it fits the last-level cache of a large GPU
  auto out = runtime.array<float>(n);
  const auto a = runtime.array(std::vector<float>(n, 1.0f)),
             b = runtime.array(std::vector<float>(n, 2.0f));
  const auto work = [&](kiln::Stream s) { add(s, out.data(), a.data(), b.data(), n); };
  kiln::MeasureOptions measuring;
  measuring.seconds = 0.2;
  const kiln::Timing cold = kiln::measure(runtime, work, measuring);
  CHECK(cold.cold);
  measuring.cold_cache = false;
  const kiln::Timing warm = kiln::measure(runtime, work, measuring);
  CHECK(warm.replayed);
  CHECK(warm.launches > 1);
  CHECK(warm.median > 0);
  WARN("cold " << cold.median * 1e6 << " us, warm " << warm.median * 1e6 << " us");
}
