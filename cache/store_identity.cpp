#include "cache/store_identity.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <random>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/atomic_file.hpp"

namespace kiln::cache {
namespace {

constexpr const char* kName = "identity";
constexpr std::size_t kDigits = 32;

std::optional<std::uint64_t> read_identity(int directory) {
  const UniqueFd fd(
      ::openat(directory, kName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  std::array<char, kDigits> text{};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      ::read(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return {};
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + 16, value, 16);
  if (error != std::errc() || end != text.data() + 16 || value == 0) return {};
  // A copy of a store is another store, although its files are the same.
  value ^= static_cast<std::uint64_t>(status.st_ino) * 0x9e3779b97f4a7c15;
  return value != 0 ? value : 1;
}

bool write_identity(FileSystem& fs, int directory) {
  const std::string temporary = AtomicFile::temporary_name();
  const UniqueFd fd(fs.create(directory, temporary.c_str()));
  if (!fd) return false;
  std::random_device random;
  std::string text;
  while (text.size() < kDigits) text += "0123456789abcdef"[random() % 16];
  const bool written =
      fs.write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fs.sync(fd.get()) == 0 &&
      (fs.rename_new(directory, temporary.c_str(), kName) == 0 || errno == EEXIST);
  fs.remove(directory, temporary.c_str());
  return written;
}

}  // namespace

std::optional<std::uint64_t> identity_of(DiskLevel& disk) {
  const DiskLevel::SharedFd directory = disk.locks(true);
  if (!directory) return {};
  if (const auto known = read_identity(directory->get())) return known;
  if (!write_identity(*disk.file_system(), directory->get())) return {};
  return read_identity(directory->get());
}

}  // namespace kiln::cache
