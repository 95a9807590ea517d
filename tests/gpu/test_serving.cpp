// A program that serves on a GPU while Kiln works beside it: its persistent kernels and its
// launches are left alone, and its next start only loads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "codegen/dynamic_library.hpp"
#include "gpu/program.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using std::chrono::milliseconds;
using Span = std::span<const std::int64_t>;

// --- A kernel that waits for the host -----------------------------------------------------------

/// Longer than anything that is waited for here, so that nothing hangs where a flag is not seen.
constexpr int kMostSpinning = 2000;  // ms
constexpr double kMostDelay = 10e-3;

/// Spins until the host sets a word of its own memory, or one of the device's.
KernelDefinition spinning() {
  KernelDefinition k;
  k.name = k.entry = "spin";
  k.source.text = R"cuda(
__device__ unsigned long long now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
template <int block>
__global__ void spin(int* host, const int* device, int most_ms) {
  if (threadIdx.x != 0) return;
  volatile int* const words = host;  // go, started, ended
  const volatile int* const go = device;
  const unsigned long long begin = now(), most = most_ms * 1000000ull;
  words[1] = 1;
  while (words[0] == 0 && *go == 0 && now() - begin < most) {}
  words[2] = words[0] != 0 || *go != 0 ? 1 : 2;
}
)cuda";
  k.arguments = {"int*", "const int*", "int"};
  k.space.parameter("block", {32}, 32);
  k.problem_fields = {"n"};
  k.launch = [](Span, Span) { return Launch{{1}, {32}}; };
  return k;
}

/// Words of the host's memory that kernels read and write.
class HostWords {
 public:
  enum Word { go, started, ended };

