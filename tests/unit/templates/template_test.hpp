// What tests of the shipped templates share: instances on the host target, arrays with margins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codegen/instance.hpp"
#include "codegen/llvm_plugin.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"
#include "runtime/device/host/host_module.hpp"
#include "templates/kernels.hpp"

namespace template_test {

/// `count` elements of T, `offset` elements past an address aligned to 64 bytes, between margins
/// that a kernel may not touch.
template <class T>
class Array {
 public:
  explicit Array(std::size_t count, std::size_t offset = 0)
      : count_(count), bytes_(2 * kMargin + (count + offset) * sizeof(T) + 64, kPoison) {
    void* start = bytes_.data() + kMargin;
    std::size_t space = bytes_.size() - kMargin;
    std::align(64, 1, start, space);
    data_ = static_cast<T*>(start) + offset;
  }

  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::size_t size() const { return count_; }

  /// Small integers: every sum in float is exact, so results can be compared bit by bit.
  Array& integers(int bound, unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> pick(-bound, bound);
    for (std::size_t i = 0; i < count_; ++i) data_[i] = T(static_cast<float>(pick(random)));
    return *this;
  }
  Array& reals(unsigned seed) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> pick(-2, 2);
    for (std::size_t i = 0; i < count_; ++i) data_[i] = T(pick(random));
    return *this;
  }
  bool margins_intact() const {
    const auto* first = reinterpret_cast<const unsigned char*>(data_);
    const auto* last = reinterpret_cast<const unsigned char*>(data_ + count_);
    for (const unsigned char* p = bytes_.data(); p < first; ++p)
      if (*p != kPoison) return false;
    for (const unsigned char* p = last; p < bytes_.data() + bytes_.size(); ++p)
      if (*p != kPoison) return false;
    return true;
  }

 private:
  static constexpr std::size_t kMargin = 256;     // bytes
  static constexpr unsigned char kPoison = 0xff;  // a NaN in every type

  std::size_t count_;
  std::vector<unsigned char> bytes_;
  T* data_;
};

/// One config of a kernel, compiled for this CPU.
template <class Kernel>
class HostInstance {
 public:
  using Config = typename Kernel::ConfigType;
  using Problem = typename Kernel::ProblemType;

  HostInstance(const Kernel& kernel, const Config& config, std::vector<std::string> options = {})
      : kernel_(kernel), config_(config), module_(load(kernel, config, std::move(options))) {}

  template <class... Args>
  void operator()(const Problem& problem, Args... args) const {
    const kiln::Launch g = kernel_.launch(config_, problem, {});
    void* arguments[] = {static_cast<void*>(&args)...};
    if (g.grid.x != 0)
      module_.launch({g.grid.x, g.grid.y, g.grid.z}, {g.block.x, g.block.y, g.block.z},
                     g.shared_bytes, arguments, {g.cluster.x, g.cluster.y, g.cluster.z});
  }

 private:
  static kiln::runtime::HostModule load(const Kernel& kernel, const Config& config,
                                        std::vector<std::string> options) {
    static const auto compiler = kiln::codegen::make_host_compiler();
    static kiln::codegen::IncludeCache cache;
    kiln::KernelDefinition definition = kernel.definition();
    definition.source.options = std::move(options);
    const kiln::Target target = kiln::Target::this_host();
    const auto values = kiln::to_values(config);
    auto result = compiler->compile(
        kiln::codegen::make_source(definition, values, target, *compiler, cache), target);
    if (auto* failure = std::get_if<kiln::CompileFailure>(&result))
      throw kiln::CompileError(*failure);
    const auto& binary = std::get<kiln::codegen::Binary>(result);
    INFO(binary.log);
    CHECK(binary.log.empty());
    return kiln::runtime::HostModule::load(binary, kiln::runtime::HostWorkers::create());
  }

  Kernel kernel_;
  Config config_;
  kiln::runtime::HostModule module_;
};

/// Compiles for the host what it is asked for, and keeps nothing.
inline kiln::Runtime host_runtime() {
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  return kiln::Runtime(options);
}

/// Why a call is the caller's mistake; "accepted" if it is none.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const kiln::UserError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace template_test
