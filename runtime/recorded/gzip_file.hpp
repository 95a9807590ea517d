// A file that may be compressed, as a stream that holds 64 KB of it.
#pragma once

#include <filesystem>
#include <memory>
#include <streambuf>
#include <vector>

namespace kiln::runtime {

/// Plain or gzip, told by its content. Reading throws UserError naming the file: not a regular
/// file, not readable, damaged, ending early, or expanding beyond all reason.
class GzipFile final : public std::streambuf {
 public:
  explicit GzipFile(std::filesystem::path file);
  ~GzipFile() override;

  /// Bytes handed out since the last call of `rest()`: what the reader is still holding.
  void rest() noexcept { rested_at_ = expanded_; }

 protected:
  int_type underflow() override;

 private:
  [[noreturn]] void fail(const std::string& what) const;

  std::filesystem::path file_;
  void* gz_ = nullptr;
  std::vector<char> buffer_;
  std::uint64_t expanded_ = 0, rested_at_ = 0;
};

}  // namespace kiln::runtime
