// An engine that embeds Kiln: several threads serve requests of random sizes, and no launch of
// theirs waits for a compiler or a tuning. It shows the four steps of such a program: prepare what
// is expected, seal, tune behind the launches in windows, commit. It is its own load generator,
// too: it serves the same load twice, without tuning and with it, and says how long launches took.
//
// Usage: engine [--seconds N] [--threads N] [--device DEVICE]
// Exit code: 0 all results were right, and every expected problem was ready before the first
// request.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <kiln/kiln.hpp>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHidden = 256;       // elements of a row
constexpr int kMostRows = 64;      // of a request
constexpr int kExpectedRows = 32;  // what the engine prepares for; larger requests are rare

struct Settings {
  double seconds = 4;
  int threads = 4;
  std::string device = "auto";  // the first GPU, or the host where there is none
};

/// How long launches took, of one thread or of all.
class Latencies {
 public:
  void add(Clock::duration took) { seconds_.push_back(std::chrono::duration<float>(took).count()); }
  void add(const Latencies& others) {
    seconds_.insert(seconds_.end(), others.seconds_.begin(), others.seconds_.end());
  }
  /// The time within which this share of all launches returned.
  double within(double share) {
    const auto nth =
        std::min(seconds_.size() - 1, static_cast<std::size_t>(share * double(seconds_.size())));
    std::nth_element(seconds_.begin(), seconds_.begin() + std::ptrdiff_t(nth), seconds_.end());
    return seconds_[nth];
  }
  void print(const char* what) {
    std::printf("%-16s %9zu launches: p50 %.1f us, p99 %.1f us, p99.9 %.1f us, max %.3f ms\n", what,
                seconds_.size(), within(0.5) * 1e6, within(0.99) * 1e6, within(0.999) * 1e6,
                within(1) * 1e3);
  }
  bool empty() const { return seconds_.empty(); }

 private:
  std::vector<float> seconds_;
};

class Engine {
 public:
  explicit Engine(const kiln::RuntimeOptions& options)
      : runtime_(options),
        add_(runtime_.tuned(kiln::shipped_kernels().make("vector_add", "f32"))),
        rmsnorm_(runtime_.tuned(kiln::shipped_kernels().make("rmsnorm", "f32"))) {}

  /// Compiles and loads everything that requests are expected to need. From then on no launch looks
  /// for anything: one of an unexpected size gets a kernel that is loaded.
  bool prepare() {
    const std::string target = runtime_.device().target.arch;
    kiln::Manifest expected;
    for (int rows = 1; rows <= kExpectedRows; ++rows) {
      expected.wanted.push_back(
          {"rmsnorm", {"float"}, target, {{"rows", rows}, {"hidden", kHidden}}, {}});
      expected.wanted.push_back({"vector_add", {"float"}, target, {{"n", rows * kHidden}}, {}});
    }
    const kiln::PrepareReport report =
        runtime_.prepare(expected, {.work = kiln::PrepareWork::compile});
    runtime_.seal(kiln::OnUnprepared::serve);
    return report.ready() == report.problems.size();
  }

  /// What one thread works with: memory that is there before the first request.
  struct Worker {
    explicit Worker(const kiln::Runtime& runtime, unsigned seed)
        : random(seed),
          x(runtime.array<float>(kMostRows * kHidden)),
          y(runtime.array<float>(kMostRows * kHidden)),
          weight(runtime.array<float>(kHidden)) {
      x.upload(std::vector<float>(kMostRows * kHidden, 2));
      weight.upload(std::vector<float>(kHidden, 3));
    }
    std::mt19937 random;
    kiln::Array<float> x, y, weight;
    Latencies latencies;
    bool right = true;
  };

  /// One request: y = x / rms(x) * weight, and then y = y + x. All of x is 2 and all weights are 3,
  /// so all of y is 5.
  void serve(Worker& worker) {
    // Most requests are small: half of them have one to four rows.
    const double size = std::exponential_distribution(0.17)(worker.random);
    const int rows = std::clamp(1 + int(size), 1, kMostRows), n = rows * kHidden;
    float *const x = worker.x.data(), *const y = worker.y.data();
    const auto begin = Clock::now();
    rmsnorm_(kiln::Stream{}, {rows, kHidden}, y, x, worker.weight.data(), rows, kHidden, 1e-5f);
    const auto between = Clock::now();
    add_(kiln::Stream{}, {n}, y, y, x, n);
    worker.latencies.add(between - begin);
    worker.latencies.add(Clock::now() - between);
    if (worker.random() % 64 != 0) return;
    runtime_.synchronize();
    const std::vector<float> all = worker.y.download();
    worker.right = worker.right && std::all_of(all.begin(), all.begin() + n,
                                               [](float v) { return std::abs(v - 5) < 1e-3f; });
  }

