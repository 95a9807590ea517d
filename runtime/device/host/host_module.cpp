#include "runtime/device/host/host_module.hpp"

#include <atomic>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include <dlfcn.h>
#include <sys/mman.h>
#include <tbb/blocked_range.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <unistd.h>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {
namespace {

class TbbWorkers final : public HostWorkers {
 public:
  BlockScratch& scratch() override { return scratches_.local(); }
  auto begin() const { return scratches_.begin(); }
  auto end() const { return scratches_.end(); }

 private:
  tbb::enumerable_thread_specific<BlockScratch> scratches_;
};

// The loader takes two equal names for one library, even where the descriptor has been closed and
// its number reused. A serial number spelled as "./" and ".//" makes every name new.
std::string unique_path(int descriptor) {
  static std::atomic<std::uint64_t> serial{1};
  std::string path = "/proc/self/";
  for (std::uint64_t bits = serial.fetch_add(1); bits; bits >>= 1) path += bits & 1 ? ".//" : "./";
  return detail::format("{}fd/{}", path, descriptor);
}

// A file that exists only as long as it is being loaded: in memory, or where the kernel has no
// memory files, an unlinked temporary one.
class LoadableFile {
 public:
  explicit LoadableFile(std::span<const std::byte> bytes) {
    descriptor_ = ::memfd_create("kiln-kernel", MFD_CLOEXEC);
    path_ = unique_path(descriptor_);
    if (descriptor_ < 0 || ::access(path_.c_str(), R_OK) != 0) {
      close();
      const std::string_view folder = detail::environment("TMPDIR");
      path_ = std::string(folder.empty() ? "/tmp" : folder) + "/kiln-kernel-XXXXXX";
      descriptor_ = ::mkstemp(path_.data());
      temporary_ = descriptor_ >= 0;
      if (!temporary_)
        throw EnvironmentError("cannot create " + path_ + " to load a host kernel from");
    }
    while (!bytes.empty()) {
      const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
      if (n <= 0) {
        close();
        throw EnvironmentError("writing a host kernel to " + path_ + " failed: is the disk full?");
      }
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  ~LoadableFile() { close(); }
  LoadableFile(const LoadableFile&) = delete;
  LoadableFile& operator=(const LoadableFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  void close() noexcept {
    if (temporary_) ::unlink(path_.c_str());
    if (descriptor_ >= 0) ::close(descriptor_);
    temporary_ = false;
    descriptor_ = -1;
  }

  int descriptor_ = -1;
  bool temporary_ = false;
  std::string path_;
};

void check_limits(const codegen::HostKernel& kernel, const Extent& grid, const Extent& block,
                  std::size_t dynamic_shared) {
  const std::uint64_t threads = block.count();
  const std::uint64_t most = kernel.max_threads ? kernel.max_threads : kHostMaxThreads;
  if (threads == 0 || grid.count() == 0) {
    throw UserError(
        detail::format("{}: a launch needs at least one block and one thread", kernel.name));
  }
  if (threads > most || threads > kHostMaxThreads) {
    throw UserError(detail::format("{}: block of {} x {} x {} = {} threads; at most {} are allowed",
                                   kernel.name, block.x, block.y, block.z, threads,
                                   std::min<std::uint64_t>(most, kHostMaxThreads)));
  }
  for (auto [blocks, size] : {std::pair{grid.x, block.x}, {grid.y, block.y}, {grid.z, block.z}}) {
    if (std::uint64_t{blocks} * size > 0x7fffffffu) {  // compiled code relies on it
      throw UserError(detail::format(
          "{}: {} blocks of {} threads in one dimension; the host target allows 2^31 - 1 threads",
          kernel.name, blocks, size));
    }
  }
  if (kernel.static_shared + dynamic_shared > kHostMaxShared) {
    throw UserError(detail::format("{}: {} + {} bytes of shared memory; at most {} are allowed",
                                   kernel.name, kernel.static_shared, dynamic_shared,
                                   kHostMaxShared));
  }
}

/// The launch's cluster, or where it says none, the kernel's.
Extent cluster_of(const codegen::HostKernel& kernel, const Extent& asked, const Extent& grid) {
  const Extent own{kernel.cluster[0], kernel.cluster[1], kernel.cluster[2]};
  const auto words = [](const Extent& e) { return detail::format("{} x {} x {}", e.x, e.y, e.z); };
  if (own.count() != 0 && asked.count() != 1 && words(own) != words(asked))
    throw UserError(
        detail::format("{}: launched in clusters of {}, but its __cluster_dims__ are {}",
                       kernel.name, words(asked), words(own)));
  const Extent cluster = own.count() != 0 ? own : asked;
  if (cluster.count() == 0 || cluster.count() > codegen::kMostClusterBlocks)
    throw UserError(
        detail::format("{}: clusters of {} blocks; at least 1 and at most {} are allowed",
                       kernel.name, words(cluster), codegen::kMostClusterBlocks));
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0)
    throw UserError(detail::format("{}: a grid of {} blocks cannot be divided into clusters of {}",
                                   kernel.name, words(grid), words(cluster)));
  return cluster;
}

// Enough blocks per task that a task outweighs its scheduling.
std::size_t grain(std::uint64_t blocks, std::uint64_t threads) {
  const std::uint64_t by_work = 2048 / threads + 1;
  return static_cast<std::size_t>(std::min<std::uint64_t>(by_work, blocks / 64 + 1));
}

/// Runs all blocks; empty, or what went wrong in one.
std::string run_grid(const BlockLaunch& launch, HostWorkers& workers) {
  const std::uint64_t together = launch.blocks_together();
  const std::uint64_t blocks = launch.grid.count() / together;
  std::atomic<bool> failed{false};
  std::string problem;
  const auto run = [&](const tbb::blocked_range<std::uint64_t>& range) {
    BlockScratch& scratch = workers.scratch();
    scratch.prepare(launch);
    std::string words = run_blocks(launch, range.begin(), range.end(), scratch, failed);
    if (!words.empty() && !failed.exchange(true)) problem = std::move(words);
  };
  // While it waits, this thread takes on no other task: that could be a launch with the same
  // workspace.
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(tbb::blocked_range<std::uint64_t>(
                          0, blocks, grain(blocks, launch.block.count() * together)),
                      run);
  });
  return problem;
}

}  // namespace

