#include "cache/disk_level.hpp"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/atomic_file.hpp"
#include "cache/remove_if.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::cache {
namespace {

constexpr const char* kVersionDirectory = "v1";
constexpr std::array<const char*, 3> kInnerNames{"binaries", "records", "locks"};

const char* extension(EntryKind kind) { return kind == EntryKind::binary ? ".kiln" : ".json"; }
std::size_t index(EntryKind kind) { return static_cast<std::size_t>(kind); }
const char* directory_name(EntryKind kind) { return kInnerNames[index(kind)]; }

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

/// False when another process has removed the directory, even if a new one has taken its place.
bool still_there(int directory) {
  struct stat status{};
  return ::fstat(directory, &status) == 0 && status.st_nlink > 0;
}

ReadFile damaged(std::string what) {
  return {ReadFile::Status::damaged, {}, {}, {std::move(what), "the next write repairs it", 0}};
}

ReadFile forbidden(std::string what) {
  ReadFile file = damaged(std::move(what));
  file.forbidden = true;
  return file;
}

ReadFile failed(Failure failure) { return {ReadFile::Status::failed, {}, {}, std::move(failure)}; }

/// Whether a stamp is too far off to say when the file was last used. One from the future is: some
/// clock was set back.
bool is_outdated(const Stamp& stamp) {
  timespec now{};
  if (::clock_gettime(CLOCK_REALTIME, &now) != 0) return false;
  return std::abs(now.tv_sec - stamp.modified_ns / kNanoseconds) > DiskLevel::kUseSeconds;
}

}  // namespace

