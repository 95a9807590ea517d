// The examples of public headers about kernels of several ranks, as in header_examples.cpp.
#include <memory>

#include "kiln/kiln.hpp"

// clang-format off
#pragma GCC diagnostic ignored "-Wunused-variable"
struct ExchangeConfig { int threads; };
KILN_CONFIG(ExchangeConfig, threads)
struct ExchangeProblem { int n; };
KILN_PROBLEM(ExchangeProblem, n)

namespace header_examples {

void ranks() {
  kiln::RankOptions options;
  options.strategy = kiln::RankStrategy::shard;
}

void symmetric(kiln::Runtime& runtime, kiln::Stream stream, std::shared_ptr<kiln::Communicator> ranks,
               kiln::Tuned<ExchangeConfig, ExchangeProblem, void(const kiln::Peers*, unsigned)>& exchange,
               unsigned epoch) {
  kiln::SymmetricMemory memory(runtime, ranks, {.bytes = 1 << 20, .flags = 2});
  memory.within(kiln::deadline_in(10), [&] {
    exchange(stream, memory.peers(), ++epoch);  // a kernel with a `const kiln::Peers*`
    runtime.synchronize(stream);
  });
  memory.close();
}

}  // namespace header_examples
