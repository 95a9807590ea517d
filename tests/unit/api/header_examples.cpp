// The examples of the public headers, line for line (tests/header_examples.py compares them), so
// that each compiles and links. None of them runs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string_view>
#include <vector>

#include "kiln/cli.hpp"
#include "kiln/kiln.hpp"

// clang-format off
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-value"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

// config.hpp
struct VectorAdd {
  int block, items;
  constexpr int tile() const { return block * items; }
};
KILN_CONFIG(VectorAdd, block, items)  // every field, in order of declaration

struct Elementwise { int n; };
KILN_PROBLEM(Elementwise, n)
struct Sum {
  int split;
  std::size_t blocks(const Elementwise& p) const { return std::size_t(p.n / split); }
};
KILN_CONFIG(Sum, split)
struct ReduceKnobs { int blocks; };
KILN_CONFIG(ReduceKnobs, blocks)
struct Bytes { int count; };
KILN_PROBLEM(Bytes, count)
struct MyParams { int a; };
enum class GemmBody { mma, tma };
struct Gemm {
  GemmBody body;
  int block_m, block_k;
};
KILN_CONFIG(Gemm, body, block_m, block_k)
struct GemmProblem { int m, k; };
KILN_PROBLEM(GemmProblem, m, k)

// types.hpp
template <>
struct kiln::DeviceName<MyParams> {
  static constexpr const char* value = "MyParams";
};

