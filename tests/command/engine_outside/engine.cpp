// An engine of four threads that serves with the shipped kernels, each request of a problem of its
// own, while other threads' problems are tuned. Usage: engine BUDGET-IN-SECONDS ROUNDS
//
// Prints for each thread its launches and the longest one, and at last the worst of all as a part
// of the budget. Exit code 1: an error, or a wrong result.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <kiln/kernels/gemm.hpp>
#include <kiln/kernels/rmsnorm.hpp>
#include <kiln/kernels/vector_add.hpp>
#include <kiln/registry.hpp>
#include <kiln/runtime.hpp>

namespace {

using Clock = std::chrono::steady_clock;

/// Small integers, whose sums and products are exact. Each `seed` gives another list.
std::vector<float> numbers(std::size_t count, int seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = float(int((i * 7 + seed * 13) % 17) - 8);
  return values;
}

/// One thread's account.
class Server {
 public:
  explicit Server(std::string name) : name_(std::move(name)) {}

  /// One request: `launch` is the call into Kiln, `right` looks at what it left.
  void serve(const std::function<void()>& launch, const std::function<bool()>& right) {
    ++requests_;
    const auto begin = Clock::now();
    launch();
    worst_ = std::max(worst_, std::chrono::duration<double>(Clock::now() - begin).count());
    if (right())
      ++right_;
    else
      std::printf("%s: request %d is wrong\n", name_.c_str(), requests_);
  }
  void failed(const char* why) { std::printf("%s: %s\n", name_.c_str(), why); }

  void print() const {
    std::printf("%s: %d launches, %d right, worst %.3f s\n", name_.c_str(), requests_, right_,
                worst_);
  }
  bool good() const { return requests_ > 0 && right_ == requests_; }
  int requests() const { return requests_; }
  double worst() const { return worst_; }

 private:
  std::string name_;
  int requests_ = 0, right_ = 0;
  double worst_ = 0;  ///< seconds
};

void add_vectors(const kiln::Runtime& runtime, Server& server, int rounds) {
  const auto add = runtime.tuned(kiln::templates::vector_add_kernel<float>());
  for (int round = 0; round < rounds; ++round)
    for (int n : {1000, 70000, 300000, 1 << 20}) {
      const std::vector<float> a = numbers(n, round), b = numbers(n, round + 1);
      std::vector<float> out(n, -1.0f);
      server.serve([&] { add({}, out.data(), a.data(), b.data(), n); },
                   [&] {
                     for (int i = 0; i < n; ++i)
                       if (out[i] != a[i] + b[i]) return false;
                     return true;
                   });
    }
}

/// Makes a kernel by its name, as an engine does that reads its kernels off a list.
void add_residuals(const kiln::Runtime& runtime, Server& server, int rounds) {
  const auto add = runtime.tuned(kiln::shipped_kernels().make("residual_add", "f32"));
  const int hidden = 1024;
  for (int round = 0; round < rounds; ++round)
    for (int rows : {1, 16, 100, 500}) {
      const std::size_t n = std::size_t(rows) * hidden;
      const std::vector<float> x = numbers(n, round), r = numbers(n, round + 2);
      std::vector<float> out(n, -1.0f);
      server.serve([&] { add({}, {rows, hidden}, out.data(), x.data(), r.data(), rows, hidden); },
                   [&] {
                     for (std::size_t i = 0; i < n; ++i)
                       if (out[i] != x[i] + r[i]) return false;
                     return true;
                   });
    }
}

void normalise(const kiln::Runtime& runtime, Server& server, int rounds) {
  const auto norm = runtime.tuned(kiln::templates::rmsnorm_kernel<float>());
  const int hidden = 768;
  const float eps = 1e-5f;
  for (int round = 0; round < rounds; ++round)
    for (int rows : {1, 7, 60, 200}) {
      const std::size_t n = std::size_t(rows) * hidden;
      const std::vector<float> x = numbers(n, round), w = numbers(hidden, round + 3);
      std::vector<float> y(n, -1.0f);
      server.serve([&] { norm({}, y.data(), x.data(), w.data(), rows, hidden, eps); },
                   [&] {
                     for (std::size_t r = 0; r < std::size_t(rows); ++r) {
                       const float* row = &x[r * hidden];
                       double squares = 0;
                       for (int h = 0; h < hidden; ++h) squares += double(row[h]) * row[h];
                       const double scale = 1 / std::sqrt(squares / hidden + double(eps));
                       for (int h = 0; h < hidden; ++h) {
                         const double want = row[h] * scale * w[h], got = y[r * hidden + h];
                         if (!(std::abs(got - want) <= 1e-5 * std::abs(want) + 1e-6)) return false;
                       }
                     }
                     return true;
                   });
    }
}

void multiply(const kiln::Runtime& runtime, Server& server, int rounds) {
  const auto gemm = runtime.tuned(kiln::templates::gemm_kernel<float>());
  const int n = 192, k = 256;
  for (int round = 0; round < rounds; ++round)
    for (int m : {1, 8, 33, 100}) {
      const std::vector<float> a = numbers(std::size_t(m) * k, round),
                               b = numbers(std::size_t(n) * k, round + 4);
      std::vector<float> c(std::size_t(m) * n, -1.0f);
      server.serve([&] { gemm({}, c.data(), a.data(), b.data(), m, n, k); },
                   [&] {
                     for (int i = 0; i < m; ++i)
                       for (int j = 0; j < n; ++j) {
                         float sum = 0;
                         for (int l = 0; l < k; ++l) sum += a[i * k + l] * b[j * k + l];
                         if (c[i * n + j] != sum) return false;
                       }
                     return true;
                   });
    }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fputs("usage: engine BUDGET-IN-SECONDS ROUNDS\n", stderr);
    return 1;
  }
  kiln::RuntimeOptions options;
  options.device = "host";
  options.tuning.max_seconds = std::atof(argv[1]);
  options.log = [](kiln::LogLevel level, std::string_view text) {
    if (level == kiln::LogLevel::warning)
      std::printf("kiln: %.*s\n", int(text.size()), text.data());
  };
  const int rounds = std::atoi(argv[2]);
  const kiln::Runtime runtime(options);

  std::vector<Server> servers{Server("vector_add"), Server("residual_add"), Server("rmsnorm"),
                              Server("gemm")};
  constexpr decltype(&add_vectors) kWork[] = {add_vectors, add_residuals, normalise, multiply};
  std::atomic<bool> failed = false;
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < servers.size(); ++i)
      threads.emplace_back([&, i] {
        try {
          kWork[i](runtime, servers[i], rounds);
        } catch (const std::exception& error) {
          servers[i].failed(error.what());
          failed = true;
        }
      });
  }
  double worst = 0;
  int launches = 0;
  for (const Server& server : servers) {
    server.print();
    worst = std::max(worst, server.worst());
    launches += server.requests();
    if (!server.good()) failed = true;
  }
  std::printf("%d launches, %zu problems tuned\n", launches, runtime.statistics().tuned);
  std::printf("worst stall %.2f of the budget\n", worst / *options.tuning.max_seconds);
  return failed ? 1 : 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
