#include "cache/disk_level.hpp"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/atomic_file.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::cache {
namespace {

constexpr const char* kVersionDirectory = "v1";
constexpr time_t kAbandonedSeconds = 3600;

const char* directory_name(EntryKind kind) {
  return kind == EntryKind::binary ? "binaries" : "records";
}
const char* extension(EntryKind kind) { return kind == EntryKind::binary ? ".kiln" : ".json"; }
std::size_t index(EntryKind kind) { return static_cast<std::size_t>(kind); }

std::string shard_of(const std::string& hex) { return hex.substr(0, 2); }

/// The key's hex if `name` is an entry's name in this shard, else empty.
std::string entry_hex(EntryKind kind, const std::string& shard, const std::string& name) {
  constexpr std::size_t kHexSize = 64;
  const std::string hex = name.substr(0, kHexSize);
  const bool is_entry = hex.size() == kHexSize && name.substr(kHexSize) == extension(kind) &&
                        hex.starts_with(shard) &&
                        hex.find_first_not_of("0123456789abcdef") == hex.npos;
  return is_entry ? hex : std::string();
}

std::vector<std::string> names_in(int directory) {
  std::vector<std::string> names;
  UniqueFd fd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return names;
  DIR* stream = ::fdopendir(fd.get());
  if (stream == nullptr) return names;
  [[maybe_unused]] const int owned = fd.release();  // closedir closes it
  while (const dirent* item = ::readdir(stream)) names.emplace_back(item->d_name);
  ::closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

/// False when the directory was removed behind our back, and perhaps made anew.
bool still_there(int directory) {
  struct stat status{};
  return ::fstat(directory, &status) == 0 && status.st_nlink > 0;
}

ReadFile damaged(std::string what) {
  return {ReadFile::Status::damaged, {}, {std::move(what), "the next write repairs it", 0}};
}

ReadFile failed(Failure failure) { return {ReadFile::Status::failed, {}, std::move(failure)}; }

}  // namespace

DiskLevel::DiskLevel(std::filesystem::path directory, std::shared_ptr<FileSystem> fs)
    : directory_(std::move(directory)), fs_(std::move(fs)) {}

std::filesystem::path DiskLevel::path(EntryKind kind, const std::string& hex) const {
  return directory_ / kVersionDirectory / directory_name(kind) / shard_of(hex) /
         (hex + extension(kind));
}

DiskLevel::SharedFd DiskLevel::kind_directory(EntryKind kind, bool create,
                                              std::optional<Failure>& failure) {
  if (directory_.empty()) return nullptr;
  {
    std::shared_lock lock(mutex_);
    const SharedFd& open = kinds_[index(kind)];
    if (open && still_there(open->get())) return open;
  }
  UniqueFd parent;
  std::filesystem::path path = directory_;
  for (const char* name : {"", kVersionDirectory, directory_name(kind)}) {
    if (*name != '\0') path /= name;
    const int from = parent ? parent.get() : AT_FDCWD;
    const std::string relative = parent ? std::string(name) : path.string();
    GuardedDirectory next = create ? create_guarded(*fs_, from, relative, path.string())
                                   : open_guarded(from, relative, path.string());
    failure = std::move(next.failure);
    if (!next.fd) return nullptr;
    parent = std::move(next.fd);
  }
  std::unique_lock lock(mutex_);
  return kinds_[index(kind)] = std::make_shared<const UniqueFd>(std::move(parent));
}

ReadFile DiskLevel::read_at(int directory, const std::string& name, const std::string& path) {
  // O_NONBLOCK: a FIFO planted under an entry's name must not make anyone wait.
  UniqueFd fd(
      ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    const int code = errno;
    if (code == ENOENT) return {};
    if (code == ELOOP) return damaged(path + " is a symbolic link");
    if (code == ENXIO || code == ENODEV) return damaged(path + " is a socket or a device");
    if (code == EACCES || code == EPERM) return damaged(path + " may not be read");
    return failed(call_failure("open", path, code));
  }
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return failed(call_failure("fstat", path, errno));
  if (!S_ISREG(status.st_mode)) return damaged(path + " is not a regular file");
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return damaged(path + " belongs to others or may be written by them");
  if (static_cast<std::uint64_t>(status.st_size) > kMaxFile)
    return damaged(path + " is larger than any entry");

  ReadFile file{ReadFile::Status::read, {}, {}};
  try {
    file.bytes.resize(static_cast<std::size_t>(status.st_size));
  } catch (const std::bad_alloc&) {
    return failed(call_failure("read", path, ENOMEM));
  }
  for (std::size_t done = 0; done < file.bytes.size();) {
    const ssize_t got = fs_->read(fd.get(), file.bytes.data() + done, file.bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(call_failure("read", path, errno));
    if (got == 0) return damaged(path + " ends early");
    done += static_cast<std::size_t>(got);
  }
  return file;
}

ReadFile DiskLevel::read(EntryKind kind, const std::string& hex) {
  std::optional<Failure> failure;
  const SharedFd parent = kind_directory(kind, false, failure);
  if (failure) return failed(*std::move(failure));
  if (!parent) return {};
  const std::filesystem::path path = this->path(kind, hex);
  GuardedDirectory shard = open_guarded(parent->get(), shard_of(hex), path.parent_path().string());
  if (shard.failure) return failed(*std::move(shard.failure));
  if (!shard.fd) return {};
  return read_at(shard.fd.get(), hex + extension(kind), path.string());
}

void DiskLevel::sweep(int directory) {
  struct stat status{};
  // The directory's own time stamp is of this moment, and by the file server's clock.
  if (::fstat(directory, &status) != 0) return;
  const time_t now = status.st_mtime;
  for (const std::string& name : names_in(directory)) {
    if (!AtomicFile::is_temporary(name)) continue;
    if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(status.st_mode) && now - status.st_mtime > kAbandonedSeconds)
      ::unlinkat(directory, name.c_str(), 0);
  }
}

std::optional<Failure> DiskLevel::publish(EntryKind kind, const std::string& hex,
                                          std::span<const std::byte> bytes) {
  std::optional<Failure> failure;
  const SharedFd parent = kind_directory(kind, true, failure);
  if (!parent) return failure;
  const std::filesystem::path path = this->path(kind, hex);
  const std::string shard_name = shard_of(hex);
  const GuardedDirectory shard =
      create_guarded(*fs_, parent->get(), shard_name, path.parent_path().string());
  if (!shard.fd) return shard.failure;
  AtomicFile file(*fs_, shard.fd.get(), hex + extension(kind));
  if (!file.write(bytes) || !file.commit()) {
    failure = file.failure();
    failure->what = path.parent_path().string() + "/" + failure->what;
    return failure;
  }
  if (!swept_[index(kind)][std::stoul(shard_name, nullptr, 16)].exchange(true))
    sweep(shard.fd.get());
  return std::nullopt;
}

std::optional<Failure> DiskLevel::refusal() const {
  if (directory_.empty()) return std::nullopt;
  return open_guarded(AT_FDCWD, directory_.string(), directory_.string()).failure;
}

void DiskLevel::walk(const std::function<void(const Found&)>& visit) {
  const std::string none;
  for (const EntryKind kind : {EntryKind::binary, EntryKind::record}) {
    const auto refuse = [&](const std::filesystem::path& path, const Failure& failure) {
      visit({Found::What::refused_directory, kind, {}, path, 0, false, failure.what, -1, none});
    };
    const auto base = directory_ / kVersionDirectory / directory_name(kind);
    std::optional<Failure> failure;
    const SharedFd parent = kind_directory(kind, false, failure);
    if (failure) refuse(base, *failure);
    if (!parent) continue;
    for (int number = 0; number < 256; ++number) {
      const std::string shard_name = detail::format("{:02x}", number);
      const auto path = base / shard_name;
      const GuardedDirectory shard = open_guarded(parent->get(), shard_name, path.string());
      if (shard.failure) refuse(path, *shard.failure);
      if (!shard.fd) continue;
      for (const std::string& name : names_in(shard.fd.get())) {
        const std::string hex = entry_hex(kind, shard_name, name);
        if (hex.empty() && !AtomicFile::is_temporary(name)) continue;
        struct stat status{};
        if (::fstatat(shard.fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        visit({hex.empty() ? Found::What::temporary : Found::What::entry,
               kind,
               hex,
               path / name,
               static_cast<std::uint64_t>(status.st_size),
               S_ISREG(status.st_mode),
               {},
               shard.fd.get(),
               name});
      }
    }
  }
}

}  // namespace kiln::cache
