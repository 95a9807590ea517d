// An engine that embeds Kiln and compiles nothing: its kernels come out of a bundle. Before it
// serves, it prepares the problems that it knows of and those that an earlier run has written
// down.
//
// Usage: bundled_engine BUNDLE WANTED.json [DEVICE [PUBLIC_KEY.pem]]
// Exit code: 0 served; 1 a wrong result or an error; 4 served, but something was missing or not
// prepared: another config ran, or no kernel at all. WANTED.json has it, for `kiln precompile
// --manifest` and for the next run.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <vector>

#include <kiln/kiln.hpp>

namespace {

std::vector<float> numbers(int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = float(i % 17) - 8;
  return values;
}

class Engine {
 public:
  explicit Engine(const kiln::RuntimeOptions& options)
      : runtime_(options),
        add_(runtime_.tuned(kiln::shipped_kernels().make("vector_add", "f32"))),
        rmsnorm_(runtime_.tuned(kiln::shipped_kernels().make("rmsnorm", "f32"))) {}

  /// Loads what the bundle has for these problems. From then on serving looks for nothing.
  void prepare(const kiln::Manifest& manifest) {
    const kiln::PrepareReport report =
        runtime_.prepare(manifest, {.work = kiln::PrepareWork::look_up});
    std::printf("%zu of %zu problems are ready\n", report.ready(), report.problems.size());
    for (const kiln::PreparedProblem& p : report.problems)
      if (p.missing) std::printf("missing: %s\n", p.missing->instance.c_str());
    runtime_.seal(kiln::OnUnprepared::serve);
  }

  /// The problems that are known before the first request.
  kiln::Manifest expected() const {
    const std::string target = runtime_.device().target.arch;
    return {{{"vector_add", {"float"}, target, {{"n", 1000}}, {}},
             {"vector_add", {"float"}, target, {{"n", 5000}}, {}},
             {"vector_add", {"float"}, target, {{"n", 100000}}, {}},
             {"rmsnorm", {"float"}, target, {{"rows", 1}, {"hidden", 256}}, {}},
             {"rmsnorm", {"float"}, target, {{"rows", 4}, {"hidden", 256}}, {}}}};
  }

  std::vector<float> add(const std::vector<float>& a, const std::vector<float>& b) try {
    const int n = int(a.size());
    auto out = runtime_.array<float>(n), left = runtime_.array(a), right = runtime_.array(b);
    add_(kiln::Stream{}, {n}, out.data(), left.data(), right.data(), n);
    runtime_.synchronize();
    return out.download();
  } catch (const kiln::UnpreparedError& error) {
    std::printf("without a kernel: %s\n", error.wanted().kernel.c_str());
    std::vector<float> out(a);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += b[i];
    return out;
  }

  std::vector<float> rmsnorm(const std::vector<float>& x, const std::vector<float>& w,
                             int rows) try {
    const int hidden = int(w.size());
    auto y = runtime_.array<float>(x.size()), input = runtime_.array(x), weight = runtime_.array(w);
    rmsnorm_(kiln::Stream{}, {rows, hidden}, y.data(), input.data(), weight.data(), rows, hidden,
             1e-5f);
    runtime_.synchronize();
    return y.download();
  } catch (const kiln::UnpreparedError& error) {
    std::printf("without a kernel: %s\n", error.wanted().kernel.c_str());
    return plain_rmsnorm(x, w, rows);
  }

  static std::vector<float> plain_rmsnorm(const std::vector<float>& x, const std::vector<float>& w,
                                          int rows) {
    std::vector<float> y(x.size());
    for (int r = 0; r < rows; ++r) {
      const float* row = x.data() + r * w.size();
      double squares = 0;
      for (std::size_t h = 0; h < w.size(); ++h) squares += double(row[h]) * row[h];
      const double scale = 1 / std::sqrt(squares / double(w.size()) + 1e-5);
      for (std::size_t h = 0; h < w.size(); ++h) y[r * w.size() + h] = float(row[h] * scale * w[h]);
    }
    return y;
  }

  kiln::Manifest wanted() const { return runtime_.wanted(); }
  /// Launches that no preparation was for.
  std::size_t unprepared() const {
    const kiln::RuntimeStatistics statistics = runtime_.statistics();
    return statistics.unprepared_served + statistics.unprepared_refused;
  }

 private:
  kiln::Runtime runtime_;
  kiln::DynamicTuned add_, rmsnorm_;
};

/// Whether all of it is within a millionth or so of what it should be.
bool near(const std::vector<float>& got, const std::vector<float>& want) {
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= 1e-5f * std::abs(want[i]) + 1e-6f)) {
      std::printf("element %zu is %g instead of %g\n", i, got[i], want[i]);
      return false;
    }
  return true;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fputs("usage: bundled_engine BUNDLE WANTED.json [DEVICE [PUBLIC_KEY.pem]]\n", stderr);
    return 1;
  }
  kiln::RuntimeOptions options;
  options.device = argc > 3 ? argv[3] : "host";
  options.mode = kiln::Mode::frozen;  // the bundle and nothing else: no compiler, no file written
  options.store.roots = {argv[1]};
  if (argc > 4) options.store.bundle_key = argv[4];  // a bundle that it does not verify is refused
  options.log = [](kiln::LogLevel, std::string_view text) {
    std::fprintf(stderr, "engine: %.*s\n", int(text.size()), text.data());
  };
  Engine engine(options);
  kiln::Manifest listed;  // what earlier runs found missing or unprepared
  if (std::filesystem::exists(argv[2])) listed = kiln::Manifest::read(argv[2]);
  kiln::Manifest known = engine.expected();
  known.wanted.insert(known.wanted.end(), listed.wanted.begin(), listed.wanted.end());
  engine.prepare(known);

  bool right = true;
  for (int n : {1000, 5000, 100000}) {
    const std::vector<float> a = numbers(n);
    std::vector<float> sum(n);
    for (int i = 0; i < n; ++i) sum[i] = a[i] + a[i];
    right = near(engine.add(a, a), sum) && right;
  }
  for (int rows : {1, 4, 30}) {
    const std::vector<float> x = numbers(rows * 256), w = numbers(256);
    right = near(engine.rmsnorm(x, w, rows), Engine::plain_rmsnorm(x, w, rows)) && right;
  }

  const kiln::Manifest wanted = engine.wanted();
  listed.wanted.insert(listed.wanted.end(), wanted.wanted.begin(), wanted.wanted.end());
  listed.write(argv[2]);
  std::printf("%s, %zu unprepared launches, %zu wanted\n", right ? "all right" : "WRONG",
              engine.unprepared(), wanted.wanted.size());
  return !right ? 1 : wanted.wanted.empty() ? 0 : 4;
} catch (const kiln::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
