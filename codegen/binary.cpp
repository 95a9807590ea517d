#include "codegen/binary.hpp"

#include <cstdint>
#include <cstring>
#include <string_view>

namespace kiln::codegen {
namespace {

// binary   ::= magic version kind arch entry count entry*count log code   // the steps are counted
// magic    ::= "KilnBin\n"
// version  ::= u32                          // of this grammar
// kind     ::= u32                          // 0: cuda, 1: host
// entry    ::= symbol resources
// count    ::= u32
// arch, symbol, log ::= length bytes        // length: u64
// code     ::= length zero* bytes           // the bytes begin at a multiple of 64
// resources ::= i32 x 6                     // in the order of ResourceUsage's fields
//
// Integers are little-endian. Damage inside a field is the store's checksum to find.
constexpr std::string_view kMagic = "KilnBin\n";
constexpr std::uint32_t kVersion = 3;
// The code's alignment within the bytes, so that a driver can take it where a bundle maps it.
constexpr std::size_t kAlignment = 64;

class Writer {
 public:
  void integer(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void raw(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), bytes, bytes + size);
  }
  void field(const void* data, std::size_t size) {
    integer(size, 8);
    raw(data, size);
  }
  void align(std::size_t to) { out_.resize((out_.size() + to - 1) / to * to); }
  void field(std::string_view text) { field(text.data(), text.size()); }
  void entry(std::string_view symbol, const ResourceUsage& r) {
    field(symbol);
    for (int value :
         {r.registers, r.spill_stores, r.spill_loads, r.stack, r.static_shared, r.max_threads})
      integer(static_cast<std::uint32_t>(value), 4);
  }
  void reserve(std::size_t size) { out_.reserve(size); }
  std::vector<std::byte> finish() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

// Every read says whether it succeeded; after a failure the rest fail too.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes), size_(bytes.size()) {}

  std::uint64_t integer(int bytes) {
    const auto raw = take(static_cast<std::size_t>(bytes));
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      value |= static_cast<std::uint64_t>(raw[i]) << (8 * i);
    }
    return value;
  }
  int signed32() { return static_cast<std::int32_t>(static_cast<std::uint32_t>(integer(4))); }
  std::span<const std::byte> field() { return take(integer(8)); }
  std::string text() {
    const auto raw = field();
    return {reinterpret_cast<const char*>(raw.data()), raw.size()};
  }
  bool entry(std::string& symbol, ResourceUsage& u) {
    symbol = text();
    for (int* value : {&u.registers, &u.spill_stores, &u.spill_loads, &u.stack, &u.static_shared,
                       &u.max_threads}) {
      *value = signed32();
      if (*value < 0) return false;
    }
    return ok_;
  }
  std::span<const std::byte> take(std::uint64_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const auto taken = rest_.first(static_cast<std::size_t>(size));
    rest_ = rest_.subspan(static_cast<std::size_t>(size));
    return taken;
  }
  /// False unless what is passed over is zero.
  bool align(std::size_t to) {
    const std::size_t at = size_ - rest_.size();
    for (std::byte b : take((at + to - 1) / to * to - at))
      if (b != std::byte{0}) return false;
    return true;
  }
  bool finished() const { return ok_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  const std::size_t size_;
  bool ok_ = true;
};

}  // namespace

std::vector<std::byte> serialize(const Binary& binary) {
  Writer w;
  w.reserve(binary.code.size() + binary.log.size() + binary.symbol.size() + 192);
  w.raw(kMagic.data(), kMagic.size());
  w.integer(kVersion, 4);
  w.integer(binary.target.kind == Target::Kind::cuda ? 0 : 1, 4);
  w.field(binary.target.arch);
  w.entry(binary.symbol, binary.resources);
  w.integer(binary.steps.size(), 4);
  for (const BinaryEntry& step : binary.steps) w.entry(step.symbol, step.resources);
  w.field(binary.log);
  w.integer(binary.code.size(), 8);
  w.align(kAlignment);
  w.raw(binary.code.data(), binary.code.size());
  return w.finish();
}

std::optional<Binary> parse_binary(const detail::Bytes& bytes) {
  Reader r(bytes);
  const auto magic = r.take(kMagic.size());
  if (magic.size() != kMagic.size() ||
      std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return std::nullopt;
  }
  if (r.integer(4) != kVersion) return std::nullopt;
  const std::uint64_t kind = r.integer(4);
  if (kind > 1) return std::nullopt;

  Binary binary;
  binary.target.kind = kind == 0 ? Target::Kind::cuda : Target::Kind::host;
  binary.target.arch = r.text();
  if (!r.entry(binary.symbol, binary.resources)) return std::nullopt;
  for (std::uint64_t steps = r.integer(4); steps > 0; --steps) {
    BinaryEntry& step = binary.steps.emplace_back();
    if (!r.entry(step.symbol, step.resources)) return std::nullopt;
  }
  binary.log = r.text();
  const std::uint64_t size = r.integer(8);
  if (!r.align(kAlignment)) return std::nullopt;
  const auto code = r.take(size);
  if (!r.finished()) return std::nullopt;
  binary.code = bytes.part(static_cast<std::size_t>(code.data() - bytes.data()), code.size());
  return binary;
}

}  // namespace kiln::codegen
