// A file that appears whole or not at all.
//
//   AtomicFile file(fs, directory_fd, "ab.kiln");
//   if (!file.write(bytes) || !file.commit()) return file.failure();
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "cache/file_system.hpp"
#include "cache/unique_fd.hpp"

namespace kiln::cache {

/// Writes to a temporary file beside `name`; commit() publishes it under that name, replacing
/// whatever file, link or FIFO is there. Without a successful commit the destructor removes it.
class AtomicFile {
 public:
  /// `directory` must stay open for the life of this object.
  AtomicFile(FileSystem& fs, int directory, std::string name);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends. False once anything failed.
  [[nodiscard]] bool write(std::span<const std::byte> bytes);
  /// fsync, rename, fsync of the directory. False: not published, or published but perhaps not
  /// durable.
  [[nodiscard]] bool commit();

  /// The first failed call; meaningful after a false. Its text names the file, not the directory.
  const Failure& failure() const { return failure_; }

  /// Whether a file name is one that AtomicFile gives to its temporary files.
  static bool is_temporary(std::string_view name);
  /// Such a name, unlike any other.
  static std::string temporary_name();

 private:
  bool fail(const char* call, int code);

  FileSystem& fs_;
  int directory_;
  std::string name_;
  std::string temporary_;
  UniqueFd fd_;
  Failure failure_;
};

}  // namespace kiln::cache