  explicit HostWords(const Program& program) : program_(program) {
    const auto driver =
        codegen::DynamicLibrary::open("libcuda.so.1", codegen::DynamicLibrary::Lifetime::process);
    const auto allocate =
        reinterpret_cast<decltype(&::cuMemHostAlloc)>(driver.library.symbol("cuMemHostAlloc"));
    free_ = reinterpret_cast<decltype(&::cuMemFreeHost)>(driver.library.symbol("cuMemFreeHost"));
    REQUIRE(allocate);
    REQUIRE(free_);
    void* memory = nullptr;
    REQUIRE(allocate(&memory, 3 * sizeof(int),
                     CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
    words_ = static_cast<int*>(memory);
    clear();
  }
  ~HostWords() {
    program_.driver->StreamSynchronize(program_.own.get());
    free_(words_);
  }
  HostWords(const HostWords&) = delete;
  HostWords& operator=(const HostWords&) = delete;

  /// The address is the same for kernels and for the host.
  int* data() const { return words_; }
  int get(Word word) const { return std::atomic_ref(words_[word]).load(); }
  void set(Word word, int value) const { std::atomic_ref(words_[word]).store(value); }
  void clear() const {
    for (const Word word : {go, started, ended}) set(word, 0);
  }
  /// Whether a kernel has written it, by a time after which none spins any more.
  bool wait_for(Word word) const {
    const auto begin = Clock::now();
    while (get(word) == 0)
      if (seconds_since(begin) > 5 * kMostSpinning * 1e-3) return false;
    return true;
  }

 private:
  const Program& program_;
  decltype(&::cuMemFreeHost) free_ = nullptr;
  int* words_ = nullptr;
};

/// What Kiln has done on another thread beside the program's kernels.
struct Done {
  std::atomic<int> prepared = 0, committed = 0, failed = 0;
};

/// Compiles, loads, tunes, commits and unloads, again and again.
void work(const Runtime& gpu, const std::atomic<bool>& stop, Done& done) try {
  for (int i = 0; !stop; ++i) {
    {
      const auto early = gpu.tuned(twice("prepared " + std::to_string(i)));
      Manifest manifest;
      for (const int n : {1000, 2000})
        manifest.wanted.push_back({"twice", {}, gpu.device().target.arch, {{"n", n}}, {}});
      if (gpu.prepare(manifest, {.max_seconds = 20}).searched > 0) ++done.prepared;
    }
    const auto late = gpu.tuned(twice("behind " + std::to_string(i)));
    const Arrays arrays(gpu, 3000);
    arrays.launch(late, {CU_STREAM_PER_THREAD});
    auto window = gpu.window();
    std::size_t changes = 0;
    soon([&] {
      std::this_thread::sleep_for(milliseconds(20));
      changes = gpu.commit().changes.size();
      return changes > 0 || stop;
    });
    window.close();
    if (changes > 0) ++done.committed;
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "the thread that works beside a kernel: %s\n", error.what());
  ++done.failed;
}

// --- Launches at a steady pace ------------------------------------------------------------------

/// What may be on the device when a launch comes: one sample of a candidate, with what empties the
/// cache before it.
constexpr double kOneSample = 100e-6;
constexpr double kNoise = 20e-6;
constexpr int kProblems = 40;

/// The value that this share of the values do not exceed.
double within(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values.at(
      std::min(values.size() - 1, static_cast<std::size_t>(share * double(values.size()))));
}

struct Load {
  std::vector<double> seconds;  // from a launch to its end, in the order of launches
  std::uint64_t measured = 0;   // candidates meanwhile

  double median() const { return within(seconds, 0.5); }
  /// The median of three parts' values, as the machine may be busy for a moment.
  double p99() const {
    std::vector<double> of_parts;
    const auto size = static_cast<std::ptrdiff_t>(seconds.size() / 3);
    for (int part = 0; part < 3; ++part) {
      const auto begin = seconds.begin() + part * size;
      of_parts.push_back(within({begin, begin + size}, 0.99));
    }
    return within(of_parts, 0.5);
  }
};

std::uint64_t measured_candidates(const Runtime& gpu) {
  const MetricSeries candidates = gpu.metrics().candidates_total;
  const auto found = candidates.find({"measured"});
  return found == candidates.end() ? 0 : found->second;
}

/// Launches 1,000 times a second for `seconds`, while the background has other problems to tune or
/// none.
Load serve(const Program& program, RuntimeOptions options, bool others, double seconds) {
  options.mode = Mode::background;
  options.background_compiles = true;
  const Runtime gpu(options);
  const auto handle = gpu.tuned(twice("served"));
  const auto norm = gpu.tuned(shipped_kernels().make("rmsnorm", "f32"));
  handle.tune({static_cast<std::int64_t>(kN)});
  if (others) {
    REQUIRE(gpu.prepare(norms(gpu, kProblems), {.work = PrepareWork::compile}).ready() ==
            kProblems);
    REQUIRE_FALSE(gpu.settled());
  }
  const Arrays arrays(gpu, kN);
  arrays.launch(handle, program.stream);
  program.wait();

  Load load;
  const std::uint64_t before = measured_candidates(gpu);
  int failed = 0;
  auto next = Clock::now();
  const auto end =
      next + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (next < end) {
    std::this_thread::sleep_until(next);
    const auto begin = Clock::now();
    arrays.launch(handle, program.stream);
    failed += program.driver->StreamSynchronize(program.own.get()) != CUDA_SUCCESS;
    load.seconds.push_back(seconds_since(begin));
    next = std::max(next + milliseconds(1), Clock::now());
  }
  load.measured = measured_candidates(gpu) - before;
  CHECK(failed == 0);
  return load;
}

// --- Starts -------------------------------------------------------------------------------------

constexpr int kKeys = 200;

/// y = (i + 1) x. Each is a kernel of its own, with one config.
KernelDefinition times(int i) {
  KernelDefinition k = twice();
  const float factor = static_cast<float>(i + 1);
  k.name = "times_" + std::to_string(i + 1);
  k.entry = "times";
  k.source.text =
      "template <int block> __global__ void times(float* y, const float* x, int n) {\n"
      "  const int i = blockIdx.x * block + threadIdx.x;\n"
      "  if (i < n) y[i] = " +
      std::to_string(i + 1) + ".0f * x[i];\n}\n";
  k.space = {};
  k.space.parameter("block", {128}, 128);
  k.reference = [factor](Span p, std::span<void* const> args) {
    for (std::int64_t j = 0; j < p[0]; ++j)
      static_cast<float*>(args[0])[j] = factor * static_cast<const float*>(args[1])[j];
  };
  return k;
}

std::vector<KernelDefinition> all_times() {
  std::vector<KernelDefinition> kernels;
  for (int i = 0; i < kKeys; ++i) kernels.push_back(times(i));
  return kernels;
}
std::vector<DynamicTuned> tuned(const Runtime& gpu, const std::vector<KernelDefinition>& kernels) {
  std::vector<DynamicTuned> handles;
  for (const KernelDefinition& kernel : kernels) handles.push_back(gpu.tuned(kernel));
  return handles;
}

constexpr int kStartN = 1000;

Manifest times_manifest(const Runtime& gpu) {
  Manifest manifest;
  for (int i = 0; i < kKeys; ++i)
    manifest.wanted.push_back({times(i).name, {}, gpu.device().target.arch, {{"n", kStartN}}, {}});
  return manifest;
}

}  // namespace

TEST_CASE("a kernel that waits for the host sees its flag at once while Kiln works",
          "[gpu][serving][slow]") {
  const Program program;
  RuntimeOptions untuned = in_memory(), background = in_memory();
  untuned.mode = Mode::untuned;
  background.mode = Mode::background;
  background.background = {.publish = Publish::at_commit, .max_evaluations = 4};
  const Runtime own(untuned), gpu(background);
  const HostWords words(program);
  const auto go = own.array(std::vector<int>{0});
  const auto other = runtime::create_stream(program.context);
  const auto spin = own.tuned(spinning()).at({1});
  const auto set_go = [&](unsigned char value, const runtime::CudaStream& stream) {
    return program.driver->MemsetD8Async(reinterpret_cast<CUdeviceptr>(go.data()), value,
                                         sizeof(int), stream.get());
  };
  const auto launch = [&] {
    words.clear();
    REQUIRE(set_go(0, program.own) == CUDA_SUCCESS);
    program.wait();
    spin(program.stream, words.data(), static_cast<const int*>(go.data()), kMostSpinning);
    REQUIRE(words.wait_for(HostWords::started));
  };
  // A first launch may have to load its kernel, which is not what this test looks at.
  REQUIRE(set_go(0, other) == CUDA_SUCCESS);
  launch();
  words.set(HostWords::go, 1);
  program.wait();

  std::atomic<bool> stop = false;
  Done done;
  const auto begin = Clock::now();
  std::jthread worker([&] { work(gpu, stop, done); });
  const StopAtTheEnd at_the_end{stop};
  std::vector<double> seen;         // delays
  double ended = 0, by_driver = 0;  // the longest
  int rounds = 0, cut_off = 0;
  const auto worked = [&] { return done.prepared > 1 && done.committed > 0; };
  while (rounds < 20 || (!worked() && done.failed == 0 && seconds_since(begin) < 60)) {
    // Each other flag is set by a call of the driver. What that waits for is printed, not judged:
    // the driver itself makes some calls wait for running kernels.
    const bool through_driver = rounds++ % 2 == 1;
    launch();
    std::this_thread::sleep_for(milliseconds(50));
    REQUIRE(words.get(HostWords::ended) == 0);
    const auto told = Clock::now();
    if (through_driver)
      REQUIRE(set_go(1, other) == CUDA_SUCCESS);
    else
      words.set(HostWords::go, 1);
    REQUIRE(words.wait_for(HostWords::ended));
    const double delay = seconds_since(told);
    const bool in_time = words.get(HostWords::ended) == 1;
    while (program.driver->StreamQuery(program.own.get()) == CUDA_ERROR_NOT_READY) {
    }
    if (through_driver) {
      by_driver = std::max(by_driver, delay);
      cut_off += !in_time;
    } else {
      CHECK(in_time);
      seen.push_back(delay);
      ended = std::max(ended, seconds_since(told));
    }
    program.wait();
    // A flag that came too late must not be the next kernel's.
    REQUIRE(program.driver->StreamSynchronize(other.get()) == CUDA_SUCCESS);
    std::this_thread::sleep_for(milliseconds(10));
  }
  stop = true;
  worker.join();
  std::ranges::sort(seen);
  std::printf(
      "a flag beside %d preparations and %d commits: seen after %.3f ms, its kernel known to have "
      "ended after %.3f ms; set by the driver %.3f ms, at most; %d rounds, %d of them cut off\n",
      done.prepared.load(), done.committed.load(), seen.back() * 1e3, ended * 1e3, by_driver * 1e3,
      rounds, cut_off);
  CHECK(done.failed == 0);
  CHECK(worked());
  // The host that takes the time may be late itself, once.
  CHECK(seen.at(seen.size() - 2) <= kMostDelay);
}

TEST_CASE("launches are as fast beside a background", "[gpu][serving][slow]") {
  const Program program;
  const TemporaryDirectory directory;
  RuntimeOptions options;
  options.device = "cuda";
  options.store.directory = directory.path() / "store";
  const Load first = serve(program, options, false, 5);
  const Load closed = serve(program, options, true, 5);
  options.background.duty = 0.05;
  const Load beside = serve(program, options, true, 15);
  const Load last = serve(program, options, false, 5);
  const double alone = std::max(first.p99(), last.p99());
  const auto percent = [&](double p99) { return 100 * (p99 / alone - 1); };
  std::printf(
      "at 1 kHz 99 of 100 launches take %.1f and %.1f us alone, %.1f us with closed windows "
      "(%+.1f %%), %.1f us beside a background of 5 %% duty (%+.1f %%), which measured %llu "
      "candidates; medians %.1f, %.1f, %.1f us\n",
      first.p99() * 1e6, last.p99() * 1e6, closed.p99() * 1e6, percent(closed.p99()),
      beside.p99() * 1e6, percent(beside.p99()), static_cast<unsigned long long>(beside.measured),
      first.median() * 1e6, closed.median() * 1e6, beside.median() * 1e6);
  CHECK(first.measured == 0);
  CHECK(closed.measured == 0);
  CHECK(beside.measured > 0);
  CHECK(closed.p99() <= 1.25 * alone + kNoise);
  CHECK(beside.p99() <= 1.25 * alone + kOneSample);
}

TEST_CASE("a warm start loads 200 kernels and opens no compiler", "[gpu][serving][slow]") {
  const Program program;
  const TemporaryDirectory directory;
  RuntimeOptions options;
  options.device = "cuda";
  options.store.directory = directory.path() / "store";
  const std::vector<KernelDefinition> kernels = all_times();
  Manifest manifest;
  double cold = 0;
  {
    const Runtime gpu(options);
    manifest = times_manifest(gpu);
    const auto handles = tuned(gpu, kernels);
    const PrepareReport report = gpu.prepare(manifest, {.max_seconds = 400});
    REQUIRE(report.complete());
    CHECK(report.compiled == kKeys);
    cold = report.seconds;
  }
  options.mode = Mode::lookup_only;
  std::atomic<int> opened = 0;
  const auto no_compiler = [&](Target::Kind) -> std::shared_ptr<codegen::Compiler> {
    ++opened;
    throw EnvironmentError("a compiler was asked for");
  };
  const int starts = std::getenv("KILN_LONG") ? 100 : 20;
  std::vector<double> alone, seconds, opening, asking, looking, loading;
  // The driver's own time is taken where one thread does all: it takes longer beside others.
  for (const unsigned threads : {1u, 0u}) {
    options.compile_threads = threads;
    for (int start = 0; start < starts; ++start) {
      CAPTURE(start, threads);
      const int loaded = Counted::loaded;
      const std::int64_t loading_ns = Counted::loading_ns;
      const auto begin = Clock::now();
      const Runtime gpu = Counted::runtime(options, no_compiler);
      const double opened_after = seconds_since(begin);
      const auto handles = tuned(gpu, kernels);
      const double asked_after = seconds_since(begin);
      const PrepareReport report = gpu.prepare(manifest, {.work = PrepareWork::look_up});
      const double all = seconds_since(begin);
      REQUIRE(Counted::loaded - loaded == kKeys);
      if (threads == 1) {
        alone.push_back(double(Counted::loading_ns - loading_ns) * 1e-9);
        continue;
      }
      opening.push_back(opened_after);
      asking.push_back(asked_after - opened_after);
      looking.push_back(report.compile_seconds);
      loading.push_back(report.load_seconds);
      seconds.push_back(all);

      CHECK(report.complete());
      CHECK(report.count(PreparedState::known) == kKeys);
      CHECK(report.compiled == 0);
      CHECK(gpu.statistics().compiled == 0);
      CHECK(gpu.statistics().tuned == 0);
      gpu.seal(OnUnprepared::error);
      for (const int i : {0, start % kKeys, kKeys - 1}) {
        const Arrays arrays(gpu, kStartN);
        arrays.launch(handles[static_cast<std::size_t>(i)], program.stream);
        program.wait();
        std::vector<float> expected = counting(kStartN);
        for (float& value : expected) value *= static_cast<float>(i + 1);
        CHECK(arrays.y.download() == expected);
      }
    }
  }
  const double median = within(seconds, 0.5), driver = within(alone, 0.5);
  std::printf(
      "%d warm starts of %d kernels: %.4f s (cold %.1f s), %.2f times what the driver takes to "
      "load them (%.2f ms), at most %.2f; compilers opened %d\n",
      starts, kKeys, median, cold, median / driver, driver * 1e3, within(seconds, 1) / driver,
      opened.load());
  const auto milliseconds = [](const std::vector<double>& of) { return 1e3 * within(of, 0.5); };
  std::printf(
      "of it %.2f ms for the runtime, %.2f ms for the handles, %.2f ms until all were found, "
      "loading %.2f ms\n",
      milliseconds(opening), milliseconds(asking), milliseconds(looking), milliseconds(loading));
  CHECK(opened == 0);
  CHECK(median - 3 * driver <= 0.5);
}
