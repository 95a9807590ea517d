// The compilers of this machine, here and in processes.
#include <cstdlib>

#include "codegen/llvm_plugin.hpp"
#include "codegen/nvrtc.hpp"
#include "findings.hpp"
#include "kiln/registry.hpp"
#include "process_fixture.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/support/machine.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

/// A variable for as long as this lives.
class Variable {
 public:
  explicit Variable(const char* value) {
    if (const char* before = std::getenv(kName)) before_ = before;
    ::setenv(kName, value, 1);
  }
  ~Variable() {
    if (before_)
      ::setenv(kName, before_->c_str(), 1);
    else
      ::unsetenv(kName);
  }

 private:
  static constexpr const char* kName = "KILN_COMPILE_PROCESSES";
  std::optional<std::string> before_;
};

std::shared_ptr<cache::Store> memory_store() {
  StoreOptions options;
  options.disk = false;
  return std::make_shared<cache::Store>(options);
}

std::vector<Target> targets_here() {
  std::vector<Target> targets;
  if (codegen::has_llvm() && codegen::host_compiler_obstacle().empty())
    targets.push_back(Target::this_host());
  if (codegen::NvrtcCompiler::find(codegen::NvrtcOptions::from_environment()).compiler)
    targets.push_back(Target::parse("sm_90a"));
  return targets;
}

}  // namespace

TEST_CASE("where kernels are compiled is asked for, or goes by the cores", "[runtime][compilers]") {
  const Variable unset("");
  CHECK(compile_plan(0).processes == 0);
  CHECK(compile_plan(0).why_here == "because the program's options say so");
  const CompilePlan three = compile_plan(3);
  CHECK(three.processes == 3);
  CHECK(std::filesystem::exists(three.executable));
  CHECK(obstacle_of(three).empty());
  CHECK(obstacle_of({.processes = 1, .executable = "/bin/false"}).find("exit code 1") !=
        std::string::npos);
  CHECK_THROWS_AS(compile_plan(257), UserError);
  const CompilePlan by_itself = compile_plan({});
  const unsigned cores = usable_cores();
  if (cores <= 2) {
    CHECK(by_itself.processes == 0);
    CHECK(by_itself.why_here.find("core(s)") != std::string::npos);
  } else {
    CHECK(by_itself.processes >= 1);
    CHECK(by_itself.processes <= cores);
  }
  CHECK_FALSE(by_itself.broken);
  {
    const Variable five("5");
    CHECK(compile_plan({}).processes == 5);
    CHECK(compile_plan(1).processes == 1);
  }
  {
    const Variable none("0");
    CHECK(compile_plan({}).processes == 0);
    CHECK(compile_plan({}).why_here == "because of KILN_COMPILE_PROCESSES=0");
    CHECK(compile_plan(2).processes == 2);
  }
  for (const char* wrong : {"-1", "two", "2 ", "257", "99999999999999999999"}) {
    const Variable bad(wrong);
    CHECK_THROWS_AS(compile_plan({}), UserError);
    CHECK(compile_plan(1).processes == 1);
  }
}

TEST_CASE("a library that is missing is told when its compiler is opened, the host's if asked",
          "[runtime][compilers]") {
  const CompilerPlace host{.kind = Target::Kind::host, .plugins = {"/nowhere/libkiln_llvm.so"}};
  CHECK_THROWS_AS(open_compiler(host, Opening::at_once), EnvironmentError);
  const auto lazy = open_compiler(host, Opening::when_compiling);
  CHECK(lazy->identity().name == "clang");
  CHECK(lazy->library_path().empty());
  CHECK_THROWS_AS(lazy->compile(test::odd_source("x"), Target::this_host()), EnvironmentError);
  CompilerPlace cuda{.kind = Target::Kind::cuda};
  cuda.nvrtc.library = "/nowhere/libnvrtc.so";
  for (const Opening opening : {Opening::at_once, Opening::when_compiling})
    CHECK_THROWS_AS(open_compiler(cuda, opening), EnvironmentError);
}

TEST_CASE("keys and binaries are the same, compiled here or in processes", "[runtime][compilers]") {
  const auto targets = targets_here();
  if (targets.empty()) KILN_SKIP("neither NVRTC nor the host compiler is here");
  for (const Target& target : targets)
    for (const char* name : {"vector_add", "rmsnorm"}) {
      INFO(target.arch << " " << name);
      const KernelDefinition kernel = shipped_kernels().make(name, "f32");
      const Values& config = kernel.space.default_config(target.kind);
      Builder here(memory_store(), compiler_maker(0), {}, 1);
      Builder elsewhere(memory_store(), compiler_maker(2), {}, 1);
      const Build one = here.build(kernel, config, target);
      const Build other = elsewhere.build(kernel, config, target);
      REQUIRE(one.binary());
      REQUIRE(other.binary());
      CHECK(one.key == other.key);
      CHECK(one.bytes == other.bytes);
      CHECK(dynamic_cast<ProcessCompiler*>(&elsewhere.compiler(target.kind)));
      CHECK(dynamic_cast<ProcessCompiler&>(elsewhere.compiler(target.kind))
                .pool()
                .processes()
                .size() == 1);
      CHECK_FALSE(dynamic_cast<ProcessCompiler*>(&here.compiler(target.kind)));
    }
}

TEST_CASE("a kernel that does not compile says the same, compiled here or in processes",
          "[runtime][compilers]") {
  const auto targets = targets_here();
  if (targets.empty()) KILN_SKIP("neither NVRTC nor the host compiler is here");
  for (const Target& target : targets) {
    INFO(target.arch);
    KernelDefinition kernel = test::doubling();
    kernel.source.text =
        "template <int a, int b> __global__ void k(float* y, const float* x, int n) { y = nowhere; "
        "}";
    kernel.source.options = {"-DSOMETHING=1"};
    CompileFailure failures[2];
    for (const unsigned processes : {0U, 1U}) {
      Builder builder(memory_store(), compiler_maker(processes), {}, 1);
      const Build build = builder.build(kernel, Values{2, 0}, target);
      const auto* failure = std::get_if<CompileFailure>(&build.outcome);
      REQUIRE(failure);
      failures[processes] = *failure;
    }
    CHECK(failures[0].log.find("nowhere") != std::string::npos);
    CHECK(failures[0].kernel == "doubling{a=2,b=0}");
    CHECK(failures[1].log == failures[0].log);
    CHECK(failures[1].kernel == failures[0].kernel);
    CHECK(failures[1].compiler == failures[0].compiler);
    CHECK(failures[1].options == failures[0].options);
  }
}
