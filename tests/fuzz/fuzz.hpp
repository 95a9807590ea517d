// What the fuzz targets share. A target is one function, LLVMFuzzerTestOneInput: with libFuzzer
// (-Dfuzz=enabled) it decides what to try, else driver.cpp does.
//
// Checksums keep a mutated input from ever getting past a format's door. So each target tries an
// input twice: as it is, and with its checksums made right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kiln::fuzz {

/// A property that every input must have.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

inline std::vector<std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  return {begin, begin + size};
}

/// A file in memory, for parsers that open what they read.
class File {
 public:
  explicit File(std::span<const std::byte> bytes) : fd_(::memfd_create("kiln-fuzz", MFD_CLOEXEC)) {
    ::fchmod(fd_, 0600);
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      require(written > 0, "no memory for a file");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace kiln::fuzz