  /// Serves from several threads for a while. Meanwhile the engine's own thread calls `step` again
  /// and again.
  template <class Step>
  std::optional<Latencies> run(const Settings& settings, const Step& step) {
    std::vector<Worker> workers;
    for (int t = 0; t < settings.threads; ++t) workers.emplace_back(runtime_, unsigned(t));
    std::atomic<bool> over{false};
    {
      std::vector<std::jthread> threads;
      for (Worker& worker : workers)
        threads.emplace_back([&] {
          // Requests come when they come, about a thousand a second.
          std::exponential_distribution<double> pause(1000);
          while (!over) {
            std::this_thread::sleep_for(std::chrono::duration<double>(pause(worker.random)));
            serve(worker);
          }
        });
      const auto end = Clock::now() + std::chrono::duration<double>(settings.seconds);
      while (Clock::now() < end) step();
      over = true;
    }
    Latencies all;
    bool right = true;
    for (const Worker& worker : workers) {
      all.add(worker.latencies);
      right = right && worker.right;
    }
    return right && !all.empty() ? std::optional(all) : std::nullopt;
  }

  const kiln::Runtime& runtime() const { return runtime_; }

 private:
  kiln::Runtime runtime_;
  kiln::DynamicTuned add_, rmsnorm_;
};

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

/// What an engine's monitoring shows; kiln::write_prometheus writes all of it.
void report(const kiln::Runtime& runtime, std::size_t changed) {
  const kiln::RuntimeStatistics statistics = runtime.statistics();
  const kiln::RuntimeMetrics metrics = runtime.metrics();
  std::printf("%llu candidates measured, %zu problems put in use, %s\n",
              static_cast<unsigned long long>(metrics.candidates_total.at({"measured"})), changed,
              runtime.settled() ? "nothing is left to be tuned" : "more would be tuned");
  std::printf(
      "%zu unprepared launches were served, %zu refused; %llu modules of %llu bytes loaded\n",
      statistics.unprepared_served, statistics.unprepared_refused,
      static_cast<unsigned long long>(metrics.modules_loaded),
      static_cast<unsigned long long>(metrics.module_bytes));
}

/// Nothing is tuned: what the launches alone take.
std::optional<Latencies> serve_untuned(const Settings& settings, kiln::RuntimeOptions options) {
  options.mode = kiln::Mode::untuned;
  Engine engine(options);
  if (!engine.prepare()) return {};
  return engine.run(settings, rest);
}

/// The same load, while a thread of Kiln's own compiles and measures behind it.
std::optional<Latencies> serve_tuned(const Settings& settings, kiln::RuntimeOptions options) {
  options.mode = kiln::Mode::background;
  options.background = {.publish = kiln::Publish::at_commit, .max_evaluations = 8};
  options.background_compiles = true;
  Engine engine(options);
  if (!engine.prepare()) return {};
  const kiln::Runtime& runtime = engine.runtime();
  std::size_t changed = 0;
  auto latencies = engine.run(settings, [&] {
    // Here the window is open for most of the time; an engine opens it when it has little to do.
    auto window = runtime.window();
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(2.0, settings.seconds)));
    window.close();                              // nothing is measured any more
    changed += runtime.commit().changes.size();  // from now on launches get what was found
    rest();
  });
  report(runtime, changed);
  return latencies;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seconds")
      settings.seconds = std::atof(argv[i + 1]);
    else if (name == "--threads")
      settings.threads = std::atoi(argv[i + 1]);
    else if (name == "--device")
      settings.device = argv[i + 1];
    else
      throw kiln::UserError("there is no option " + name);
  }
  if (argc % 2 == 0 || !(settings.seconds > 0) || settings.threads < 1)
    throw kiln::UserError("usage: engine [--seconds N] [--threads N] [--device DEVICE]");
  return settings;
}

}  // namespace

int main(int argc, char** argv) try {
  Settings settings = parse(argc, argv);
  settings.seconds /= 2;  // for each of the two
  kiln::RuntimeOptions options;
  options.device = settings.device;
  auto untuned = serve_untuned(settings, options), tuned = serve_tuned(settings, options);
  if (!untuned || !tuned) {
    std::fputs("a result was wrong, or something could not be prepared\n", stderr);
    return 1;
  }
  untuned->print("without tuning:");
  tuned->print("with tuning:");
  std::printf("p99 with tuning is %.2f times that without\n",
              tuned->within(0.99) / untuned->within(0.99));
  return 0;
} catch (const kiln::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
