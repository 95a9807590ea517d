// A host binary in memory: loaded without a compiler, launched over all cores.
//
//   HostModule module = HostModule::load(binary, HostWorkers::create());
//   module.launch({blocks}, {256}, 0, arguments);   // returns when all blocks are done
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "codegen/binary.hpp"
#include "codegen/host_abi.hpp"
#include "runtime/device/host/block_scheduler.hpp"

namespace kiln::runtime {

/// The memory blocks run in, one piece per CPU thread; shared by all modules of a device.
class HostWorkers {
 public:
  static std::shared_ptr<HostWorkers> create();
  virtual ~HostWorkers() = default;

  /// This CPU thread's piece.
  virtual BlockScratch& scratch() = 0;
};

/// Limits of a launch, those of current GPUs.
inline constexpr std::uint32_t kHostMaxThreads = 1024;
inline constexpr std::uint32_t kHostMaxShared = 227 * 1024;

/// Keeps the loaded code. A value: copies share it.
class HostModule {
 public:
  /// @throws EnvironmentError if the shared object cannot be loaded here: the loader's words.
  /// @throws UserError if it was built for another version of the interface, or is not for the
  /// host.
  static HostModule load(const codegen::Binary& binary, std::shared_ptr<HostWorkers> workers);

  /// A further entry of the same code, with the same variables. @throws UserError as load()
  HostModule step(std::size_t index) const;

  const codegen::HostKernel& kernel() const noexcept { return *kernel_; }

  /// Runs all blocks and returns when they are done. `arguments[i]` is the address of parameter i.
  /// Safe to call from several threads. Allocates nothing once every CPU thread has run a block of
  /// this size; takes no lock; a grid of one block runs on the calling thread.
  /// `cluster` is that of the kernel's __cluster_dims__ where it has them and none is given.
  /// @throws UserError for a launch that exceeds a limit, a divergent barrier, waits that never
  /// end, a failed assert or a trap; blocks that have started are finished first.
  void launch(const Extent& grid, const Extent& block, std::size_t dynamic_shared,
              void* const* arguments, const Extent& cluster = {}) const;
  /// launch() with guard zones around the shared memory of blocks; slower, in memory of its own.
  /// @throws WrongResult when a block wrote into one: the byte, and on which side
  void launch_checked(const Extent& grid, const Extent& block, std::size_t dynamic_shared,
                      void* const* arguments, const Extent& cluster = {}) const;

 private:
  HostModule(std::shared_ptr<void> handle, std::size_t entry, std::shared_ptr<HostWorkers> workers);

  std::shared_ptr<void> handle_;  ///< as dlopen() gave it
  const codegen::HostKernel* kernel_ = nullptr;
  std::shared_ptr<HostWorkers> workers_;
};

}  // namespace kiln::runtime
