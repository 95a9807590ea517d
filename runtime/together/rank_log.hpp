// What one rank saw and decided, as lines in a file of its own: for when ranks disagree.
//
//   RankLog log(folder, "all_gather", comm.rank(), comm.size());
//   log.line("waits for rank 3");
//   log.result(result);   // a line per candidate, then the winner, the digest and the versions
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "kiln/tune.hpp"

namespace kiln::runtime {

/// Appends to `<folder>/<name>.rank-<rank>.log`. A log that cannot be written says nothing and
/// fails nothing. Lines begin with the time of day and go to the file at once, so that those of a
/// process that dies are there. Thread-safe.
class RankLog {
 public:
  /// `folder` is created, with its parents; empty: $KILN_RANK_LOGS; that, too: no log. What is no
  /// letter, digit, '.', '-' or '_' of `name` becomes '_'.
  RankLog(const std::filesystem::path& folder, std::string_view name, int rank, int size);

  /// Whether anything is written.
  explicit operator bool() const noexcept { return file_ != nullptr; }
  const std::filesystem::path& path() const noexcept { return path_; }

  /// One event. Line breaks in it are written as `\n`.
  void line(std::string_view text) noexcept;
  /// What became of each candidate, which one won and why, and the versions behind it.
  void result(const TuneResult& result) noexcept;

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::mutex mutex_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace kiln::runtime
