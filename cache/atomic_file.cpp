#include "cache/atomic_file.hpp"

#include <cerrno>
#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"

namespace kiln::cache {
namespace {

constexpr std::string_view kPrefix = ".kiln-", kSuffix = ".tmp";

bool unsupported(int code) { return code == EINVAL || code == ENOTSUP; }

}  // namespace

AtomicFile::AtomicFile(FileSystem& fs, int directory, std::string name)
    : fs_(fs), directory_(directory), name_(std::move(name)) {
  for (int attempt = 0; attempt < 8 && !fd_; ++attempt) {
    std::string candidate = temporary_name();
    fd_ = UniqueFd(fs_.create(directory_, candidate.c_str()));
    if (fd_)
      temporary_ = std::move(candidate);
    else if (errno != EEXIST && errno != EINTR)
      break;
  }
  if (!fd_) fail("create", errno);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) fs_.remove(directory_, temporary_.c_str());
}

bool AtomicFile::fail(const char* call, int code) {
  failure_ = call_failure(call, name_, code);
  return false;
}

bool AtomicFile::write(std::span<const std::byte> bytes) {
  if (failure_.code != 0) return false;
  while (!bytes.empty()) {
    const ssize_t written = fs_.write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail("write", written == 0 ? EIO : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

bool AtomicFile::commit() {
  if (failure_.code != 0) return false;
  if (fs_.sync(fd_.get()) != 0 && !unsupported(errno)) return fail("fsync", errno);
  int renamed = fs_.rename(directory_, temporary_.c_str(), name_.c_str());
  // An empty directory may lie where the entry belongs. A directory with anything in it is left
  // alone.
  if (renamed != 0 && errno == EISDIR && ::unlinkat(directory_, name_.c_str(), AT_REMOVEDIR) == 0)
    renamed = fs_.rename(directory_, temporary_.c_str(), name_.c_str());
  if (renamed != 0) return fail("rename", errno);
  temporary_.clear();
  if (fs_.sync(directory_) != 0 && !unsupported(errno)) return fail("fsync of directory", errno);
  return true;
}

/// The pid is for people; the random part keeps apart processes of different hosts and namespaces.
std::string AtomicFile::temporary_name() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random)
    random = reinterpret_cast<std::uintptr_t>(&random);  // O_EXCL still keeps names apart
  return detail::format("{}{}-{:016x}{}", kPrefix, ::getpid(), random, kSuffix);
}

bool AtomicFile::is_temporary(std::string_view name) {
  return name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) &&
         name.ends_with(kSuffix);
}

}  // namespace kiln::cache
