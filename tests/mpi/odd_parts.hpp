// A rank's device and compiler that are not like those of the other ranks.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <time.h>

#include "codegen/compiler.hpp"
#include "runtime/device/device.hpp"

namespace odd {

/// Processor time of this thread.
inline std::chrono::duration<double> thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

/// Spends `factor` times as long on everything. Processor time counts: a machine that does other
/// things would otherwise make this rank slower by ten times what it costs the others.
template <class Work>
auto slowed(double factor, const Work& work) {
  struct Rest {
    const double factor;
    const std::chrono::duration<double> start = thread_time();
    ~Rest() {
      if (factor > 1) std::this_thread::sleep_for((factor - 1) * (thread_time() - start));
    }
  } const rest{factor};
  return work();
}

class Compiler final : public kiln::codegen::Compiler {
 public:
  explicit Compiler(std::shared_ptr<kiln::codegen::Compiler> real) : real_(std::move(real)) {}

  std::string build;    ///< not empty: another build
  std::string refuses;  ///< not empty: configs that contain this do not compile
  double slowness = 1;

  kiln::codegen::CompilerIdentity identity() const override {
    auto identity = real_->identity();
    if (!build.empty()) identity.build = build;
    return identity;
  }
  kiln::codegen::IncludeContext includes(const kiln::Target& target) const override {
    return real_->includes(target);
  }
  std::vector<std::string> options(const kiln::codegen::Source& source,
                                   const kiln::Target& target) const override {
    return real_->options(source, target);
  }
  kiln::codegen::CompileResult compile(const kiln::codegen::Source& source,
                                       const kiln::Target& target) override {
    kiln::codegen::Source given = source;
    if (!refuses.empty() && source.config.find(refuses) != std::string::npos)
      given.text += "\n#error not on this rank\n";
    return slowed(slowness, [&] { return real_->compile(given, target); });
  }

 private:
  std::shared_ptr<kiln::codegen::Compiler> real_;
};

class Device final : public kiln::runtime::Device {
 public:
  explicit Device(std::shared_ptr<kiln::runtime::Device> real)
      : told(real->info()), real_(std::move(real)) {}

  kiln::DeviceInfo told;  ///< what it says of itself
  double slowness = 1;

  const kiln::DeviceInfo& info() const noexcept override { return told; }
  std::shared_ptr<kiln::runtime::Module> load(const kiln::codegen::Binary& binary,
                                              const kiln::Launch& launch,
                                              std::span<const kiln::Launch> steps) override {
    return real_->load(binary, launch, steps);
  }
  void launch(const kiln::runtime::Module& kernel, const kiln::Launch& launch, kiln::Stream stream,
              void** args) const override {
    slowed(slowness, [&] { return real_->launch(kernel, launch, stream, args); });
  }
  int occupancy(const kiln::runtime::Module& kernel, int threads, unsigned shared) const override {
    return real_->occupancy(kernel, threads, shared);
  }
  void* allocate(std::size_t bytes) override { return real_->allocate(bytes); }
  void release(void* memory, std::size_t bytes) noexcept override { real_->release(memory, bytes); }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override {
    real_->copy_to_device(to, from, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override {
    real_->copy_to_host(to, from, bytes);
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, kiln::Stream stream) override {
    real_->copy_on_device(to, from, bytes, stream);
  }
  void fill(void* memory, std::byte value, std::size_t bytes, kiln::Stream stream) override {
    real_->fill(memory, value, bytes, stream);
  }
  void synchronize(kiln::Stream stream) override { real_->synchronize(stream); }
  kiln::Stream tuning_stream() override { return real_->tuning_stream(); }
  double time(kiln::Stream stream, const std::function<void()>& enqueue) override {
    return real_->time(stream, enqueue);
  }
  bool shares_cpu() const noexcept override { return real_->shares_cpu(); }

 private:
  std::shared_ptr<kiln::runtime::Device> real_;
};

}  // namespace odd
