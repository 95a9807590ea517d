// What two processes of Kiln say to each other: frames over a stream, and fields within a frame.
//
//   frame    ::= magic version kind id length checksum payload
//   magic    ::= "KlnP"                 // as a u32
//   version  ::= u32                    // of this grammar
//   kind     ::= u32                    // FrameKind
//   id       ::= u64                    // an answer has its request's
//   length   ::= u64                    // of the payload, at most kMostPayload
//   checksum ::= u64                    // FNV-1a of the payload
//
// Integers are little-endian. Both ends are of one build of Kiln, so an unknown version is damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::runtime {

/// Received bytes that are not a frame, or a payload without the expected field.
class BrokenFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class FrameKind : std::uint32_t {
  setup = 1,    ///< the first to a process: what it is to do
  hello = 2,    ///< its answer
  request = 3,  ///< work
  answer = 4    ///< its result
};

struct Frame {
  FrameKind kind = FrameKind::request;
  std::uint64_t id = 0;
  std::vector<std::byte> payload;
};

inline constexpr std::uint64_t kMostPayload = std::uint64_t{256} << 20;

/// Appends a frame to `out`. @throws BrokenFrame for a payload that is too long.
void put_frame(std::vector<std::byte>& out, FrameKind kind, std::uint64_t id,
               std::span<const std::byte> payload);

/// Assembles frames from bytes that arrive in pieces.
class FrameReader {
 public:
  void add(std::span<const std::byte> bytes) {
    arrived_.insert(arrived_.end(), bytes.begin(), bytes.end());
  }
  /// The next frame, if all of it has arrived. @throws BrokenFrame when the bytes are no frame;
  /// then the stream cannot be used any more.
  std::optional<Frame> next();

 private:
  std::vector<std::byte> arrived_;
};

/// Fields of a payload, one behind the other.
class FieldWriter {
 public:
  FieldWriter& integer(std::uint64_t value);
  FieldWriter& bytes(std::span<const std::byte> bytes);
  FieldWriter& text(std::string_view text) {
    return bytes(std::as_bytes(std::span(text.data(), text.size())));
  }
  FieldWriter& texts(std::span<const std::string> texts);
  std::vector<std::byte> finish() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

/// Reads the fields in the order in which they were written. @throws BrokenFrame if a field is
/// missing. The spans it returns are parts of the payload.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> payload) : rest_(payload) {}

  std::uint64_t integer();
  std::span<const std::byte> bytes();
  std::string text();
  std::vector<std::string> texts();
  /// @throws BrokenFrame if anything is left.
  void finish() const;

 private:
  std::span<const std::byte> rest_;
};

}  // namespace kiln::runtime
