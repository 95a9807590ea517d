#include "runtime/processes/frame.hpp"

#include <algorithm>

namespace kiln::runtime {

namespace {

constexpr std::uint64_t kMagic = 0x506e6c4b;  // "KlnP"
constexpr std::uint64_t kVersion = 2;
constexpr std::size_t kHeader = 3 * 4 + 3 * 8;

void put_integer(std::vector<std::byte>& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

std::uint64_t get_integer(const std::byte* at, int bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<std::uint64_t>(at[i]) << (8 * i);
  return value;
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3;
  return hash;
}

}  // namespace

void put_frame(std::vector<std::byte>& out, FrameKind kind, std::uint64_t id,
               std::span<const std::byte> payload) {
  if (payload.size() > kMostPayload)
    throw BrokenFrame("a message of " + std::to_string(payload.size()) + " bytes is too long");
  out.reserve(out.size() + kHeader + payload.size());
  put_integer(out, kMagic, 4);
  put_integer(out, kVersion, 4);
  put_integer(out, static_cast<std::uint32_t>(kind), 4);
  put_integer(out, id, 8);
  put_integer(out, payload.size(), 8);
  put_integer(out, checksum(payload), 8);
  out.insert(out.end(), payload.begin(), payload.end());
}

std::optional<Frame> FrameReader::next() {
  const std::byte* const at = arrived_.data();
  // Looked at as soon as it is there: text that a library prints must not be waited for.
  const std::size_t begun = std::min<std::size_t>(arrived_.size(), 4);
  for (std::size_t i = 0; i < begun; ++i)
    if (at[i] != static_cast<std::byte>(kMagic >> (8 * i)))
      throw BrokenFrame("something that is not a message of Kiln");
  if (arrived_.size() < kHeader) return std::nullopt;
  if (get_integer(at + 4, 4) != kVersion) throw BrokenFrame("a message of another version of Kiln");
  const std::uint64_t kind = get_integer(at + 8, 4);
  const std::uint64_t length = get_integer(at + 20, 8);
  if (kind < static_cast<std::uint32_t>(FrameKind::setup) ||
      kind > static_cast<std::uint32_t>(FrameKind::answer))
    throw BrokenFrame("a message of unknown kind " + std::to_string(kind));
  if (length > kMostPayload)
    throw BrokenFrame("a message that claims " + std::to_string(length) + " bytes");
  if (arrived_.size() - kHeader < length) return std::nullopt;
  const auto end = arrived_.begin() + static_cast<std::ptrdiff_t>(kHeader + length);
  Frame frame{
      static_cast<FrameKind>(kind), get_integer(at + 12, 8), {arrived_.begin() + kHeader, end}};
  if (checksum(frame.payload) != get_integer(at + 28, 8))
    throw BrokenFrame("a message whose bytes are damaged");
  arrived_.erase(arrived_.begin(), end);
  return frame;
}

FieldWriter& FieldWriter::integer(std::uint64_t value) {
  put_integer(out_, value, 8);
  return *this;
}

FieldWriter& FieldWriter::bytes(std::span<const std::byte> bytes) {
  integer(bytes.size());
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  return *this;
}

FieldWriter& FieldWriter::texts(std::span<const std::string> texts) {
  integer(texts.size());
  for (const std::string& each : texts) text(each);
  return *this;
}

std::uint64_t FieldReader::integer() {
  if (rest_.size() < 8) throw BrokenFrame("a message that ends within a number");
  const std::uint64_t value = get_integer(rest_.data(), 8);
  rest_ = rest_.subspan(8);
  return value;
}

std::span<const std::byte> FieldReader::bytes() {
  const std::uint64_t size = integer();
  if (size > rest_.size()) throw BrokenFrame("a message that ends within a field");
  const auto field = rest_.first(static_cast<std::size_t>(size));
  rest_ = rest_.subspan(field.size());
  return field;
}

std::string FieldReader::text() {
  const auto field = bytes();
  return {reinterpret_cast<const char*>(field.data()), field.size()};
}

std::vector<std::string> FieldReader::texts() {
  const std::uint64_t count = integer();
  if (count > rest_.size() / 8) throw BrokenFrame("a message that ends within a list");
  std::vector<std::string> all;
  for (std::uint64_t i = 0; i < count; ++i) all.push_back(text());
  return all;
}

void FieldReader::finish() const {
  if (!rest_.empty()) throw BrokenFrame("a message with more than it should have");
}

}  // namespace kiln::runtime
