// The operations of ranks on GPUs, a thread and a GPU for each rank: captured in graphs, two at
// once on two streams, with epochs that wrap round, with sizes that nothing divides, and without a
// rank. Each tells with one line what was tried. One GPU is one rank.
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpu/peer_configs.hpp"
#include "kiln_test.hpp"
#include "peer_turns.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

using T = bfloat16;

/// A stream of a rank's own, and graphs that are captured and launched on it.
class RankStream {
 public:
  explicit RankStream(int ordinal)
      : context_(std::make_shared<const runtime::CudaContext>(driver_, ordinal)),
        current_(*context_),
        own_(runtime::create_stream(context_)) {}

  Stream stream() const { return runtime::view(own_); }
  runtime::CudaGraphExec capture(const std::function<void()>& launches) const {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    check(driver_->StreamBeginCapture(own_.get(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launches();
    check(driver_->StreamEndCapture(own_.get(), &graph));
    const runtime::CudaGraph captured(context_, graph);
    check(driver_->GraphInstantiateWithFlags(&exec, graph, 0));
    return {context_, exec};
  }
  void launch(const runtime::CudaGraphExec& exec) const {
    check(driver_->GraphLaunch(exec.get(), own_.get()));
  }
  void wait() const { check(driver_->StreamSynchronize(own_.get())); }

 private:
  static void check(CUresult result) {
    if (result != CUDA_SUCCESS)
      throw std::runtime_error("the driver refuses: " + std::to_string(int(result)));
  }

  const std::shared_ptr<const runtime::DriverTable> driver_ = runtime::probe_cuda().driver;
  const std::shared_ptr<const runtime::CudaContext> context_;
  const runtime::CurrentContext current_;
  const runtime::CudaStream own_;
};

int ranks() { return static_cast<int>(gpus().size()); }

std::vector<Turns<T>> joined(std::vector<Turns<T>> first, std::vector<Turns<T>> second) {
  for (Turns<T>& work : second) first.push_back(std::move(work));
  return first;
}

/// Of both kinds, compiled.
std::vector<Turns<T>> everything(int m, int n, int k) {
  const auto all =
      joined(every_gemm(m, n, k), every_experts({m / 3, 256, k, 8, 2, ranks()}, Routing::balanced));
  compile_first(gpus().front(), all);
  return all;
}

/// What each round of each operation gives when it is launched by itself.
using Eager = std::vector<std::array<std::vector<T>, RepeatedOperation<T>::kRounds>>;

Eager eager_results(const Runtime& runtime, const SymmetricMemory& memory,
                    const std::vector<RepeatedOperation<T>>& turns, Findings& findings) {
  Eager eager(turns.size());
  for (int round = 0; round < RepeatedOperation<T>::kRounds; ++round)
    for (std::size_t i = 0; i < turns.size(); ++i) {
      memory.within(deadline_in(60), [&] {
        turns[i].feed_and_start({}, round);
        runtime.synchronize();
      });
      findings.check(turns[i].is_right(round));
      eager[i][std::size_t(round)] = turns[i].result();
    }
  return eager;
}

/// One graph has all operations twice, which use one memory.
std::string check_graphs(const Turns<T>& work, int replays) {
  Findings findings;
  std::string thrown = on_peers(
      gpus(), work.bytes,
      [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
        const auto turns = work.make(runtime, memory);
        const Eager eager = eager_results(runtime, memory, turns, findings);
        const RankStream own(memory.rank());
        memory.within(deadline_in(60), [&] {  // a stream has its workspaces before it is captured
          for (const auto& operation : turns) operation.feed_and_start(own.stream(), 0);
          own.wait();
        });
        const auto graph = own.capture([&] {
          for (int twice = 0; twice < 2; ++twice)
            for (const auto& operation : turns) operation.start(own.stream());
        });
        for (int replay = 0; replay < replays; ++replay) {
          straggle(memory.rank(), replay, 300);
          memory.within(deadline_in(60), [&] {
            // Now and then several replays in a row, without an end in between.
            for (int last = replay + replay % 3; replay <= last; ++replay) {
              for (const auto& operation : turns) operation.feed(own.stream(), replay);
              own.launch(graph);
            }
            --replay;
            own.wait();
          });
          // Rows that belong to no expert have no meaning; all others are exact.
          const auto round = std::size_t(replay % RepeatedOperation<T>::kRounds);
          for (std::size_t i = 0; i < turns.size(); ++i)
            findings.check(same_bytes(turns[i].result(), eager[i][round]) ||
                           turns[i].is_right(replay));
        }
      },
      work.flags, 0, work.store);
  return thrown + findings.wrong();
}

/// Two operations at once, on two streams, each with a memory of its own; each leaves room for the
/// other one, because all blocks of both must run. `swapped`: ranks begin the two in different
/// orders.
std::string check_two_streams(const Turns<T>& one, const Turns<T>& other, int rounds,
                              bool swapped) {
  Findings findings;
  const auto device = runtime::make_cuda_device(runtime::probe_cuda().driver, 0);
  const int all = device->info().limits.multiprocessors;
  std::string thrown = on_peers(
      gpus(), one.bytes,
      [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
        SymmetricMemory second(runtime, communicator, {.bytes = other.bytes, .flags = other.flags});
        const auto a = one.make(runtime, memory), b = other.make(runtime, second);
        const RankStream left(memory.rank()), right(memory.rank());
        const auto both = [&](const std::function<void()>& work) {
          memory.within(deadline_in(60), [&] { second.within(deadline_in(60), work); });
        };
        both([&] {  // what is launched is loaded before anything waits
          for (const auto& operation : a) operation.feed_and_start(left.stream(), 0), left.wait();
          for (const auto& operation : b) operation.feed_and_start(right.stream(), 0), right.wait();
        });
        for (int round = 0; round < rounds; ++round)
          for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
            const bool first = (round + (swapped ? memory.rank() : 0)) % 2 == 0;
            both([&] {
              for (int turn = 0; turn < 2; ++turn) {
                straggle(memory.rank(), 2 * round + turn, 300);
                if ((turn == 0) == first)
                  a[i].feed_and_start(left.stream(), round);
                else
                  b[i].feed_and_start(right.stream(), round);
              }
              if (round % 4 != 3) return;  // up to four rounds of both are on their way
              left.wait();
              right.wait();
            });
            if (round % 4 != 3) continue;
            findings.check(a[i].is_right(round));
            findings.check(b[i].is_right(round));
          }
        left.wait();
        right.wait();
        second.close();
      },
      one.flags, all * 2 / 3, one.store);
  return thrown + findings.wrong();
}

}  // namespace

TEST_CASE("captured operations of ranks give what eager ones do", "[gpu][symmetric][slow]") {
  const int replays = 300;
  int graphs = 0;
  for (const Turns<T>& work : everything(300, 264, 136)) {
    CAPTURE(work.name, graphs);
    CHECK(check_graphs(work, replays) == "");
    ++graphs;
  }
  std::printf("peers: %d graphs of operations of %d ranks, replayed %d times each\n", graphs,
              ranks(), replays);
}

TEST_CASE("two operations of ranks are on their way at once", "[gpu][symmetric][slow]") {
  const int rounds = 300;
  const auto gemms = every_gemm(300, 264, 136);
  const auto experts = every_experts({100, 256, 136, 8, 2, ranks()}, Routing::skewed);
  compile_first(gpus().front(), joined(gemms, experts));
  int pairs = 0;
  const auto check = [&](const Turns<T>& one, const Turns<T>& other, bool swapped = false) {
    CAPTURE(one.name, other.name, pairs);
    CHECK(check_two_streams(one, other, rounds, swapped) == "");
    ++pairs;
  };
  // Launches of several steps, only small ones of which wait, in any order.
  check(gemms[0], gemms[1], true);
  check(experts[1], gemms[0], true);
  check(gemms[2], gemms[7]);
  check(gemms[0], gemms[6]);
  check(gemms[5], experts[3]);
  check(experts[2], experts[4]);
  check(experts[0], gemms[8]);
  std::printf("peers: %d pairs of operations on two streams of %d ranks, %d rounds each\n", pairs,
              ranks(), rounds);
}

TEST_CASE("epochs of operations of ranks wrap round", "[gpu][symmetric]") {
  int tried = 0;
  for (const Turns<T>& work : everything(300, 264, 136)) {
    CAPTURE(work.name, tried);
    CHECK(check_wrap(gpus(), work, 20, 300) == "");
    ++tried;
  }
  std::printf("peers: the epochs of %d kinds of operations of %d ranks wrapped round\n", tried,
              ranks());
}

TEST_CASE("operations of ranks end without a rank that does not come", "[gpu][symmetric][slow]") {
  if (ranks() < 2) KILN_SKIP("needs two GPUs");
  int tried = 0;
  for (const Turns<T>& work : everything(300, 264, 136)) {
    CAPTURE(work.name, tried);
    // The last block that gives up names the rank that it waited for. In GEMMs of experts a block
    // may wait for another block of its own rank. Of more than two ranks it may wait for any.
    const bool experts = work.flags == kExpertFlags;
    const std::string says = experts       ? "rank 0 gave up"
                             : ranks() > 2 ? "rank 0 gave up waiting for rank "
                                           : "rank 0 gave up waiting for rank 1";
    CHECK(check_gives_up(gpus(), work, 0.3, 10, says) == "");
    ++tried;
  }
  std::printf("peers: %d kinds of operations gave up, and went on after a reset\n", tried);
}

TEST_CASE("operations of ranks whose sizes nothing divides", "[gpu][symmetric][slow]") {
  const int rounds = 12;
  int tried = 0;
  const auto check = [&](const std::vector<Turns<T>>& all) {
    compile_first(gpus().front(), all);
    for (const Turns<T>& work : all) {
      CAPTURE(work.name, tried);
      Findings findings;
      CHECK(on_peers(
                gpus(), work.bytes,
                [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                  run_turns(runtime, memory, work.make(runtime, memory), rounds, 300, findings);
                },
                work.flags, 0, work.store) == "");
      CHECK(findings.wrong() == "");
      ++tried;
    }
  };
  // Fewer rows than a warp sends at once, one more and one less than tiles have, k of one step and
  // of a part of one.
  check(every_gemm(1, 8, 8));
  check(every_gemm(5, 40, 200));
  check(every_gemm(129, 136, 72));
  check(every_gemm(255, 248, 8));
  check(every_experts({1, 128, 136, 7, 1, ranks()}, Routing::balanced));
  check(every_experts({13, 256, 72, 3, 3, ranks()}, Routing::skewed));
  check(every_experts({129, 256, 200, 11, 2, ranks()}, Routing::balanced));
  // What tensor maps do not take.
  check({gemm_turns<T>({33, 20, 17, ranks()}), gemm_turns<T>({7, 9, 65, ranks()}),
         experts_turns<T>({9, 20, 17, 4, 2, ranks()}, Routing::balanced)});
  std::printf("peers: %d operations of %d ranks with odd sizes\n", tried, ranks());
}
