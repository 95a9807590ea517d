#include "runtime/recorded/gzip_file.hpp"

#include <cerrno>
#include <cstring>

#include <zlib.h>

#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

constexpr unsigned kBuffer = 1 << 16;
/// Raw repeats shrink 5 to 20 times; beyond this, and with that much read, it is an attack or junk.
constexpr std::uint64_t kMaxRatio = 250, kRatioFrom = std::uint64_t{64} << 20;
/// One number, name or gap between them is never this long.
constexpr std::uint64_t kMaxToken = std::uint64_t{16} << 20;

}  // namespace

GzipFile::GzipFile(std::filesystem::path file) : file_(std::move(file)), buffer_(kBuffer) {
  std::error_code error;
  const auto status = std::filesystem::status(file_, error);
  if (!std::filesystem::exists(status)) fail("there is no such file");
  if (!std::filesystem::is_regular_file(status)) fail("not a regular file");
  errno = 0;
  const auto gz = gzopen(file_.c_str(), "rb");
  if (!gz) fail(std::string("cannot be opened: ") + std::strerror(errno));
  gzbuffer(gz, kBuffer);
  gz_ = gz;
}

GzipFile::~GzipFile() {
  if (gz_) gzclose_r(static_cast<gzFile>(gz_));
}

void GzipFile::fail(const std::string& what) const {
  throw UserError(file_.string() + ": " + what);
}

GzipFile::int_type GzipFile::underflow() {
  const auto gz = static_cast<gzFile>(gz_);
  const int got = gzread(gz, buffer_.data(), kBuffer);
  int code = Z_OK;
  const char* text = gzerror(gz, &code);
  if (code == Z_BUF_ERROR) fail("the compressed file ends early (truncated)");
  if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
    fail(code == Z_ERRNO ? std::string("cannot be read: ") + std::strerror(errno)
                         : std::string("the compressed data is damaged: ") + text);
  if (got == 0) return traits_type::eof();
  expanded_ += static_cast<std::uint64_t>(got);
  const auto packed = static_cast<std::uint64_t>(std::max<z_off_t>(gzoffset(gz), 1));
  if (expanded_ > kRatioFrom && expanded_ / packed > kMaxRatio)
    fail("expands more than " + std::to_string(kMaxRatio) + " times: not a results file");
  if (expanded_ - rested_at_ > kMaxToken) fail("a single text or gap of more than 16 MB");
  setg(buffer_.data(), buffer_.data(), buffer_.data() + got);
  return traits_type::to_int_type(*gptr());
}

}  // namespace kiln::runtime
