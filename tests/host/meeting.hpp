// A kernel of ranks that wait for each other, whose candidates do what no kernel may: what happens
// then must happen to the workers. `mode` 0, the default, is right and slow; 1 is right and fast.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/kiln.hpp"

namespace kiln::test {

enum Behaviour : std::int64_t { slow, fast, null, loops, silent, wrong, exits, stray, tell };
/// From this value on, on the host: a worker in which another one of these has run before is
/// killed, as other processes kill it.
constexpr std::int64_t kUneasy = 200;

/// Each rank signals the next one and waits for the one before: what one does wrong, it does on
/// one rank alone.
inline constexpr const char* kMeeting = R"(
#include <kiln/peers.cuh>
#ifdef __CUDA_ARCH__
constexpr int kTurns = 200000;
__device__ void _exit(int) { __trap(); }
__device__ void be_uneasy(int) {}
#else
constexpr int kTurns = 20000000;
extern "C" {
__device__ void _exit(int);
__device__ int getpid();
__device__ int kill(int, int);
__device__ char* getenv(const char*);
__device__ int setenv(const char*, const char*, int);
}
__device__ void be_uneasy(int mode) {
  const char own[] = {char('0' + mode), 0};
  const char* const before = getenv("KILN_TEST_UNEASY");
  if (before && *before != *own) kill(getpid(), 9);
  setenv("KILN_TEST_UNEASY", own, 1);
}
#endif
enum Mode { slow, fast, null, loops, silent, wrong, exits, stray, tell };
__device__ int zero = 0;
template <int mode>
__global__ void meeting(int* out, const kiln::Peers* peers, int* shared, const int*) {
  const kiln::Peers& p = *peers;
  if (threadIdx.x != 0) return;
  const bool odd = p.rank == p.size - 1;
  const unsigned epoch = ++*p.counters;
  if (mode == null && odd) *reinterpret_cast<volatile int*>(8) = 1;
  if (mode == exits && odd) _exit(0);
  if (mode == loops && odd) while (*(volatile int*)&zero == 0) {}
  if (mode == stray && odd) *const_cast<unsigned*>(&p.control->aborted) = 77;
  if (mode >= 200 && odd) be_uneasy(mode - 200);
  for (int k = 0; k < (mode == slow ? kTurns : mode >= 200 ? kTurns / 20 : 0); ++k)
    *(volatile int*)&zero = 0;
  const int next = (p.rank + 1) % p.size, before = (p.rank + p.size - 1) % p.size;
  static_cast<int*>(kiln::peer_data(p, next))[1] = 100 + p.rank;
  if (mode != silent || p.rank != 0) kiln::signal(p, next, 1, epoch);
  if (!kiln::wait(p, before, 1, epoch)) return;
  *out = shared[1] == 100 + before && !(mode == wrong && odd) ? 7 : 8;
  if (mode == tell) *out = static_cast<int>(epoch);
}
)";

/// `stranger`: memory of the program that is not symmetric; null: there is none.
inline KernelDefinition meeting(const SymmetricMemory& memory,
                                const std::vector<std::int64_t>& modes,
                                const int* stranger = nullptr) {
  KernelDefinition k;
  k.name = "meeting";
  k.source.text = kMeeting;
  k.entry = "meeting";
  k.arguments = {"int*", "const kiln::Peers*", "int*", "const int*"};
  k.space.parameter("mode", modes, modes.front());
  k.problem_fields = {"n"};
  k.launch = [](auto, auto) { return Launch{{1}, {32}}; };
  k.workload = [&memory, stranger](auto, Workload& w) {
    w.output<int>(1).address(memory.peers()).address(memory.data());
    if (stranger)
      w.address(stranger);
    else
      w.address(memory.data(0));
  };
  k.reference = [](auto, std::span<void* const> args) { *static_cast<int*>(args[0]) = 7; };
  return k;
}

/// The kernel's source becomes a file, which is edited when the first trial is made, if `odd`.
inline void edit_later(KernelDefinition& kernel, const std::filesystem::path& file, bool odd) {
  const std::string text = std::exchange(kernel.source.text, {});
  std::ofstream(file) << text;
  kernel.source.file = file;
  if (!odd) return;
  const auto expected = std::make_shared<std::atomic<bool>>(false);
  kernel.reference = [expected, reference = kernel.reference](auto problem, auto args) {
    reference(problem, args);
    *expected = true;
  };
  kernel.launch = [=, launch = kernel.launch](auto config, auto problem,
                                              const DeviceLimits& limits) {
    if (expected->exchange(false)) std::ofstream(file) << text << "// edited";
    return launch(config, problem, limits);
  };
}

/// The outcome of a candidate. `says`: in its reason
struct Fault {
  std::int64_t mode;
  CandidateStatus status;
  const char* says;
  const char* says_on_gpu = says;
};
inline const std::vector<Fault> kFaults = {
    {null, CandidateStatus::crashed, "SIGSEGV", "lost its device"},
    {exits, CandidateStatus::crashed, "exit code 0", "lost its device"},
    {loops, CandidateStatus::hung, "it did not end within 2 s"},
    {silent, CandidateStatus::hung, "gave up"},
    {wrong, CandidateStatus::wrong_result, "element"},
    {stray, CandidateStatus::hung, "symmetric memory: "},
};

}  // namespace kiln::test
