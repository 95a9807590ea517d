// A search that ends in time, continues later, and reports what it did.
#include <chrono>
#include <cstdio>
#include <stop_token>
#include <thread>

#include "saxpy_kernel.hpp"

int main() {
  const kiln::KernelDefinition definition = saxpy_kernel().definition();
  const kiln::Runtime runtime;
  const auto space =
      kiln::count_configs(definition.space, kiln::Values{1 << 18}, runtime.device().limits);
  std::printf("%.0f of %.0f configs are allowed\n", space.allowed, space.combinations);

  const auto tuned = runtime.tuned(saxpy_kernel());
  const SaxpyProblem problem{1 << 18};
  std::stop_source stop;
  std::jthread impatient([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop.request_stop();
  });

  kiln::TuneOptions options;
  options.max_seconds = 5;          // or max_evaluations, or target_seconds, or none of them
  options.stop = stop.get_token();  // from any thread: the best so far is the answer
  const kiln::TuneResult result = tuned.tune(problem, options);
  std::printf("%zu tried, ended by: %s, best %s\n", result.candidates.size(), to_string(result.end),
              result.describe(result.winner()).c_str());

  // Without a budget the search is brought to its end; nothing is tried twice.
  const kiln::TuneResult rest = tuned.tune(problem, kiln::TuneOptions{});
  std::printf("%zu more tried, ended by: %s, best %s: %.2f times the default's speed\n",
              rest.evaluated, to_string(rest.end), rest.describe(rest.winner()).c_str(),
              rest.speedup());
  return rest.complete ? 0 : 1;
}
