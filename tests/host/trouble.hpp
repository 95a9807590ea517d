// A kernel whose candidates do what no kernel may, for the host target: what happens then must
// happen to a worker. `mode` 0, the default, is right and slow; 1 is right and fast: the winner.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "kiln/kiln.hpp"
#include "unit/runtime/waiting.hpp"

namespace trouble {

/// A worker that AddressSanitizer is compiled into would report signals, and end with an exit code.
inline const bool kSignalsEndWorkers = [] {
  const char* const set = std::getenv("ASAN_OPTIONS");
  const std::string options =
      std::string(set ? set : "") + ":handle_segv=0:handle_sigfpe=0:handle_sigbus=0:handle_abort=0";
  return ::setenv("ASAN_OPTIONS", options.c_str(), 1) == 0;
}();

enum Mode : std::int64_t {
  slow,
  fast,
  null,    ///< writes through a null pointer
  wild,    ///< writes where nothing is mapped
  divide,  ///< divides by zero
  aborts,
  exits,   ///< as if all had gone well
  deep,    ///< overflows the stack
  loops,   ///< for ever
  eats,    ///< memory, until there is none
  closes,  ///< all descriptors, and is right
  writes,  ///< rubbish to all descriptors, and is right
  later,   ///< is right at first, and faults while it is timed
  wrong,   ///< has wrong results, and ends nothing
  more,    ///< as fast, but for nothing: right, and slower
  spoils,  ///< is right at first and far too slow, and writes an input while it is timed
  naps     ///< is right, but its first launch takes kNap seconds
};

/// So long that a disturbed machine exceeds a third of it in no trial of the others.
inline const int kNap = static_cast<int>(kiln::test::patient(3));

inline const char* const kSource = R"(
enum Mode { slow, fast, null, wild, divide, aborts, exits, deep, loops, eats,
            closes, writes, later, wrong, more, spoils, naps };
extern "C" {
__device__ void abort();
__device__ void _exit(int);
__device__ int close(int);
__device__ long write(int, const void*, unsigned long);
__device__ void* malloc(unsigned long);
__device__ unsigned sleep(unsigned);
}
__device__ int launches = 0;
__device__ int zero = 0;

__device__ __attribute__((noinline)) int dive(int depth) {
  volatile char room[4096];
  room[depth % 4096] = char(depth);
  return depth == -1 ? 0 : dive(depth + 1) + room[(depth * 7) % 4096];
}

__device__ __attribute__((noinline)) void misbehave(int mode, float* out, const float* in) {
  volatile int* const nowhere = reinterpret_cast<volatile int*>(8);
  if (mode == null) *nowhere = 1;
  if (mode == wild) *reinterpret_cast<volatile int*>(0x123456789000) = 1;
  if (mode == divide) out[0] = float((*(volatile int*)&zero + 100) / *(volatile int*)&zero);
  if (mode == aborts) abort();
  if (mode == exits) _exit(0);
  if (mode == deep) out[0] = float(dive(0));
  if (mode == loops) while (*(volatile int*)&zero == 0) {}
  if (mode == eats)
    for (;;) {
      const unsigned long size = 16 << 20;
      volatile char* const piece = static_cast<volatile char*>(malloc(size));
      if (piece)
        for (unsigned long i = 0; i < size; i += 4096) piece[i] = 1;
    }
  if (mode == closes)
    for (int i = 0; i < 64; ++i) close(i);
  if (mode == writes)
    for (int i = 0; i < 64; ++i) write(i, "rubbish, rubbish, rubbish, rubbish, rubbish", 40);
  if (mode == later && ++launches > 3) *nowhere = 1;
  if (mode == naps && ++launches == 1) sleep(NAP);
  if (mode == spoils && ++launches > 1) *const_cast<float*>(in) = -1;
}

template <int mode> __global__ void trouble(float* out, const float* in, int n) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && mode > fast) misbehave(mode, out, in);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = in[i];
  if (mode == slow || mode == more)
    for (int k = 0; k < 200; ++k) sum = sum * 1.0f + float(*(volatile int*)&zero);
  if (mode == spoils)
    for (int k = 0; k < 4000; ++k) sum = sum * 1.0f + float(*(volatile int*)&zero);
  out[i] = mode == wrong ? sum : 2 * sum;
}

template <int mode> __global__ void in_place(float* x, int n) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && mode > fast) misbehave(mode, x, x);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = x[i];
  if (mode == slow)
    for (int k = 0; k < 200; ++k) value = value * 1.0f + float(*(volatile int*)&zero);
  x[i] = mode == wrong ? value : 2 * value;
})";

inline kiln::KernelDefinition kernel(const std::vector<std::int64_t>& which) {
  kiln::KernelDefinition k;
  k.name = "trouble";
  k.source.text = kSource;
  k.source.text.replace(k.source.text.find("NAP"), 3, std::to_string(kNap));
  k.entry = "trouble";
  k.arguments = {"float*", "const float*", "int"};
  k.space.parameter("mode", which, slow);
  k.problem_fields = {"n"};
  k.launch = [](auto, auto problem) {
    return kiln::Launch{{unsigned((problem[0] + 63) / 64)}, {64}, 0};
  };
  k.workload = [](auto problem, kiln::Workload& w) {
    const auto n = std::size_t(problem[0]);
    w.output<float>(n).input<float>(n).scalar(int(problem[0]));
  };
  k.reference = [](auto problem, std::span<void* const> args) {
    for (std::int64_t i = 0; i < problem[0]; ++i)
      static_cast<float*>(args[0])[i] = 2 * static_cast<const float*>(args[1])[i];
  };
  return k;
}

/// The same with an argument that each launch changes: x is doubled where it is.
inline kiln::KernelDefinition in_place_kernel(const std::vector<std::int64_t>& which) {
  kiln::KernelDefinition k = kernel(which);
  k.entry = "in_place";
  k.arguments = {"float*", "int"};
  k.workload = [](auto problem, kiln::Workload& w) {
    w.in_out<float>(std::size_t(problem[0])).scalar(int(problem[0]));
  };
  k.reference = [](auto problem, std::span<void* const> args) {
    for (std::int64_t i = 0; i < problem[0]; ++i) static_cast<float*>(args[0])[i] *= 2;
  };
  return k;
}

inline constexpr std::int64_t kProblem = 20000;

inline const kiln::Candidate& of(const kiln::TuneResult& result, std::int64_t mode) {
  for (const kiln::Candidate& c : result.candidates)
    if (c.config == kiln::Values{mode}) return c;
  throw std::runtime_error("mode " + std::to_string(mode) + " was not tried");
}

inline std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

/// Processes that a process has started and that are still there, zombies included.
inline std::vector<pid_t> children(pid_t of = ::getpid()) {
  std::vector<pid_t> found;
  std::error_code gone;
  const auto tasks = "/proc/" + std::to_string(of) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t id; file >> id;) found.push_back(id);
  }
  return found;
}

inline bool is_zombie(pid_t id) {
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string text;
  std::getline(file, text);
  const auto end = text.rfind(") ");
  return end != std::string::npos && text[end + 2] == 'Z';
}

}  // namespace trouble
