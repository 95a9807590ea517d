// A compiler for the fake device, the kernel that most tests tune, and both with a builder.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/store.hpp"
#include "codegen/compiler.hpp"
#include "fake_device.hpp"
#include "kiln/definition.hpp"
#include "runtime/build/builder.hpp"

namespace kiln::test {

class FakeCompiler final : public codegen::Compiler {
 public:
  explicit FakeCompiler(std::shared_ptr<Script> script) : script_(std::move(script)) {}

  codegen::CompilerIdentity identity() const override { return {"fake", version, "b1"}; }
  codegen::IncludeContext includes(const Target&) const override { return {}; }
  std::vector<std::string> options(const codegen::Source& source, const Target&) const override {
    return source.options;
  }
  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override {
    ++compiles;
    if (on_compile) on_compile(source);
    {
      std::lock_guard lock(mutex_);
      entries.push_back(source.entry);
    }
    const Behaviour& behaviour = (*script_)[source.entry];
    std::string text = source.entry, refused = behaviour.compile_log;
    codegen::Binary binary;
    for (const std::string& step : source.steps) {
      text += "\n" + step;
      refused += (*script_)[step].compile_log;
      binary.steps.push_back({step, (*script_)[step].resources});
    }
    if (!refused.empty())
      return CompileFailure{source.label, "fake " + version, source.options, refused};
    binary.target = target;
    binary.symbol = "k";
    binary.resources = behaviour.resources;
    binary.log = behaviour.warnings;
    const auto code = std::as_bytes(std::span(text));
    binary.code = std::vector<std::byte>(code.begin(), code.end());
    return binary;
  }

  std::string version = "1";
  std::function<void(const codegen::Source&)> on_compile;
  std::atomic<int> compiles{0};
  std::vector<std::string> entries;  ///< in the order compiled; read when no build is running

 private:
  std::mutex mutex_;
  std::shared_ptr<Script> script_;
};

/// y[i] = 2 * x[i] for n elements, with parameters `a` (block size) and `b`.
inline KernelDefinition doubling(std::vector<std::int64_t> a = {1, 2, 4, 8},
                                 std::int64_t default_a = 2, std::vector<std::int64_t> b = {0}) {
  KernelDefinition k;
  k.name = "doubling";
  k.source.text = "template <int a, int b> __global__ void k(float* y, const float* x, int n);";
  k.entry = "k";
  k.arguments = {"float*", "const float*", "int"};
  k.space.parameter("a", std::move(a), default_a);
  const std::int64_t default_b = b.front();
  k.space.parameter("b", std::move(b), default_b);
  k.problem_fields = {"n"};
  k.launch = [](std::span<const std::int64_t> c, std::span<const std::int64_t> p) {
    const auto block = static_cast<unsigned>(c[0]);
    return Launch{{(static_cast<unsigned>(p[0]) + block - 1) / block}, {block}, 0};
  };
  k.workload = [](std::span<const std::int64_t> p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.output<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  k.reference = [](std::span<const std::int64_t>, std::span<void* const> args) {
    auto* y = static_cast<float*>(args[0]);
    const auto* x = static_cast<const float*>(args[1]);
    for (int i = 0; i < *static_cast<int*>(args[2]); ++i) y[i] = 2 * x[i];
  };
  return k;
}

/// What a right instance of doubling() does with launch arguments.
inline void compute_doubling(void** args) {
  auto* y = *static_cast<float**>(args[0]);
  const auto* x = *static_cast<const float**>(args[1]);
  for (int i = 0; i < *static_cast<int*>(args[2]); ++i) y[i] = 2 * x[i];
}

/// A device, a compiler for it, and a builder on a store in memory.
struct Bench {
  std::shared_ptr<Script> script = std::make_shared<Script>();
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>(script);
  std::shared_ptr<FakeCompiler> compiler = std::make_shared<FakeCompiler>(script);
  std::shared_ptr<cache::Store> store;
  runtime::Builder builder;

  Bench()
      : store(std::make_shared<cache::Store>([] {
          StoreOptions options;
          options.disk = false;
          return options;
        }())),
        builder(store, [this](Target::Kind) { return compiler; }, {}, 4) {
    device->compute = compute_doubling;
  }

  /// `a` of doubling() takes this long.
  void seconds(int a, double s, int b = 0) { of(a, b).seconds = s; }
  Behaviour& of(int a, int b = 0) {
    return (*script)["k<" + std::to_string(a) + ", " + std::to_string(b) + ">"];
  }
};

}  // namespace kiln::test
