// The host target against PoCL: the same naive kernels, on the same arrays, on two CPU threads
// each, measured in turns in one run. Usage: host_against_pocl [KERNEL]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "codegen/llvm_plugin.hpp"
#include "kernels.hpp"
#include "opencl.hpp"
#include "perf.hpp"
#include "runtime/device/host/host_module.hpp"

namespace {

using host_against_pocl::Case;
using kiln::runtime::HostModule;

/// Both sides size their thread pools by the processors that the process may use.
bool use_two_processors() {
  cpu_set_t allowed, two;
  CPU_ZERO(&two);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++i)
    if (CPU_ISSET(i, &allowed)) CPU_SET(i, &two);
  return CPU_COUNT(&two) == 2 && ::sched_setaffinity(0, sizeof two, &two) == 0;
}

/// In huge pages, as the host device allocates.
class Array {
 public:
  explicit Array(std::size_t elements) : size_(elements) {
    constexpr std::size_t kHugePage = 2 << 20;
    const std::size_t bytes = (elements * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
    memory_.reset(static_cast<float*>(std::aligned_alloc(kHugePage, bytes)));
    if (!memory_) throw std::bad_alloc();
    ::madvise(memory_.get(), bytes, MADV_HUGEPAGE);
  }
  float* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  void fill(const std::function<float(std::size_t)>& value) const {
    for (std::size_t i = 0; i < size_; ++i) memory_.get()[i] = value(i);
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  std::unique_ptr<float, Free> memory_;
  std::size_t size_;
};

HostModule compile(const Case& work) {
  kiln::codegen::Source source;
  source.text = std::string(host_against_pocl::kCudaWords) + work.text;
  source.path = std::string(work.name) + ".cu";
  source.entry = source.label = work.name;
  auto result = kiln::codegen::make_host_compiler()->compile(source, kiln::Target::this_host());
  if (auto* failure = std::get_if<kiln::CompileFailure>(&result))
    throw std::runtime_error("Kiln does not compile " + source.path + ":\n" + failure->log);
  static const auto workers = kiln::runtime::HostWorkers::create();
  return HostModule::load(std::get<kiln::codegen::Binary>(result), workers);
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Samples {
 public:
  void take(int launches, const std::function<void()>& launch) {
    // The side that ran before may still have threads that look for work.
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const double before = processor_seconds();
    const double wall = perf::seconds([&] {
      for (int i = 0; i < launches; ++i) launch();
    });
    processor_.push_back((processor_seconds() - before) / launches);
    wall_.push_back(wall / launches);
  }
  double processor_ms() const { return low(processor_); }
  double wall_ms() const { return low(wall_); }

 private:
  // Disturbances only ever add time.
  static double low(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    return 1e3 * seconds[seconds.size() / 5];
  }
  std::vector<double> processor_, wall_;
};

/// How far two results are from each other at most, relative to the larger of 1 and the first;
/// infinite where one of them is no number.
double difference(const Array& first, const Array& second) {
  double most = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const double a = first.data()[i], b = second.data()[i];
    if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::abs(a - b) / std::max(1.0, std::abs(a)));
  }
  return most;
}

/// False: the two do not compute the same.
bool compare(const Case& work, host_against_pocl::Pocl& pocl) {
  const Array a(work.a), b(work.b), ours(work.out), theirs(work.out);
  a.fill([](std::size_t i) { return static_cast<float>(i * 2654435761u % 1024) / 1024.0f - 0.5f; });
  b.fill([](std::size_t i) { return static_cast<float>(i * 40503u % 512) / 512.0f + 0.25f; });

  const HostModule module = compile(work);
  const auto kernel = pocl.load(work, theirs.data(), a.data(), b.data());
  float *out = ours.data(), *first = a.data(), *second = b.data();
  int m = work.m, n = work.n;
  void* arguments[] = {&out, &first, &second, &m, &n};
  const std::function<void()> kiln_launch = [&] {
    module.launch(work.grid, work.block, 0, arguments);
  };
  const std::function<void()> pocl_launch = [&] { kernel->launch(); };

  // An edge that neither writes is equal; what only one of them writes differs.
  ours.fill([](std::size_t) { return 1e30f; });
  theirs.fill([](std::size_t) { return 1e30f; });
  kiln_launch();
  pocl_launch();
  const double off = difference(ours, theirs);
  if (!(off <= work.tolerance)) {
    std::printf("%-14s results differ by %g, allowed %g\n", work.name, off, work.tolerance);
    return false;
  }

  constexpr int kRounds = 15;
  const double once = perf::seconds(pocl_launch);
  const int launches = std::max(1, static_cast<int>(0.02 / once));
  Samples kiln_samples, pocl_samples;
  for (int round = 0; round < kRounds; ++round) {
    if (round % 2 == 0) kiln_samples.take(launches, kiln_launch);
    pocl_samples.take(launches, pocl_launch);
    if (round % 2 != 0) kiln_samples.take(launches, kiln_launch);
  }
  std::printf("%-14s %9.3f %9.3f %6.2f   %9.3f %9.3f %6.2f\n", work.name,
              kiln_samples.processor_ms(), pocl_samples.processor_ms(),
              pocl_samples.processor_ms() / kiln_samples.processor_ms(), kiln_samples.wall_ms(),
              pocl_samples.wall_ms(), pocl_samples.wall_ms() / kiln_samples.wall_ms());
  std::fflush(stdout);
  return true;
}

int skip(const std::string& reason) {
  std::printf("skipped: %s\n", reason.c_str());
  return 77;
}

int run(const std::string& wanted) {
  if (!use_two_processors()) return skip("the process may not use two processors");
  if (const std::string obstacle = kiln::codegen::host_compiler_obstacle(); !obstacle.empty())
    return skip(obstacle);
  const perf::ScratchFolder folder;
  std::string reason;
  const auto pocl = host_against_pocl::open_pocl(folder.path().string(), reason);
  if (!pocl) return skip(reason);
  std::printf("%s; milliseconds of a launch, both on two threads\n%-14s %28s   %28s\n",
              pocl->version().c_str(), "", "CPU time:  Kiln   PoCL  ratio",
              "wall:      Kiln   PoCL  ratio");
  bool equal = true;
  int found = 0;
  for (const Case& work : host_against_pocl::cases()) {
    if (!wanted.empty() && wanted != work.name) continue;
    ++found;
    equal = compare(work, *pocl) && equal;
  }
  if (!found) std::printf("there is no kernel %s\n", wanted.c_str());
  return equal && found ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
