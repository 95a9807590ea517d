// What the store's tests share: a directory of their own, keys, a log, and a file system that fails
// on demand.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/file_system.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/key.hpp"
#include "kiln/store.hpp"
#include "temporary_directory.hpp"

namespace kiln::test {

namespace fs = std::filesystem;
using Buffer = std::vector<std::byte>;

inline Key make_key(const std::string& name, const char* kind = "binary") {
  const std::vector<std::string> options{"-O3", "-std=c++20"};
  return detail::KeyBuilder(kind, 1)
      .add("source", sha256(name))
      .add("entry", name)
      .add("options", options)
      .add("threads", std::int64_t{256})
      .finish();
}

inline Buffer make_bytes(std::size_t size, unsigned seed = 1) {
  Buffer bytes(size);
  for (std::byte& b : bytes)
    b = static_cast<std::byte>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

inline Buffer read_bytes(const fs::path& path) {
  const std::string text = read_text(path);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline mode_t mode_of(const fs::path& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

/// Replaces a file's contents, keeping its mode.
inline void write_bytes(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline fs::path binary_path(const fs::path& root, const Key& key) {
  return root / "v1" / "binaries" / key.hex().substr(0, 2) / (key.hex() + ".kiln");
}
inline fs::path record_path(const fs::path& root, const Key& key) {
  return root / "v1" / "records" / key.hex().substr(0, 2) / (key.hex() + ".json");
}

/// Everything below `root`, for "nothing was created" and "no temporary file is left".
inline std::vector<fs::path> files_below(const fs::path& root) {
  std::vector<fs::path> files;
  if (!fs::exists(root)) return files;
  for (const auto& item : fs::recursive_directory_iterator(root))
    if (!item.is_directory()) files.push_back(item.path());
  return files;
}

class Log {
 public:
  LogSink sink() {
    return [this](LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex_);
      messages_.emplace_back(level, text);
    };
  }
  std::vector<std::string> at(LogLevel level) const {
    std::lock_guard lock(mutex_);
    std::vector<std::string> texts;
    for (const auto& [l, text] : messages_)
      if (l == level) texts.push_back(text);
    return texts;
  }
  std::vector<std::string> warnings() const { return at(LogLevel::warning); }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> messages_;
};

inline StoreOptions options_for(const fs::path& directory, Log* log = nullptr) {
  StoreOptions options;
  options.directory = directory;
  if (log != nullptr) options.log = log->sink();
  return options;
}

enum class Call { make_directory, create, read, write, sync, rename, remove, touch };

/// Asks `fault` before each call: an errno to fail with, or 0 to go on.
class FaultyFileSystem : public cache::FileSystem {
 public:
  std::function<int(Call, int nth)> fault = [](Call, int) { return 0; };
  bool short_writes = false;  ///< write half of what is asked, to meet the loop around it
  std::atomic<int> calls{0};  ///< that change the disk

  int make_directory(int parent, const char* name) override {
    return fails(Call::make_directory) ? -1 : FileSystem::make_directory(parent, name);
  }
  int create(int directory, const char* name) override {
    return fails(Call::create) ? -1 : FileSystem::create(directory, name);
  }
  ssize_t read(int fd, void* data, std::size_t size) override {
    if (const int code = fault(Call::read, 0); code != 0) return errno = code, -1;
    return FileSystem::read(fd, data, size);
  }
  ssize_t write(int fd, const void* data, std::size_t size) override {
    if (fails(Call::write)) return -1;
    return FileSystem::write(fd, data, short_writes ? (size + 1) / 2 : size);
  }
  int sync(int) override { return fails(Call::sync) ? -1 : 0; }  // tests lose no power
  int rename(int directory, const char* from, const char* to) override {
    return fails(Call::rename) ? -1 : FileSystem::rename(directory, from, to);
  }
  int rename_new(int directory, const char* from, const char* to) override {
    return fails(Call::rename) ? -1 : FileSystem::rename_new(directory, from, to);
  }
  int remove(int directory, const char* name) override {
    if (const int code = fault(Call::remove, -1); code != 0) return errno = code, -1;
    return FileSystem::remove(directory, name);
  }
  int touch(int fd) override {
    if (const int code = fault(Call::touch, -1); code != 0) return errno = code, -1;
    return FileSystem::touch(fd);
  }

 private:
  bool fails(Call call) {
    const int code = fault(call, calls++);
    if (code != 0) errno = code;
    return code != 0;
  }
};

/// A forked process that runs `body`; killed, if need be, when this goes.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ > 0) return;
    int code = 125;
    try {
      code = body();
    } catch (...) {
    }
    ::_exit(code);
  }
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::kill(pid_, SIGCONT);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const {
    if (::kill(pid_, number) != 0) throw std::runtime_error("kill");
  }
  /// Its exit status, or minus the signal that ended it.
  int wait() {
    int status = 0;
    const pid_t pid = std::exchange(pid_, -1);
    if (::waitpid(pid, &status, 0) != pid) return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

/// Runs `body` in a forked child; its exit status, or minus the signal that ended it.
inline int in_child(const std::function<int()>& body) { return Child(body).wait(); }

/// Nothing is kept in memory.
inline StoreOptions evicting_options(const fs::path& directory, std::uint64_t max_bytes = 0) {
  StoreOptions options;
  options.directory = directory;
  options.max_bytes = max_bytes;
  options.memory_bytes = 0;
  return options;
}

}  // namespace kiln::test