Stamp Stamp::of(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

DiskLevel::DiskLevel(std::filesystem::path directory, std::shared_ptr<FileSystem> fs, Owner owner)
    : directory_(std::move(directory)), fs_(std::move(fs)), owner_(owner) {}

std::filesystem::path DiskLevel::path(EntryKind kind, const std::string& hex) const {
  return directory_ / kVersionDirectory / directory_name(kind) / shard_of(hex) /
         (hex + extension(kind));
}

DiskLevel::SharedFd DiskLevel::inner_directory(std::size_t index, bool create,
                                               std::optional<Failure>& failure) {
  if (directory_.empty()) return nullptr;
  {
    std::shared_lock lock(mutex_);
    const SharedFd& open = inner_[index];
    if (open && still_there(open->get())) return open;
  }
  UniqueFd parent;
  std::filesystem::path path = directory_;
  for (const char* name : {"", kVersionDirectory, kInnerNames[index]}) {
    if (*name != '\0') path /= name;
    const int from = parent ? parent.get() : AT_FDCWD;
    const std::string relative = parent ? std::string(name) : path.string();
    GuardedDirectory next = create ? create_guarded(*fs_, from, relative, path.string(), owner_)
                                   : open_guarded(from, relative, path.string(), owner_);
    failure = std::move(next.failure);
    if (!next.fd) return nullptr;
    parent = std::move(next.fd);
  }
  std::unique_lock lock(mutex_);
  return inner_[index] = std::make_shared<const UniqueFd>(std::move(parent));
}

DiskLevel::SharedFd DiskLevel::locks(bool create) {
  std::optional<Failure> failure;
  return inner_directory(kLocks, create, failure);
}

std::optional<std::int64_t> DiskLevel::now_ns(bool create) {
  const SharedFd directory = owner_ == Owner::anyone ? nullptr : locks(create);
  if (!directory) return std::nullopt;
  const std::string name = AtomicFile::temporary_name();
  const UniqueFd fd(fs_->create(directory->get(), name.c_str()));
  if (!fd) return std::nullopt;
  struct stat status{};
  const bool known = ::fstat(fd.get(), &status) == 0;
  fs_->remove(directory->get(), name.c_str());
  return known ? std::optional(Stamp::of(status).modified_ns) : std::nullopt;
}

std::optional<Failure> DiskLevel::try_to_write() {
  std::optional<Failure> failure;
  const SharedFd directory = inner_directory(kLocks, true, failure);
  if (!directory) return failure;
  constexpr std::size_t kBlock = 4096;  // an empty file needs no room
  AtomicFile file(*fs_, directory->get(), "probe");
  if (file.write(std::vector<std::byte>(kBlock))) return std::nullopt;
  return file.failure();
}

/// Sets `path` to the shard's directory, even if that does not exist.
GuardedDirectory DiskLevel::shard(EntryKind kind, const std::string& name, std::string& path) {
  // Text and not a path: taking paths apart would cost as much as the system calls of a hit.
  path = directory_.native() + '/' + kVersionDirectory + '/' + directory_name(kind);
  std::optional<Failure> failure;
  const SharedFd parent = inner_directory(index(kind), false, failure);
  if (!parent) return {{}, std::move(failure)};
  path += '/' + name;
  return open_guarded(parent->get(), name, path, owner_);
}

ReadFile DiskLevel::read_at(int directory, const std::string& name, const std::string& path,
                            const Part& part) {
  // O_NONBLOCK: a FIFO planted under an entry's name must not make anyone wait.
  UniqueFd fd(
      ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) {
    const int code = errno;
    if (code == ENOENT) return {};
    if (code == ELOOP) return damaged(path + " is a symbolic link");
    if (code == ENXIO || code == ENODEV) return damaged(path + " is a socket or a device");
    if (code == EACCES || code == EPERM) return forbidden(path + " is not readable");
    return failed(call_failure("open", path, code));
  }
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return failed(call_failure("fstat", path, errno));
  if (!S_ISREG(status.st_mode)) return damaged(path + " is not a regular file");
  if (!is_trusted(status, owner_))
    return forbidden(path + " belongs to another user or is writable by others");
  if (static_cast<std::uint64_t>(status.st_size) > kMaxFile)
    return damaged(path + " is larger than any entry");

  const auto size = std::min(static_cast<std::size_t>(status.st_size), part.limit);
  std::shared_ptr<std::byte[]> buffer;
  try {
    buffer = std::make_shared_for_overwrite<std::byte[]>(size);
  } catch (const std::bad_alloc&) {
    return failed(call_failure("read", path, ENOMEM));
  }
  std::size_t done = 0;
  const auto read_to = [&](std::size_t end) -> std::optional<ReadFile> {
    while (done < end) {
      const ssize_t got = fs_->read(fd.get(), buffer.get() + done, end - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed(call_failure("read", path, errno));
      if (got == 0) return damaged(path + " ends early");
      done += static_cast<std::size_t>(got);
    }
    return std::nullopt;
  };
  if (part.wanted) {
    const std::size_t front = std::min(size, part.front);
    if (auto failure = read_to(front)) return *std::move(failure);
    if (!(*part.wanted)(std::span(buffer.get(), front))) return {};
  }
  if (auto failure = read_to(size)) return *std::move(failure);
  const Stamp stamp = Stamp::of(status);
  // A file whose time stamp cannot be set (on a read-only file system) cannot be evicted either.
  if (part.use && is_outdated(stamp)) fs_->touch(fd.get());
  const std::span<const std::byte> view(buffer.get(), size);
  return {ReadFile::Status::read, detail::Bytes(std::move(buffer), view), stamp, {}};
}

ReadFile DiskLevel::read_file(EntryKind kind, const std::string& hex, const Part& part) {
  std::string path;
  GuardedDirectory directory = shard(kind, shard_of(hex), path);
  if (directory.failure) return failed(*std::move(directory.failure));
  if (!directory.fd) return {};
  const std::string name = hex + extension(kind);
  return read_at(directory.fd.get(), name, path + '/' + name, part);
}

ReadFile DiskLevel::read(EntryKind kind, const std::string& hex, std::size_t limit) {
  return read_file(kind, hex, {.limit = limit});
}

ReadFile DiskLevel::read(const Found& found, std::size_t limit) {
  return read_at(found.directory, found.name, found.path.native(), {.limit = limit});
}

ReadFile DiskLevel::use(EntryKind kind, const std::string& hex) {
  return read_file(kind, hex, {.use = true});
}

ReadFile DiskLevel::use_if(EntryKind kind, const std::string& hex, std::size_t front,
                           const Wanted& wanted) {
  return read_file(kind, hex, {.use = true, .wanted = &wanted, .front = front});
}

std::optional<Stamp> DiskLevel::stamp(EntryKind kind, const std::string& hex) {
  std::string path;
  const GuardedDirectory directory = shard(kind, shard_of(hex), path);
  struct stat status{};
  if (!directory.fd || ::fstatat(directory.fd.get(), (hex + extension(kind)).c_str(), &status,
                                 AT_SYMLINK_NOFOLLOW) != 0)
    return std::nullopt;
  return S_ISREG(status.st_mode) ? std::optional(Stamp::of(status)) : std::nullopt;
}

void DiskLevel::sweep(int directory) {
  struct stat status{};
  // The directory's own time stamp is of this moment, and by the file server's clock.
  if (::fstat(directory, &status) != 0) return;
  const std::int64_t now = status.st_mtime;
  const auto names = names_in(directory);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!AtomicFile::is_temporary(name)) continue;
    if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(status.st_mode) && now - status.st_mtime > kAbandonedSeconds)
      fs_->remove(directory, name.c_str());
  }
}