namespace header_examples {

struct OwnEngine {
  void* nccl() { return nullptr; }
  void* stream() { return nullptr; }
};
using Add = kiln::Kernel<VectorAdd, Elementwise, void(float*, const float*, const float*, int)>;
using AddTuned = kiln::Tuned<VectorAdd, Elementwise, void(float*, const float*, const float*, int)>;
using GemmKernel = kiln::Kernel<Gemm, GemmProblem, void(kiln::float16*, const kiln::float16*)>;
using AddArrays = kiln::Array<float>;

inline void all_reduce(kiln::Stream, float*, const float*, int, int) {}
inline void my_logger(kiln::LogLevel, std::string_view) {}
inline void my_tracer(std::string_view, std::chrono::system_clock::time_point,
                      std::chrono::system_clock::time_point) {}
inline void fix(const char*) {}
inline void report(const char*) {}
inline unsigned blocks(std::int64_t n, std::int64_t block) { return unsigned(n / block); }

void bound(AddTuned& add_tuned, kiln::Stream stream, float* out, float* a, float* b, int n) {
  auto bound = add_tuned.at(Elementwise{n});
  bound(stream, out, a, b, n);
}

void bundle() {
  for (auto& problem : kiln::verify_bundle("kernels.kiln", "release.pub.pem").problems)
    std::cout << problem.path << ": " << problem.reason << "\n";
}

void cache() {
  kiln::Cache cache;                          // the default directory
  for (auto& e : cache.explain("3fa9")) std::cout << e.key.explain();
}

inline void begin_capture(kiln::Stream) {}
inline kiln::InstantiatedGraph end_capture(kiln::Stream) { return {}; }
inline void model(kiln::Stream) {}
template <class F> void tune(F&) {}
inline void wait_for_requests() {}
void background(kiln::Runtime& runtime) {
  auto window = runtime.window({.max_seconds = 2});  // the GPU has nothing urgent to do
  wait_for_requests();
  window.close();    // nothing is measured any more
  runtime.commit();  // between two steps: launches get what was found
}

void capture(kiln::Runtime& runtime, kiln::Stream stream) {
  begin_capture(stream);                   // the program's: cuStreamBeginCapture
  model(stream);                           // launches by handles
  runtime.retain(stream);
  auto [graph, exec] = end_capture(stream);  // ... and cuGraphInstantiate
  tune(model);
  for (auto& kept : runtime.refresh({graph, exec}).kept)
    std::cout << kept.launch << " stays as it was: " << kept.why << "\n";
}

kiln::RegisteredKernel my_kernel() { return {}; }
int cli(int argc, char** argv) {
  struct Main {
  int main(int argc, char** argv) {
    return kiln::cli_main(argc, argv, kiln::shipped_kernels().add(my_kernel()));
  }
  };
  return Main{}.main(argc, argv);
}

std::string communicator(kiln::Communicator& comm, std::span<const std::byte> mine) {
  std::vector<std::byte> all(comm.size() * mine.size());
  if (auto failure = comm.gather(mine, all, kiln::deadline_in(10))) return failure->describe();
  return {};
}

void communicators(OwnEngine engine) {
  auto own = kiln::nccl_communicator(engine.nccl(), {engine.stream()});        // an engine's own
  auto job = kiln::nccl_communicator_from_environment(kiln::deadline_in(60));  // torchrun, Slurm
}

void definition() {
  kiln::KernelDefinition k;
  k.name = "scale";
  k.source.text = "__global__ void scale(float* x, float a, int n) { /* ... BLOCK ... */ }";
  k.entry = "scale";
  k.passing = kiln::Passing::constants;                  // constexpr int BLOCK = 256;
  k.arguments = {"float*", "float", "int"};
  k.space.parameter("BLOCK", {64, 128, 256}, 128);
  k.problem_fields = {"n"};
  k.launch = k.by_name([](auto config, auto problem) {
    return kiln::Launch{{unsigned(problem["n"] / config["BLOCK"])},
                                {unsigned(config["BLOCK"])}};
  });
}

void device(kiln::Runtime& runtime) {
  const kiln::DeviceInfo& d = runtime.device();
  d.name, d.target.arch, d.limits.multiprocessors;
}

void doctor() {
  for (auto& c : kiln::diagnose()) std::cout << c.name << ": " << c.version << c.problem << "\n";
}

void error(AddTuned& add_tuned, kiln::Stream stream, float* out, float* a, float* b, int n) {
  try {
    add_tuned(stream, out, a, b, n);
  } catch (const kiln::UserError& error) {
    fix(error.what());  // names what is wrong with the kernel or the call
  } catch (const kiln::EnvironmentError& error) {
    report(error.what());  // driver, compiler or disk, and what to do
  }
}

template <class F, class... Args>
void switches(F& f, std::shared_ptr<kiln::Communicator> group, kiln::Stream stream, Args... args) {
  f.with({.verbose = true, .ranks = group})(stream, args...);
}

void function(kiln::Runtime& runtime, kiln::Space<ReduceKnobs, Bytes> space, kiln::Stream stream, float* out, float* in, int n) {
  const kiln::Function<ReduceKnobs, Bytes, void(float*, const float*, int)> reduce{
      .name = "reduce",
      .space = space,
      .call =
          [&](const ReduceKnobs& k, kiln::Stream s, float* out, const float* in, int n) {
            all_reduce(s, out, in, n, k.blocks);
          },
      .problem = [](float*, const float*, int n) { return Bytes{4 * n}; },
      .communicates = true};
  auto f = kiln::tuned(runtime, reduce);
  f(stream, out, in, n);                           // tunes a new problem, then calls
  f.with({.tune = false})(stream, out, in, n);     // the default knobs
  switches(f, nullptr, stream, out, in, n);
}

void handle(kiln::Runtime& runtime, const Add& add, kiln::Stream stream, float* out, float* a, float* b, int n) {
  auto add_tuned = runtime.tuned(add);
  add_tuned(stream, out, a, b, n);            // tunes this problem's bucket if it is new
  auto bound = add_tuned.at(Elementwise{n});  // no look-up at all
  bound(stream, out, a, b, n);
}

// space.hpp
  constexpr auto space = kiln::Space<VectorAdd, Elementwise>{{256, 4}}     // the default
      .values(&VectorAdd::block, {64, 128, 256, 512})
      .values(&VectorAdd::items, {1, 2, 4, 8})
      .where("a tile is at most 4096 elements",
             [](const VectorAdd& c, const Elementwise&, const kiln::DeviceLimits&) {
               return c.tile() <= 4096; })
      .where_on(kiln::Target::Kind::cuda, "whole warps",
                [](const VectorAdd& c, const Elementwise&, const kiln::DeviceLimits&) {
                  return c.block % 32 == 0; })
      .values_on(kiln::Target::Kind::host, &VectorAdd::items, {16, 64})
      .default_on(kiln::Target::Kind::host, {64, 16})
      .default_on(kiln::ComputeCapability{90}, {512, 4})                    // sm_90 and later
      .checked();

void kernel() {
  const kiln::Kernel<VectorAdd, Elementwise, void(float*, const float*, const float*, int)> add{
      .name = "vector_add",
      .source = {.file = "vector_add.cuh"},
      .entry = "vector_add",
      .config_type = "VectorAdd",
      .types = {"float"},
      .space = space,
      .launch =
          [](const VectorAdd& c, const Elementwise& p) {
            return kiln::Launch{{unsigned((p.n + c.tile() - 1) / c.tile())},
                                        {unsigned(c.block)}};
          },
      .problem = [](float*, const float*, const float*, int n) { return Elementwise{n}; },
      .workload =
          [](const Elementwise& p, kiln::Workload& w) {
            w.output<float>(p.n).input<float>(p.n).input<float>(p.n).scalar<int>(p.n);
          },
      .reference =
          [](float* out, const float* a, const float* b, int n) {
            for (int i = 0; i < n; ++i) out[i] = a[i] + b[i];
          }};
  add.definition().validate();
}

void launch_rules(kiln::Kernel<VectorAdd, Elementwise, void(float*, int)>& kernel) {
  using Copy = VectorAdd;
  kernel.launch = [](const VectorAdd& c, const Elementwise& p) {
    return kiln::Launch{{unsigned((p.n + c.tile() - 1) / c.tile())}, {unsigned(c.block)}};
  };
  kernel.launch = [](const Copy& c, const Elementwise&, const kiln::DeviceLimits& d) {
    return kiln::Launch{{unsigned(d.usable_multiprocessors())}, {unsigned(c.block)}};
  };
}

// epilogue.hpp
struct LeakyRelu {
  float operator()(float sum, const kiln::epilogue::Place&, float slope) const {
    return sum < 0 ? slope * sum : sum;
  }
};

void epilogues() {
  using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Gelu;
  using BiasGelu = Chain<Bias<kiln::bfloat16>, Gelu>;  // gelu(sum + bias[column])
  static_assert(std::is_empty_v<BiasGelu>);
}

void tensor_maps(GemmKernel& kernel) {
  using __half = kiln::float16;
  kernel.maps = {{.argument = 1,  // A, [m][k]
                  .map = [](const Gemm& c, const GemmProblem& p) {
                    return kiln::TensorMap::tiled<__half>({.size = {p.k, p.m}, .stride = {p.k},
                                                           .box = {c.block_k, c.block_m},
                                                           .swizzle = kiln::Swizzle::bytes128});
                  },
                  .only_if = [](const Gemm& c) { return c.body == GemmBody::tma; }}};
}

using Line = Elementwise;
using SumKernel = kiln::Kernel<Sum, Line, void(float*, const float*, int)>;

void workspaces(SumKernel& kernel) {
  kernel.workspace = {.size = [](const Sum& c, const Line& p, const kiln::DeviceLimits&) {
                        const auto blocks = c.blocks(p);
                        return kiln::WorkspaceSize{.bytes = blocks * sizeof(float),
                                                   .semaphores = 1};
                      },
                      .only_if = [](const Sum& c) { return c.split > 1; }};
}

void steps(SumKernel& kernel) {
  kernel.steps = {{.entry = "reduce",
                   .launch = [](const Sum& c, const Line& p) {
                     return kiln::Launch{{unsigned(c.blocks(p) + 255) / 256}, {256}};
                   },
                   .only_if = [](const Sum& c) { return c.split > 1; }}};
}

struct Pool {
  void* allocate(std::size_t bytes) { return ::operator new(bytes); }
  void release(void* memory, std::size_t) { ::operator delete(memory); }
};

void allocator(Pool& pool) {
  kiln::RuntimeOptions options;
  options.allocator = {.allocate = [&](std::size_t bytes) { return pool.allocate(bytes); },
                       .release = [&](void* memory, std::size_t bytes) {
                         pool.release(memory, bytes);
                       }};
}

void supplied(const kiln::DynamicTuned& k, kiln::Stream stream, Pool& pool, const kiln::Values& small,
              const kiln::Values& large) {
  const auto size = max(k.workspace_size(small), k.workspace_size(large));
  k.use_workspace(stream, pool.allocate(size.total()), size);
}

void key() {
  for (const kiln::StoreEntry& entry : kiln::Cache().explain("3fa9"))
    std::cout << entry.key.hex() << '\n' << entry.key.explain();
}

void log(kiln::RuntimeOptions& options) {
  options.log = [](kiln::LogLevel level, std::string_view text) { my_logger(level, text); };
}

void measure(kiln::Runtime& runtime, AddTuned& add, float* out, float* a, float* b, int n) {
  kiln::Timing t = kiln::measure(runtime, [&](kiln::Stream s) { add(s, out, a, b, n); });
  std::printf("%.3f ms (p05 %.3f, p95 %.3f, %zu samples)\n", t.median * 1e3, t.p05 * 1e3,
              t.p95 * 1e3, t.samples.size());
  for (const std::string& w : t.warnings) std::puts(w.c_str());
}

void metrics(kiln::Runtime& runtime, const kiln::TuneResult& result) {
  const kiln::Roofline roof = kiln::roofline(runtime);
  const kiln::Metrics m = kiln::metrics(result, result.winner(), &roof);
  m.tflops; m.gbs; m.roofline_fraction; m.bound == kiln::BoundBy::memory;
}

void missing(const kiln::DynamicTuned& handle, const kiln::Values& problem) {
  if (auto missing = handle.prepare(problem)) std::puts(missing->explain().c_str());
}

void named(kiln::KernelDefinition& k) {
  k.launch = k.by_name([](auto config, auto problem) {
    return kiln::Launch{{blocks(problem["n"], config["block"])},
                                {unsigned(config["block"])}};
  });
}

void occupancy() {
  const kiln::DeviceLimits h100 = kiln::limits_of(90);
  const kiln::Occupancy o = kiln::occupancy(h100, {.threads = 320, .registers = 37});
  o.blocks; o.fraction; o.limit == kiln::OccupancyLimit::registers;
}

void paths(kiln::KernelDefinition& kernel) {
  kernel.source.file = kiln::templates_dir() / "rows/rmsnorm.cuh";
}

void precompile(const kiln::KernelDefinition& kernel, const kiln::Values& problem, const kiln::PrecompileOptions& options) {
  std::vector<kiln::PrecompileJob> jobs{{kernel, problem, {kiln::Target::parse("sm_90a")}}};
  auto report = kiln::precompile(jobs, "kernels.kiln", options);
}

void prepare(kiln::Runtime& runtime, const kiln::Manifest& manifest) {
  const kiln::PrepareReport report = runtime.prepare(manifest, {.max_seconds = 60});
  if (!report.complete()) std::puts(kiln::to_json(report).c_str());
  runtime.seal();  // launches compile, tune and load nothing any more
}

void problem_values(const kiln::DynamicTuned& add, float* out, float* a, float* b, int n) {
  add({}, {n}, out, a, b, n);  // a list, Values or a span
}

void recorded(const kiln::TuneResult& result) {
  kiln::RecordedSpace space("gemm.t4.json.gz");
  space.optimum(); space.config(space.best());
  kiln::Runtime runtime({.device = "recorded:gemm.t4.json.gz"});
  runtime.tuned(kiln::recorded_kernel(space)).tune({});
  kiln::write_t4(result, "mine.t4.json");
}

void reflect(kiln::Values values) {
  kiln::to_values(VectorAdd{256, 4});         // {256, 4}
  kiln::from_values<VectorAdd>(values);       // VectorAdd{256, 4}
  kiln::field_infos<VectorAdd>()[0].name;     // "block"
}

void region(kiln::Runtime& runtime, kiln::Stream stream,
            kiln::Tuned<VectorAdd, Elementwise, void(float*, const float*, int)>& add,
            kiln::Tuned<VectorAdd, Elementwise, void(float*, const float*, const float*, int, int, float)>& norm,
            AddArrays& x, AddArrays& y, AddArrays& residual, AddArrays& weight, int n, int rows, int hidden) {
  const auto step = [&](kiln::Region& region) {      // any code; launches go through `region`
    region(add, stream, x.data(), residual.data(), n);
    region(norm, stream, y.data(), x.data(), weight.data(), rows, hidden, 1e-5f);
  };
  kiln::tune_region(runtime, step);                  // runs it again and again, and chooses
  kiln::Region region;
  step(region);                                      // in production: the same, as tuned
}

const Add scale{.space = space};

void registry() {
  kiln::Registry registry;
  registry.add({"scale", "x *= a", {"f32"},
                [](std::string_view) { return scale.definition(); }});
}

void replay() {
  kiln::SearchReplay replay(kiln::RecordedSpace("gemm.t4.json.gz"));
  kiln::ReplayResult r = replay.run({.strategy = "genetic", .budget = 100, .repeats = 100});
  r.mean; r.at(25).mean;
}

void report(const kiln::TuneResult& result) {
  std::ofstream("result.json") << kiln::to_json(result);
}

void roofline(kiln::Runtime& runtime, double flops, double bytes) {
  const kiln::Roofline roof = kiln::roofline(runtime);  // seconds at first, then from the store
  roof.bytes_per_second; roof.flops_per_second;
  roof.seconds(flops, bytes);                           // no kernel is expected to be faster
}

void runtime(const Add& add, AddArrays& a, AddArrays& b, int n) {
  kiln::Runtime runtime;  // the CUDA device if there is one, else the host
  auto add_tuned = runtime.tuned(add);
  auto out = runtime.array<float>(n);
  add_tuned({}, out.data(), a.data(), b.data(), n);
  runtime.synchronize();
}

void runtime_metrics(kiln::Runtime& runtime) {
  const kiln::RuntimeMetrics now = runtime.metrics();
  kiln::write_prometheus(std::cout, now);
}

void spans(kiln::RuntimeOptions& options) {
  options.spans = [](const kiln::SpanData& span) { my_tracer(span.name, span.begin, span.end); };
}

void dynamic_space() {
  kiln::DynamicSpace s;
  s.parameter("block", {64, 128, 256}, 256).parameter("items", {1, 2, 4}, 4);
}

void device_reference(kiln::KernelDefinition& kernel) {
  kernel.device_reference = {.config = "body=plain", .problem = {{"m", 64}, {"n", 48}}};
}

void space_query(const kiln::Space<VectorAdd, Elementwise>& typed_space, const kiln::Values& problem, const kiln::DeviceLimits& limits) {
  const kiln::DynamicSpace space = typed_space.dynamic();
  const kiln::SpaceCount count = kiln::count_configs(space, problem, limits);
  kiln::for_each_config(space, problem, limits,
                        [](auto config, const kiln::Constraint* violated) {
                          if (violated) std::puts(violated->reason.c_str());
                          return true;  // go on
                        });
}

void store() {
  kiln::StoreOptions options;
  options.directory = "/scratch/me/kiln";  // default: see below
}

void symbol(kiln::Runtime& runtime, const Add& kernel, const std::vector<float>& weights, Elementwise p) {
  auto blur = runtime.tuned(kernel);
  blur.symbol("filter", weights);                  // for all its kernels, later ones too
  const kiln::Symbol counter = blur.at(p).symbol("stats::counter");  // of this one
  counter.write(0u);
}

void target() {
  kiln::Target t = kiln::Target::parse("sm_90a");   // throws UserError on an unknown name
}

void trace(const AddTuned& tuned, Elementwise problem) {
  kiln::TuneResult r = tuned.tune(problem);
  kiln::write_chrome_trace("tuning.json", {&r, 1});
}

void tune(kiln::Runtime& runtime, const Add& kernel) {
  runtime.tuned(kernel).tune(Elementwise{1 << 24}, {.max_seconds = 10});
}

void tune_result(kiln::Runtime& runtime, const Add& kernel) {
  kiln::TuneResult r = runtime.tuned(kernel).tune(Elementwise{1 << 24});
  r.winner().seconds; r.speedup(); r.candidates[3].reason;
}

void types() {
  kiln::bfloat16 x{1.5f};  // rounds to nearest even
  float y = x;
  kiln::device_name<const kiln::bfloat16*>();  // "const __nv_bfloat16*"
}

void workload(kiln::Kernel<VectorAdd, Elementwise, void(float*, const float*, const float*, int)>& kernel) {
  kernel.workload = [](const Elementwise& p, kiln::Workload& w) {
    w.output<float>(p.n).input<float>(p.n).input<float>(p.n).scalar<int>(p.n);  // in order
  };
}

}  // namespace header_examples

int main() {}
