// Random kernels, compiled and run by the host target, against an interpreter.
//   generated_kernels [--kernels N] [--seed S]    kernel i has seed S + i
// Prints `generated kernels: N, wrong W`; exits with 1 if W is not 0.
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <variant>

#include "codegen/llvm_plugin.hpp"
#include "generated/program.hpp"
#include "runtime/device/host/host_module.hpp"

namespace {

using namespace generated;

std::vector<std::uint32_t> inputs() {
  std::mt19937 random(1);
  std::vector<std::uint32_t> a(kInputs);
  for (std::uint32_t& value : a) value = random() % 3 == 0 ? 0 : random() % 1000;
  return a;
}

class Trial {
 public:
  /// What is wrong with the kernel; empty: nothing.
  std::string operator()(const Program& program) {
    try {
      kiln::codegen::Source source;
      source.text = text_of(program);
      source.path = "generated.cu";
      source.entry = source.label = "k";
      auto compiled = compiler_->compile(source, kiln::Target::this_host());
      if (auto* failure = std::get_if<kiln::CompileFailure>(&compiled)) return failure->log;
      const auto module =
          kiln::runtime::HostModule::load(std::get<kiln::codegen::Binary>(compiled), workers_);
      const std::vector<std::uint32_t> own = {1, 4, 33, 64}, whole = {32, 64};
      for (const std::uint32_t threads : program.shuffles ? whole : own) {
        for (const std::uint32_t n : {0u, 3u}) {
          std::string problem = compare(program, module, {2, threads, n});
          if (!problem.empty()) return problem;
        }
      }
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }

 private:
  std::string compare(const Program& program, const kiln::runtime::HostModule& module,
                      const Launch& launch) {
    const std::vector<std::uint32_t> wanted = interpret(program, a_, launch);
    std::vector<std::uint32_t> out(wanted.size(), kUntouched);
    std::uint32_t* out_pointer = out.data();
    const std::uint32_t* a_pointer = a_.data();
    std::uint32_t n = launch.n;
    void* arguments[] = {&out_pointer, &a_pointer, &n};
    module.launch({launch.blocks}, {launch.threads}, launch.threads * sizeof(std::uint32_t),
                  arguments);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] == wanted[i]) continue;
      const std::size_t thread = i / kOutputs;
      return std::to_string(launch.threads) + " threads, n = " + std::to_string(n) + ": block " +
             std::to_string(thread / launch.threads) + ", thread " +
             std::to_string(thread % launch.threads) + ", x" + std::to_string(i % kOutputs) +
             " is " + std::to_string(out[i]) + ", should be " + std::to_string(wanted[i]);
    }
    return {};
  }

  std::unique_ptr<kiln::codegen::Compiler> compiler_ = kiln::codegen::make_host_compiler();
  std::shared_ptr<kiln::runtime::HostWorkers> workers_ = kiln::runtime::HostWorkers::create();
  std::vector<std::uint32_t> a_ = inputs();
};

}  // namespace

int main(int count, char** arguments) {
  unsigned long long kernels = 1000, seed = 1;
  for (int i = 1; i < count; ++i) {
    const bool has_value = i + 1 < count;
    if (has_value && std::strcmp(arguments[i], "--kernels") == 0) {
      kernels = std::stoull(arguments[++i]);
    } else if (has_value && std::strcmp(arguments[i], "--seed") == 0) {
      seed = std::stoull(arguments[++i]);
    } else {
      std::fprintf(stderr, "usage: generated_kernels [--kernels N] [--seed S]\n");
      return 2;
    }
  }
  Trial trial;
  unsigned long long wrong = 0;
  for (unsigned long long i = 0; i < kernels; ++i) {
    const generated::Program program = generated::generate(seed + i);
    const std::string problem = trial(program);
    if (problem.empty()) continue;
    ++wrong;
    std::printf("seed %llu: %s\n%s\n", seed + i, problem.c_str(),
                generated::text_of(program).c_str());
    std::fflush(stdout);
  }
  std::printf("generated kernels: %llu, wrong %llu\n", kernels, wrong);
  return wrong ? 1 : 0;
}
