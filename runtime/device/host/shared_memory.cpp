#include "runtime/device/host/shared_memory.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {
namespace {

/// What a PeerHandle holds here. Process and descriptor say where the memory is; the file's own
/// numbers, which no other one has, whether it is still that.
struct SharedPlace {
  std::int64_t process = 0, descriptor = -1;
  std::uint64_t device = 0, inode = 0;
};
static_assert(sizeof(SharedPlace) <= sizeof(PeerHandle));

[[noreturn]] void fail_shared(const char* call, std::size_t bytes) {
  const int code = errno;
  throw EnvironmentError(detail::format("{} failed for {} bytes of shared memory: {}", call, bytes,
                                        std::strerror(code)));
}

class Descriptor {
 public:
  explicit Descriptor(int value = -1) noexcept : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  ~Descriptor() { reset(); }
  int get() const noexcept { return value_; }
  void reset() noexcept {
    if (value_ >= 0) ::close(std::exchange(value_, -1));
  }

 private:
  int value_;
};

class MappedMemory final : public PeerMemory {
 public:
  /// @param descriptor -1: memory of this process alone
  MappedMemory(Descriptor descriptor, std::size_t bytes)
      : descriptor_(std::move(descriptor)), bytes_(bytes) {
    const int kind = descriptor_.get() < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, descriptor_.get(), 0);
    if (data_ == MAP_FAILED) fail_shared("mmap", bytes);
  }
  ~MappedMemory() override { ::munmap(data_, bytes_); }

  void* data() const noexcept override { return data_; }
  PeerHandle handle() const override {
    struct stat status{};
    if (::fstat(descriptor_.get(), &status) != 0) fail_shared("fstat", bytes_);
    const SharedPlace place{::getpid(), descriptor_.get(), status.st_dev, status.st_ino};
    PeerHandle handle{};
    std::memcpy(handle.data(), &place, sizeof place);
    return handle;
  }
  void withdraw() noexcept override { descriptor_.reset(); }

 private:
  Descriptor descriptor_;
  std::size_t bytes_;
  void* data_;
};

/// Host memory as the host's kernels see it: where it is.
class SameMemory final : public PeerMemory {
 public:
  explicit SameMemory(void* memory) noexcept : memory_(memory) {}
  void* data() const noexcept override { return memory_; }
  PeerHandle handle() const override { throw InternalError("mapped memory has no handle"); }

 private:
  void* memory_;
};

class HostPeerAccess final : public PeerAccess {
 public:
  std::unique_ptr<PeerMemory> share(std::size_t bytes, PeerScope scope) override {
    return create_shared_memory(bytes, scope);
  }
  std::unique_ptr<PeerMemory> open(const PeerHandle& handle, std::size_t bytes) override {
    return open_shared_memory(handle, bytes);
  }
  void reach(PeerAccess&) override {}
  std::unique_ptr<PeerMemory> map_host(void* memory, std::size_t) override {
    return std::make_unique<SameMemory>(memory);
  }
};

}  // namespace

std::unique_ptr<PeerMemory> create_shared_memory(std::size_t bytes, PeerScope scope) {
  require_memory("symmetric memory", bytes);
  if (scope == PeerScope::process) return std::make_unique<MappedMemory>(Descriptor(), bytes);
  Descriptor file(::memfd_create("kiln-symmetric", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) fail_shared("memfd_create", bytes);
  // Allocated now, because a page that is missing later would raise a signal inside a kernel.
  if (const int code = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); code != 0) {
    errno = code;
    fail_shared("posix_fallocate", bytes);
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail_shared("fcntl(F_ADD_SEALS)", bytes);
  return std::make_unique<MappedMemory>(std::move(file), bytes);
}

std::unique_ptr<PeerMemory> open_shared_memory(const PeerHandle& handle, std::size_t bytes) {
  SharedPlace place;
  std::memcpy(&place, handle.data(), sizeof place);
  const std::string path = detail::format("/proc/{}/fd/{}", place.process, place.descriptor);
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0)
    throw EnvironmentError(
        detail::format("{} cannot be opened ({}): ranks that share memory are processes of one "
                       "user on one machine "
                       "that see each other's process ids, and none may end meanwhile",
                       path, std::strerror(errno)));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) fail_shared("fstat", bytes);
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (status.st_dev != place.device || status.st_ino != place.inode || seals < 0 ||
      !(seals & F_SEAL_SHRINK) || status.st_size != static_cast<off_t>(bytes))
    throw EnvironmentError(
        detail::format("{} is not the shared memory of {} bytes that was offered: the rank has "
                       "ended, or it is in another process namespace",
                       path, bytes));
  auto memory = std::make_unique<MappedMemory>(std::move(file), bytes);
  memory->withdraw();
  return memory;
}

std::unique_ptr<PeerAccess> make_host_peer_access() { return std::make_unique<HostPeerAccess>(); }

}  // namespace kiln::runtime
