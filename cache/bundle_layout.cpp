#include "cache/bundle_layout.hpp"

#include <cstring>

#include "cache/bundle.hpp"
#include "cache/entry.hpp"
#include "cache/wire.hpp"

namespace kiln::cache {
namespace {

constexpr std::size_t kSmallestField = 1 + 4 + 4;

}  // namespace

std::optional<BundleParts> BundleParts::of(const BundleHeader& header) {
  // Nothing is added without a check. Every subtraction is from a number that is known to be at
  // least as large.
  constexpr std::uint64_t kPerRow = BundleRow::kSize + BundlePortable::kSize;
  if (header.size < kRows) return std::nullopt;
  std::uint64_t left = header.size - kRows;
  const std::uint64_t most = left / kPerRow;
  if (header.binaries > most || header.records > most - header.binaries) return std::nullopt;
  left -= header.rows() * kPerRow;
  if (header.manifest_size > kMaxBundleManifest || header.manifest_size > left) return std::nullopt;
  left -= header.manifest_size;
  if (header.keys_size > left) return std::nullopt;

  BundleParts parts;
  parts.portables = kRows + header.rows() * BundleRow::kSize;
  parts.manifest = parts.portables + header.rows() * BundlePortable::kSize;
  parts.keys = parts.manifest + header.manifest_size;
  parts.keys_end = parts.keys + header.keys_size;
  return parts;
}

std::vector<std::byte> encode(const BundleHeader& header) {
  std::vector<std::byte> bytes;
  bytes.reserve(BundleHeader::kSize);
  WireWriter out(bytes);
  out.put(std::as_bytes(std::span(kBundleMagic)))
      .put(header.version)
      .put(std::uint32_t{0})
      .put(header.size)
      .put(header.binaries)
      .put(header.records)
      .put(header.manifest_size)
      .put(header.keys_size)
      .put(std::uint64_t{0})
      .put(header.tables)
      .put(header.manifest)
      .put(header.key_id)
      .put(header.signature);
  out.put(sha256(bytes));
  return bytes;
}

void append(std::vector<std::byte>& out, const BundleBucket& bucket) {
  WireWriter(out).put(bucket.end).put(bucket.sha256);
}

void append(std::vector<std::byte>& out, const BundleRow& row) {
  WireWriter(out)
      .put(row.digest)
      .put(row.portable)
      .put(row.key_sha256)
      .put(row.payload_sha256)
      .put(row.key_offset)
      .put(row.payload_offset)
      .put(row.payload_size)
      .put(row.key_size)
      .put(row.kind);
}

void append(std::vector<std::byte>& out, const BundlePortable& portable) {
  WireWriter(out).put(portable.portable).put(portable.row);
}

std::vector<std::byte> encode_fields(const Key& key) {
  std::vector<std::byte> bytes;
  WireWriter out(bytes);
  out.put(static_cast<std::uint32_t>(key.portable_fields));
  out.put(static_cast<std::uint32_t>(key.fields.size()));
  for (const KeyField& field : key.fields)
    out.put(static_cast<std::uint8_t>(field.type)).put_sized(field.name).put_sized(field.value);
  return bytes;
}

std::optional<std::string> decode(std::span<const std::byte> file, BundleHeader& header) {
  if (file.size() < kBundleMagic.size() ||
      std::memcmp(file.data(), kBundleMagic.data(), kBundleMagic.size()) != 0)
    return "is not a bundle";
  if (file.size() < BundleHeader::kSize) return "is cut off within its header";
  const auto bytes = file.first(BundleHeader::kSize);
  const auto body = bytes.first(bytes.size() - sizeof(Digest));
  const Digest checksum = sha256(body);
  if (std::memcmp(checksum.data(), bytes.data() + body.size(), checksum.size()) != 0)
    return "has a damaged header";

  WireReader in(body.subspan(kBundleMagic.size()));
  header.version = in.take<std::uint32_t>();
  if (header.version != kBundleVersion)
    return "has format version " + std::to_string(header.version) + ", but this Kiln reads " +
           std::to_string(kBundleVersion);
  const auto reserved = in.take<std::uint32_t>();
  header.size = in.take<std::uint64_t>();
  header.binaries = in.take<std::uint64_t>();
  header.records = in.take<std::uint64_t>();
  header.manifest_size = in.take<std::uint64_t>();
  header.keys_size = in.take<std::uint64_t>();
  if ((reserved | in.take<std::uint64_t>()) != 0) return "has an inconsistent header";
  header.tables = in.take_array<32>();
  header.manifest = in.take_array<32>();
  header.key_id = in.take_array<32>();
  header.signature = in.take_array<64>();
  return std::nullopt;
}

BundleBucket decode_bucket(std::span<const std::byte, BundleBucket::kSize> bytes) {
  WireReader in(bytes);
  BundleBucket bucket;
  bucket.end = in.take<std::uint64_t>();
  bucket.sha256 = in.take_array<32>();
  return bucket;
}

BundleRow decode_row(std::span<const std::byte, BundleRow::kSize> bytes) {
  WireReader in(bytes);
  BundleRow row;
  row.digest = in.take_array<32>();
  row.portable = in.take_array<32>();
  row.key_sha256 = in.take_array<32>();
  row.payload_sha256 = in.take_array<32>();
  row.key_offset = in.take<std::uint64_t>();
  row.payload_offset = in.take<std::uint64_t>();
  row.payload_size = in.take<std::uint64_t>();
  row.key_size = in.take<std::uint32_t>();
  row.kind = in.take<std::uint32_t>();
  return row;
}

BundlePortable decode_portable(std::span<const std::byte, BundlePortable::kSize> bytes) {
  WireReader in(bytes);
  BundlePortable portable;
  portable.portable = in.take_array<32>();
  portable.row = in.take<std::uint64_t>();
  return portable;
}

bool decode_fields(std::span<const std::byte> bytes, Key& key) {
  WireReader in(bytes);
  key.portable_fields = in.take<std::uint32_t>();
  const auto count = in.take<std::uint32_t>();
  if (count > in.left() / kSmallestField || key.portable_fields > count) return false;
  key.fields.clear();
  key.fields.reserve(count);
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    KeyField field;
    field.type = static_cast<char>(in.take<std::uint8_t>());
    field.name = in.take_sized();
    field.value = in.take_sized();
    if (kFieldTypes.find(field.type) == kFieldTypes.npos) return false;
    key.fields.push_back(std::move(field));
  }
  return in.ok() && in.left() == 0;
}

}  // namespace kiln::cache
