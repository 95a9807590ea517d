// A program that serves while its kernels are tuned. Launches never wait: the background measures
// in windows that the program opens between two bursts of requests.
//
// Usage: background [DEVICE]
// Exit code: 0 all results were right, and everything is settled at the end.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <kiln/kiln.hpp>

namespace {

using Clock = std::chrono::steady_clock;

/// Requests of different sizes, each a sum of two arrays.
class Server {
 public:
  explicit Server(const kiln::Runtime& runtime)
      : runtime_(runtime), add_(runtime.tuned(kiln::shipped_kernels().make("vector_add", "f32"))) {}

  /// Whether the result was right.
  bool serve(int n) {
    const std::vector<float> ones(n, 1.0f);
    auto out = runtime_.array<float>(n), a = runtime_.array(ones), b = runtime_.array(ones);
    const auto begin = Clock::now();
    add_(kiln::Stream{}, {n}, out.data(), a.data(), b.data(), n);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (served_[n]++ > 0) slowest_ = std::max(slowest_, seconds);  // the first has to load a kernel
    runtime_.synchronize();
    const std::vector<float> sums = out.download();
    return std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == 2; });
  }
  double slowest() const { return slowest_; }

 private:
  const kiln::Runtime& runtime_;
  kiln::DynamicTuned add_;
  std::map<int, int> served_;
  double slowest_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  kiln::RuntimeOptions options;
  options.device = argc > 1 ? argv[1] : "auto";
  options.mode = kiln::Mode::background;
  options.background = {.publish = kiln::Publish::at_commit, .max_evaluations = 8};
  const kiln::Runtime runtime(options);
  Server server(runtime);
  std::mt19937 random(1);
  bool right = true;
  for (int burst = 0; burst < 300 && (burst < 2 || !runtime.settled()); ++burst) {
    for (int request = 0; request < 50; ++request)
      right = server.serve(1 << (16 + random() % 3)) && right;
    const auto wait_for_requests = [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    };
    auto window = runtime.window({.max_seconds = 2});  // the GPU has nothing urgent to do
    wait_for_requests();
    window.close();    // nothing is measured any more
    runtime.commit();  // between two steps: launches get what was found
  }
  std::printf("%s; the slowest launch of a known size took %.3f ms\n",
              runtime.settled() ? "settled" : "not settled", server.slowest() * 1e3);
  return right && runtime.settled() ? 0 : 1;
} catch (const kiln::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
