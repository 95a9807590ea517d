// What a start costs whose manifest is in the store, beside what loading its modules takes anyway.
// The device is made up: to load a module takes the time that a GPU's driver takes.
//
//   perf_warm_start [KEYS] [STARTS] [MICROSECONDS] [CASE]   by default 200, 20, 45 per module, both
//
// 1. Each key is a kernel of its own, and nothing may be compiled.
// 2. The keys are problems of a few kernels whose spaces were searched, and there is a compiler.
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/fake_kernel.hpp"

namespace {

using namespace kiln;

constexpr int kProblems = 16;        ///< of one of the few kernels
constexpr std::size_t kCode = 5000;  ///< bytes of a small cubin

/// Does not compile, and takes as long to load as it is told.
class Device final : public test::FakeDevice {
 public:
  Device() : FakeDevice(std::make_shared<test::Script>()) {
    info().target = {Target::Kind::cuda, "sm_90a"};
    compute = test::compute_doubling;
  }

  std::shared_ptr<runtime::Module> load(const codegen::Binary& binary, const Launch&,
                                        std::span<const Launch>) override {
    const std::string code(reinterpret_cast<const char*>(binary.code.data()), 128);
    const std::lock_guard lock(mutex_);  // drivers load one at a time
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < seconds_to_load) {
    }
    ++loads;
    const std::string entry = code.substr(0, code.find('\0'));
    return std::make_shared<test::FakeKernel>(entry, (*script)[entry], live_kernels, modules_apart);
  }

  std::chrono::duration<double> seconds_to_load{0};

 private:
  std::mutex mutex_;
};

class Compiler final : public codegen::Compiler {
 public:
  codegen::CompilerIdentity identity() const override { return {"none", "1", "b1"}; }
  codegen::IncludeContext includes(const Target&) const override { return {}; }
  std::vector<std::string> options(const codegen::Source& source, const Target&) const override {
    return source.options;
  }
  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override {
    codegen::Binary binary;
    binary.target = target;
    binary.symbol = source.entry;
    std::vector<std::byte> code(kCode);
    for (std::size_t i = 0; i < source.entry.size(); ++i) code[i] = std::byte(source.entry[i]);
    binary.code = std::move(code);
    return binary;
  }
};

struct Case {
  const char* what;
  Mode mode;
  int kernels, problems;  ///< of each
  std::vector<std::int64_t> a, b;
};

KernelDefinition kernel(const Case& c, int number) {
  KernelDefinition k = test::doubling(c.a, c.a.front(), c.b);
  k.name += "_" + std::to_string(number);
  k.source.text += "\n// " + std::to_string(number) + "\n";
  return k;
}

/// Of all threads.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

struct Start {
  double total = 0, load = 0, cpu = 0;  ///< seconds
  PrepareReport report;
};

Start start(const Case& c, const std::filesystem::path& store, double seconds_to_load, bool cold) {
  RuntimeOptions options;
  options.store.directory = store;
  options.mode = cold ? Mode::tune_now : c.mode;
  auto device = std::make_shared<Device>();
  device->seconds_to_load = std::chrono::duration<double>(seconds_to_load);
  const auto compiler = std::make_shared<Compiler>();
  Start took;
  PrepareReport& report = took.report;
  const double cpu = cpu_seconds();
  took.total = perf::seconds([&] {
    const Runtime runtime = detail::Access::runtime(
        runtime::make_engine(options, device, [&](Target::Kind) { return compiler; }));
    std::vector<DynamicTuned> handles;
    Manifest manifest;
    for (int i = 0; i < c.kernels; ++i) {
      const KernelDefinition definition = kernel(c, i);
      handles.push_back(runtime.tuned(definition));
      for (int j = 0; j < c.problems; ++j)
        manifest.wanted.push_back(
            {definition.name, {}, runtime.device().target.arch, {{"n", 1000 + j}}, {}});
    }
    report = runtime.prepare(manifest);
  });
  took.cpu = cpu_seconds() - cpu;
  took.load = device->loads * seconds_to_load;
  if (!report.complete() || (!cold && (report.compiled != 0 || report.searched != 0)))
    throw std::runtime_error("not all of the manifest was in the store");
  return took;
}

void run(const Case& c, int starts, double seconds_to_load) {
  const perf::ScratchFolder folder;
  start(c, folder.path(), 0, true);
  std::vector<double> looks, loads, ratios, beyond, cpu;
  const double keys = c.kernels * c.problems;
  for (int i = 0; i < starts; ++i) {
    const Start took = start(c, folder.path(), seconds_to_load, false);
    looks.push_back(took.report.compile_seconds / keys);
    loads.push_back(took.report.load_seconds / keys);
    cpu.push_back((took.cpu - took.load) / keys);
    ratios.push_back(took.total / took.load);
    beyond.push_back((took.total - took.load) / keys);
  }
  std::printf("%s: %d kernels, %d problems of each, %u cores\n", c.what, c.kernels, c.problems,
              std::thread::hardware_concurrency());
  perf::report("  until all records and binaries were found, per key", perf::median(looks) * 1e6,
               "us");
  perf::report("  loading, per key", perf::median(loads) * 1e6, "us");
  perf::report("  a start beyond its loads, per key", perf::median(beyond) * 1e6, "us");
  perf::report("  CPU time beyond its loads, of all threads, per key", perf::median(cpu) * 1e6,
               "us");
  perf::report("  a start, by its loads alone", perf::median(ratios), "x", "(goal: 1.5 at most)");
}

}  // namespace

int main(int argc, char** argv) try {
  const int keys = argc > 1 ? std::atoi(argv[1]) : 200, starts = argc > 2 ? std::atoi(argv[2]) : 20;
  const double load = (argc > 3 ? std::atof(argv[3]) : 45) * 1e-6;
  const int only = argc > 4 ? std::atoi(argv[4]) : 0;
  if (only != 2) run({"looked up", Mode::lookup_only, keys, 1, {2}, {0}}, starts, load);
  if (only != 1)
    run({"with a compiler",
         Mode::tune_now,
         std::max(1, keys / kProblems),
         kProblems,
         {2, 1, 4, 8},
         {0, 1, 2}},
        starts, load);
} catch (const std::exception& error) {
  std::fprintf(stderr, "warm start: %s\n", error.what());
  return 1;
}
