// Regions and functions on real hardware: kernels that wait for a known time and add one to an
// array, so that what a tuner should find, and what a wrong order of calls would do, is known.
#include <algorithm>

#include "kiln/function.hpp"
#include "kiln/region.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using kiln::test::TemporaryDirectory;

struct WaitKnobs {
  int micros;
  bool split;  ///< two kernels of half the time
};
struct WaitProblem {
  int n;
};
KILN_CONFIG(WaitKnobs, micros, split)
KILN_PROBLEM(WaitProblem, n)

namespace {

constexpr int kElements = 1000;
constexpr double kMicro = 1e-6;
constexpr int kWrong = 20;  ///< microseconds that the fastest waits; it adds two
/// Slack for a kernel that waits 100 us or more; events add less than this.
constexpr double kSlack = 40 * kMicro;

/// Waits MICROS + more microseconds, then y[i] += 1.
KernelDefinition waiting(const std::string& name, std::vector<std::int64_t> micros,
                         std::int64_t default_micros) {
  KernelDefinition k;
  k.name = k.entry = name;
  k.source.text = R"(
extern "C" __global__ void )" +
                  name + R"((float* y, int n, int more) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - start < (MICROS + more) * 1000ull);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += MICROS + more == 20 ? 2 : 1;
})";
  k.passing = Passing::constants;
  k.arguments = {"float*", "int", "int"};
  k.space.parameter("MICROS", std::move(micros), default_micros);
  k.problem_fields = {"n"};
  k.launch = [](auto, auto problem) {
    return Launch{.grid = {static_cast<unsigned>((problem[0] + 127) / 128)}, .block = {128}};
  };
  k.workload = [](auto problem, Workload& w) {
    w.in_out<float>(static_cast<std::size_t>(problem[0]))
        .scalar(static_cast<int>(problem[0]))
        .scalar(0);
  };
  return k;
}

RuntimeOptions on_gpu(const std::filesystem::path& store) {
  RuntimeOptions options;
  options.device = "cuda";
  options.store.directory = store;
  return options;
}

/// Empty when all are `want`.
std::string all_are(const Array<float>& y, float want) {
  const std::vector<float> got = y.download();
  const auto odd = std::find_if(got.begin(), got.end(), [&](float v) { return v != want; });
  return odd == got.end() ? "" : "an element is " + std::to_string(*odd);
}

void check_time(const Candidate& c, double micros) {
  CAPTURE(c.config.at(0), c.seconds);
  CHECK(c.seconds > 0.9 * micros * kMicro);
  CHECK(c.seconds < micros * kMicro + kSlack);
}

}  // namespace

TEST_CASE("a region of kernels on two streams is tuned in place", "[gpu][clock]") {
  TemporaryDirectory directory;
  const auto context = std::make_shared<runtime::CudaContext>(runtime::probe_cuda().driver, 0);
  const runtime::CudaStream other = runtime::create_stream(context);
  const Runtime gpu(on_gpu(directory.path()));
  const auto first = gpu.tuned(waiting("first", {kWrong, 100, 200, 400}, 200));
  const auto second = gpu.tuned(waiting("second", {100, 150, 300}, 300));
  const std::vector<float> zeros(kElements);
  Array<float> a = gpu.array(zeros), b = gpu.array(zeros);
  const auto step = [&](Region& region) {
    region(first, {}, {kElements}, a.data(), kElements, 0);
    region(second, view(other), {kElements}, b.data(), kElements, 0);
    region(first, {}, {kElements}, a.data(), kElements, 0);
  };

  RegionOptions options;
  options.before = [&] {
    a.upload(zeros);
    b.upload(zeros);
  };
  options.check = [&] {
    const std::string wrong = all_are(a, 2);
    return wrong.empty() ? all_are(b, 1) : wrong;
  };
  const RegionResult result = tune_region(gpu, step, options);
  REQUIRE(result.sites.size() == 2);
  CHECK(result.sites[0].launches == 2);
  CHECK(result.sites[1].launches == 1);
  for (const RegionSite& site : result.sites) {
    CAPTURE(site.tuned.kernel);
    CHECK(site.tuned.winner().config.at(0) == 100);
    for (const Candidate& c : site.tuned.candidates) {
      CAPTURE(c.reason);
      if (c.config.at(0) == kWrong)
        CHECK(c.status == CandidateStatus::wrong_result);
      else
        check_time(c, static_cast<double>(c.config.at(0)));
    }
  }
  // Two of `first` in a row are longer than the other stream's one.
  CHECK(result.default_seconds > 2 * 200 * kMicro);
  CHECK(result.seconds > 2 * 100 * kMicro);
  CHECK(result.seconds < result.default_seconds);

  Region production;
  options.before();
  step(production);
  gpu.synchronize();
  gpu.synchronize(view(other));
  CHECK(options.check() == "");

  const Runtime next(on_gpu(directory.path()));
  const auto again = next.tuned(waiting("first", {kWrong, 100, 200, 400}, 200));
  const auto alone = [&](Region& region) {
    region(again, {}, {kElements}, a.data(), kElements, 0);
  };
  const RegionResult known = tune_region(next, alone);
  CHECK(known.runs == 1);
  CHECK(known.sites.at(0).tuned.winner().config.at(0) == 100);
  CHECK(next.statistics().compiled == 0);
}

