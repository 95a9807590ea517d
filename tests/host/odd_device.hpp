// A host device that does now and then what only other devices do. Files in the folder that
// $KILN_TEST_ODD names say what: a test makes them, and a device removes what it has done once.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <thread>

#include <unistd.h>

#include "runtime/device/array_digest.hpp"
#include "runtime/device/host/host_device.hpp"
#include "runtime/device/host_memory_device.hpp"
#include "runtime/device/peer_access.hpp"
#include "runtime/device/spare_memory.hpp"

namespace kiln::test {

inline constexpr double kLate = 0.08;  // seconds

class OddDevice : public runtime::HostMemoryDevice {
 public:
  OddDevice() { info_.limits.l2_bytes = std::int64_t{32} << 20; }

  const DeviceInfo& info() const noexcept override { return info_; }
  std::shared_ptr<runtime::Module> load(const codegen::Binary& binary, const Launch& launch,
                                        std::span<const Launch> steps) override {
    return host_->load(binary, launch, steps);
  }
  void launch(const runtime::Module& kernel, const Launch& launch, Stream stream,
              void** args) const override {
    host_->launch(kernel, launch, stream, args);
  }
  void launch_checked(const runtime::Module& kernel, const Launch& launch, Stream stream,
                      void** args) const override {
    if (once("no_memory")) throw runtime::OutOfMemory("there is no memory now");
    if (once("lost")) lost_ = true;
    if (lost_) throw EnvironmentError("an illegal address");
    while (once("hangs"))
      for (;;) ::pause();
    host_->launch_checked(kernel, launch, stream, args);
  }
  std::vector<runtime::ModuleVariable> variables(const runtime::Module& kernel) const override {
    return host_->variables(kernel);
  }
  int occupancy(const runtime::Module& kernel, int threads, unsigned shared_bytes) const override {
    return host_->occupancy(kernel, threads, shared_bytes);
  }
  std::optional<std::int64_t> available() const override {
    if (is("little_memory")) return std::int64_t{4} << 20;
    return host_->available();
  }
  void* allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  void release(void* memory, std::size_t bytes) noexcept override { host_->release(memory, bytes); }
  std::vector<std::uint64_t> digests(const void* memory, std::size_t bytes, std::size_t stride,
                                     std::size_t count) override {
    if (!is("digests")) return {};
    std::vector<std::uint64_t> all;
    for (std::size_t i = 0; i < count; ++i)
      all.push_back(
          runtime::array_digest({static_cast<const std::byte*>(memory) + i * stride, bytes}));
    return all;
  }
  /// Late where `late` is there: it is waited for before each sample in step, and while verifying.
  void synchronize(Stream stream) override {
    if (is("late")) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
    host_->synchronize(stream);
  }
  Stream tuning_stream() override { return host_->tuning_stream(); }
  double time(Stream stream, const std::function<void()>& enqueue) override {
    return host_->time(stream, enqueue);
  }
  runtime::PeerAccess* peer_access() noexcept override { return &peers_; }
  bool lost() noexcept override { return lost_; }
  bool shares_cpu() const noexcept override { return true; }

 private:
  static std::filesystem::path file(std::string_view name) {
    const char* const folder = std::getenv("KILN_TEST_ODD");
    return std::filesystem::path(folder ? folder : "/nonexistent") / name;
  }
  static bool is(std::string_view name) { return std::filesystem::exists(file(name)); }
  static bool once(std::string_view name) {
    std::error_code none;
    return std::filesystem::remove(file(name), none);
  }

  class Peers final : public runtime::PeerAccess {
   public:
    explicit Peers(runtime::PeerAccess& real) : real_(real) {}
    std::unique_ptr<runtime::PeerMemory> share(std::size_t bytes,
                                               runtime::PeerScope scope) override {
      return real_.share(bytes, scope);
    }
    std::unique_ptr<runtime::PeerMemory> open(const runtime::PeerHandle& handle,
                                              std::size_t bytes) override {
      if (once("ends_early")) ::raise(SIGKILL);
      if (is("no_peers")) throw EnvironmentError("handles of other processes are not accepted");
      return real_.open(handle, bytes);
    }
    void reach(runtime::PeerAccess& theirs) override { real_.reach(theirs); }
    std::unique_ptr<runtime::PeerMemory> map_host(void* memory, std::size_t bytes) override {
      return real_.map_host(memory, bytes);
    }

   private:
    runtime::PeerAccess& real_;
  };

  const std::shared_ptr<runtime::Device> host_ = runtime::make_host_device();
  Peers peers_{*host_->peer_access()};
  DeviceInfo info_ = host_->info();
  mutable bool lost_ = false;
};

}  // namespace kiln::test