std::optional<Failure> DiskLevel::publish(EntryKind kind, const std::string& hex,
                                          std::span<const std::byte> bytes) {
  auto failure = try_to_publish(kind, hex, bytes);
  // Somebody cleared the cache, or removed its directory, under our hands.
  if (failure && failure->code == ENOENT) failure = try_to_publish(kind, hex, bytes);
  return failure;
}

std::optional<Failure> DiskLevel::try_to_publish(EntryKind kind, const std::string& hex,
                                                 std::span<const std::byte> bytes) {
  std::optional<Failure> failure;
  const SharedFd parent = inner_directory(index(kind), true, failure);
  if (!parent) return failure;
  const std::filesystem::path path = this->path(kind, hex);
  const std::string shard_name = shard_of(hex);
  const GuardedDirectory shard =
      create_guarded(*fs_, parent->get(), shard_name, path.parent_path().string(), owner_);
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
  return open_guarded(AT_FDCWD, directory_.string(), directory_.string(), owner_).failure;
}

void DiskLevel::walk(const std::function<void(const Found&)>& visit) {
  for (const EntryKind kind : {EntryKind::binary, EntryKind::record}) {
    std::optional<Failure> failure;
    const SharedFd parent = inner_directory(index(kind), false, failure);
    const auto path = directory_ / kVersionDirectory / directory_name(kind);
    const std::string none;
    if (failure)
      visit({Found::What::refused_directory, kind, {}, path, {}, false, failure->what, -1, none});
    for (unsigned number = 0; parent && number < kShards; ++number) walk_shard(kind, number, visit);
  }
}

std::optional<Stamp> DiskLevel::shard_stamp(EntryKind kind, unsigned number) {
  std::optional<Failure> failure;
  const SharedFd parent = inner_directory(index(kind), false, failure);
  struct stat status{};
  if (!parent || ::fstatat(parent->get(), detail::format("{:02x}", number).c_str(), &status,
                           AT_SYMLINK_NOFOLLOW) != 0)
    return std::nullopt;
  return Stamp::of(status);
}

std::optional<Stamp> DiskLevel::walk_shard(EntryKind kind, unsigned number,
                                           const std::function<void(const Found&)>& visit) {
  const std::string shard_name = detail::format("{:02x}", number), none;
  std::string path;
  const GuardedDirectory directory = shard(kind, shard_name, path);
  const auto refuse = [&](const std::string& why) {
    visit({Found::What::refused_directory, kind, {}, path, {}, false, why, -1, none});
    return std::nullopt;
  };
  if (directory.failure) return refuse(directory.failure->what);
  if (!directory.fd) return std::nullopt;
  struct stat status{};
  if (::fstat(directory.fd.get(), &status) != 0)
    return refuse(call_failure("fstat", path, errno).what);
  const Stamp stamp = Stamp::of(status);
  const auto names = names_in(directory.fd.get());
  if (!names) return refuse(call_failure("readdir", path, errno).what);
  for (const std::string& name : *names) {
    const std::string hex = entry_hex(kind, shard_name, name);
    if (hex.empty() && !AtomicFile::is_temporary(name)) continue;
    if (::fstatat(directory.fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    visit({hex.empty() ? Found::What::temporary : Found::What::entry,
           kind,
           hex,
           path + '/' + name,
           Stamp::of(status),
           S_ISREG(status.st_mode),
           {},
           directory.fd.get(),
           name});
  }
  return stamp;
}

bool DiskLevel::remove(int directory, const std::string& name, const Stamp& judged) {
  return remove_if(*fs_, directory, name, [&](const std::string& file) {
           struct stat status{};
           return ::fstatat(directory, file.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                  Stamp::of(status) == judged;
         }) == Removal::removed;
}

bool DiskLevel::remove(EntryKind kind, const std::string& hex, const Stamp& judged) {
  std::string path;
  const GuardedDirectory directory = shard(kind, shard_of(hex), path);
  return directory.fd && remove(directory.fd.get(), hex + extension(kind), judged);
}

}  // namespace kiln::cache
