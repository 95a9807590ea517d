// What tuning found, and that a second runtime (here, or in another process) needs none of it.
#include <cstdio>

#include "saxpy_kernel.hpp"

int main() {
  const SaxpyProblem problem{1 << 18};
  const kiln::TuneResult first = kiln::Runtime().tuned(saxpy_kernel()).tune(problem);
  for (const kiln::Candidate& c : first.candidates)
    std::printf("%-20s %-20s %8.2f us  %s\n", first.describe(c).c_str(), to_string(c.status),
                c.seconds * 1e6, c.reason.c_str());
  std::printf("winner %s: %.2f times the default's speed, %.1f GB/s\n",
              first.describe(first.winner()).c_str(), first.speedup(),
              first.bytes / first.winner().seconds * 1e-9);

  kiln::Runtime again;
  const kiln::TuneResult second = again.tuned(saxpy_kernel()).tune(problem);
  std::printf("again: %s, %zu instances compiled\n",
              second.from_store ? "from the store" : "measured", again.statistics().compiled);
  return second.from_store && again.statistics().compiled == 0 &&
                 second.winner().config == first.winner().config
             ? 0
             : 1;
}
