#include "runtime/worker/shared_data.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {

namespace {

[[noreturn]] void fail(const char* call) {
  throw EnvironmentError(
      detail::format("{} failed for a worker's data: {}", call, std::strerror(errno)));
}

/// Above 2, where a child needs its own.
int above(int descriptor) {
  if (descriptor < 0 || descriptor > 2) return descriptor;
  const int moved = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
  ::close(descriptor);
  return moved;
}

}  // namespace

SharedData::SharedData(const std::vector<KernelData>& draws) {
  try {
    make(draws);
  } catch (...) {
    close();
    throw;
  }
}

void SharedData::make(const std::vector<KernelData>& draws) {
  const auto reserve = [&](std::uint64_t bytes) {
    constexpr std::uint64_t kAlignment = 64;
    const std::uint64_t place = size_;
    size_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  };
  for (const KernelData& draw : draws) {
    auto& places = places_.emplace_back();
    for (const Workload::Argument& a : draw.trial->arguments)
      places.push_back(
          {reserve(a.bytes.size()), a.direction == Direction::in ? 0 : reserve(a.bytes.size())});
  }
  // The machine promises more than it has, and ends the process that uses it.
  if (const auto there = available_memory(); there && static_cast<std::int64_t>(size_) > *there)
    throw EnvironmentError(detail::format(
        "a worker's data need {} bytes of memory, and {} are available", size_, *there));
  writing_ = above(::memfd_create("kiln-data", MFD_CLOEXEC));
  if (writing_ < 0) fail("memfd_create");
  if (::ftruncate(writing_, static_cast<off_t>(size_)) != 0) fail("ftruncate");
  const std::string path = "/proc/self/fd/" + std::to_string(writing_);
  reading_ = above(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (reading_ < 0) fail("open");
  for (std::size_t draw = 0; draw < draws.size(); ++draw) {
    const auto& arguments = draws[draw].trial->arguments;
    for (std::size_t i = 0; i < arguments.size(); ++i)
      write(places_[draw][i].given, arguments[i].bytes);
  }
}

SharedData::~SharedData() { close(); }

void SharedData::close() noexcept {
  for (const int descriptor : {writing_, reading_})
    if (descriptor >= 0) ::close(descriptor);
}

void SharedData::write(std::uint64_t place, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(writing_, bytes.data(), bytes.size(), static_cast<off_t>(place));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("pwrite");
    place += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void SharedData::read(std::uint64_t place, std::span<std::byte> bytes) const {
  read_all(reading_, place, bytes);
}

void read_all(int descriptor, std::uint64_t place, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(place));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("pread");
    place += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace kiln::runtime