TEST_CASE("a region captured into a graph launches what was chosen", "[gpu][clock]") {
  TemporaryDirectory directory;
  const Runtime gpu(on_gpu(directory.path()));
  const auto kernel = gpu.tuned(waiting("captured", {100, 200}, 200));
  Array<float> y = gpu.array(std::vector<float>(kElements));
  const auto device = runtime::make_cuda_device(runtime::probe_cuda().driver, 0);
  const auto step = [&](Region& region) {
    region(kernel, device->tuning_stream(), {kElements}, y.data(), kElements, 0);
  };
  const RegionResult tuned = tune_region(gpu, step);
  CHECK(tuned.sites.at(0).tuned.winner().config.at(0) == 100);

  const auto replay = device->capture(device->tuning_stream(), [&] {
    Region production;
    step(production);
    step(production);
  });
  REQUIRE(replay);
  y.upload(std::vector<float>(kElements));
  const double seconds =
      device->time(device->tuning_stream(), [&] { replay->run(device->tuning_stream()); });
  CHECK(seconds > 2 * 0.9 * 100 * kMicro);
  CHECK(seconds < 2 * (100 * kMicro + kSlack));
  CHECK(all_are(y, 2) == "");
}

TEST_CASE("a function that launches is timed by the device, and undone", "[gpu][clock]") {
  const bool graph = GENERATE(false, true);
  CAPTURE(graph);
  TemporaryDirectory directory;
  const Runtime gpu(on_gpu(directory.path()));
  const auto kernel = gpu.tuned(waiting("waits", {0}, 0));
  Array<float> y = gpu.array(std::vector<float>(kElements, 5.0f));
  const auto wait = [&](Stream stream, float* data, int n, int micros) {
    kernel(stream, {n}, data, n, micros);
  };
  for (const int n : {kElements, kElements / 2}) wait({}, y.data(), n, 1);  // makes them ready
  gpu.synchronize();
  y.upload(std::vector<float>(kElements, 5.0f));

  Function<WaitKnobs, WaitProblem, void(float*, int)> function{
      .name = "wait",
      .version = "1",
      .space = Space<WaitKnobs, WaitProblem>{{200, false}}
                   .values(&WaitKnobs::micros, {kWrong, 100, 200, 400})
                   .values(&WaitKnobs::split, {false, true})
                   .checked(),
      .call =
          [&](const WaitKnobs& k, Stream stream, float* data, int n) {
            if (k.split) {
              wait(stream, data, n / 2, k.micros);
              wait(stream, data + n / 2, n - n / 2, k.micros);
            } else {
              wait(stream, data, n, k.micros);
            }
          },
      .problem = [](float*, int n) { return WaitProblem{n}; },
  };
  function.graph_replay = graph;
  if (!graph) {  // data that are restored before each call cannot be replayed
    function.snapshot = [&](Stream stream, float*, int) {
      gpu.synchronize(stream);
      return [&y, kept = y.download()](Stream) { y.upload(kept); };
    };
    function.verify = [&](float*, int) { return all_are(y, 6).empty(); };
  } else {
    function.prune = [](const WaitKnobs& k, const WaitProblem&, const DeviceLimits&) {
      return k.micros != kWrong;
    };
  }
  FunctionOptions options;
  options.tuning.emplace();
  options.tuning->cold_cache = !graph;
  const auto f = tuned(gpu, function, options);
  const TuneResult result = f.tune({}, y.data(), kElements);
  CAPTURE(result.warnings);
  CHECK(result.describe(result.winner()) == "micros=100,split=0");
  for (const Candidate& c : result.candidates) {
    CAPTURE(result.describe(c), c.reason);
    if (c.config.at(0) == kWrong)
      CHECK(c.status == CandidateStatus::wrong_result);
    else if (c.status == CandidateStatus::measured)
      check_time(c, static_cast<double>(c.config.at(0) * (c.config.at(1) ? 2 : 1)));
  }
  if (!graph) CHECK(all_are(y, 5) == "");  // as it was before

  y.upload(std::vector<float>(kElements, 5.0f));
  f({}, y.data(), kElements);
  gpu.synchronize();
  CHECK(all_are(y, 6) == "");
  CHECK(gpu.statistics().compiled == 1);  // the kernel: functions compile nothing
}