std::shared_ptr<HostWorkers> HostWorkers::create() { return std::make_shared<TbbWorkers>(); }

HostModule::HostModule(std::shared_ptr<void> handle, std::size_t entry,
                       std::shared_ptr<HostWorkers> workers)
    : handle_(std::move(handle)),
      kernel_(static_cast<const codegen::HostKernel*>(
          ::dlsym(handle_.get(),
                  (codegen::kHostKernelSymbol + codegen::host_entry_suffix(entry)).c_str()))),
      workers_(std::move(workers)) {
  if (!kernel_ || kernel_->abi != codegen::kHostAbiVersion ||
      kernel_->bytes != sizeof(codegen::HostKernel))
    throw UserError("a host binary was built by another version of Kiln");
}

HostModule HostModule::load(const codegen::Binary& binary, std::shared_ptr<HostWorkers> workers) {
  if (binary.target.kind != Target::Kind::host) {
    throw UserError("a binary for " + binary.target.arch + " cannot run on the host");
  }
  const LoadableFile file(binary.code);
  void* handle = ::dlopen(file.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = ::dlerror();
    throw EnvironmentError(detail::format("a host kernel ({}, {} bytes) cannot be loaded: {}",
                                          binary.symbol, binary.code.size(),
                                          reason ? reason : "no reason given"));
  }
  return {std::shared_ptr<void>(handle, ::dlclose), 0, std::move(workers)};
}

HostModule HostModule::step(std::size_t index) const { return {handle_, index + 1, workers_}; }

void HostModule::launch(const Extent& grid, const Extent& block, std::size_t dynamic_shared,
                        void* const* arguments, const Extent& cluster) const {
  check_limits(*kernel_, grid, block, dynamic_shared);
  const BlockLaunch launch{kernel_,
                           grid,
                           block,
                           static_cast<std::uint32_t>(dynamic_shared),
                           arguments,
                           false,
                           cluster_of(*kernel_, cluster, grid)};
  if (grid.count() == 1) {
    BlockScratch& scratch = workers_->scratch();
    scratch.prepare(launch);
    const std::atomic<bool> stop{false};
    if (const std::string problem = run_blocks(launch, 0, 1, scratch, stop); !problem.empty())
      throw UserError(problem);
    return;
  }
  if (const std::string problem = run_grid(launch, *workers_); !problem.empty())
    throw UserError(problem);
}

void HostModule::launch_checked(const Extent& grid, const Extent& block, std::size_t dynamic_shared,
                                void* const* arguments, const Extent& cluster) const {
  check_limits(*kernel_, grid, block, dynamic_shared);
  const BlockLaunch launch{kernel_,
                           grid,
                           block,
                           static_cast<std::uint32_t>(dynamic_shared),
                           arguments,
                           true,
                           cluster_of(*kernel_, cluster, grid)};
  // The check gets memory of its own: what other launches find in theirs must not depend on it.
  TbbWorkers workers;
  const std::string problem = run_grid(launch, workers);
  for (const BlockScratch& scratch : workers)
    if (const std::string breach = scratch.breach(launch); !breach.empty())
      throw WrongResult(breach);
  if (!problem.empty()) throw UserError(problem);
}

}  // namespace kiln::runtime
