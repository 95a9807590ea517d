#include "cache/bundle_reader.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kiln::cache {
namespace {

constexpr std::uint64_t kTables = BundleParts::kRowBuckets;

std::size_t first_byte(const Digest& digest) { return std::to_integer<std::size_t>(digest[0]); }

/// The first index of [begin, end) for which `before` is false.
template <class Before>
std::uint64_t partition(std::uint64_t begin, std::uint64_t end, Before before) {
  while (begin < end) {
    const std::uint64_t middle = begin + (end - begin) / 2;
    if (before(middle))
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

std::string name_of(const BundleRow& row) {
  return (row.kind == static_cast<std::uint32_t>(EntryKind::binary) ? "binary " : "record ") +
         to_hex(row.digest);
}

}  // namespace

std::variant<BundleReader, std::string> BundleReader::open(std::span<const std::byte> file) {
  const auto front = file.first(std::min(file.size(), BundleHeader::kSize));
  const std::vector<std::byte> copy(front.begin(), front.end());
  BundleHeader header;
  if (auto why = decode(copy, header)) return *std::move(why);
  if (header.size != file.size())
    return "has " + std::to_string(file.size()) + " bytes but should have " +
           std::to_string(header.size);
  const auto parts = BundleParts::of(header);
  if (!parts) return "has an inconsistent header";
  const auto tables = file.subspan(kTables, BundleParts::kRows - kTables);
  BundleReader reader(file, header, *parts, {tables.begin(), tables.end()});
  if (sha256(reader.tables_) != header.tables || !reader.tables_make_sense())
    return "has a damaged index";
  return reader;
}

std::vector<std::byte> BundleReader::signed_bytes() const {
  std::vector<std::byte> bytes = encode(header_);
  bytes.resize(BundleHeader::kSigned);
  return bytes;
}

BundleBucket BundleReader::bucket(std::uint64_t table, std::size_t index) const {
  return decode_bucket(std::span(tables_)
                           .subspan(table - kTables + index * BundleBucket::kSize)
                           .first<BundleBucket::kSize>());
}

BundleReader::Range BundleReader::range(std::uint64_t table, std::size_t index) const {
  return {index == 0 ? 0 : bucket(table, index - 1).end, bucket(table, index).end};
}

bool BundleReader::tables_make_sense() const {
  for (const std::uint64_t table : {BundleParts::kRowBuckets, BundleParts::kPortableBuckets}) {
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < kBundleBuckets; ++i) {
      const std::uint64_t next = bucket(table, i).end;
      if (next < end) return false;
      end = next;
    }
    if (end != header_.rows()) return false;
  }
  return true;
}

std::optional<BundleReader::Range> BundleReader::row_bucket(std::size_t index) const {
  const Range rows = range(BundleParts::kRowBuckets, index);
  const auto bytes = file_.subspan(BundleParts::kRows + rows.begin * BundleRow::kSize,
                                   (rows.end - rows.begin) * BundleRow::kSize);
  if (sha256(bytes) != bucket(BundleParts::kRowBuckets, index).sha256) return std::nullopt;
  return rows;
}

std::optional<BundleReader::Range> BundleReader::portable_bucket(std::size_t index) const {
  const Range items = range(BundleParts::kPortableBuckets, index);
  const auto bytes = file_.subspan(parts_.portables + items.begin * BundlePortable::kSize,
                                   (items.end - items.begin) * BundlePortable::kSize);
  if (sha256(bytes) != bucket(BundleParts::kPortableBuckets, index).sha256) return std::nullopt;
  return items;
}

BundleRow BundleReader::row(std::uint64_t index) const {
  return decode_row(
      file_.subspan(BundleParts::kRows + index * BundleRow::kSize).first<BundleRow::kSize>());
}

BundlePortable BundleReader::portable(std::uint64_t index) const {
  return decode_portable(file_.subspan(parts_.portables + index * BundlePortable::kSize)
                             .first<BundlePortable::kSize>());
}

std::size_t BundleReader::bucket_of(std::uint64_t row) const {
  return partition(0, kBundleBuckets,
                   [&](std::uint64_t i) { return bucket(BundleParts::kRowBuckets, i).end <= row; });
}

bool BundleReader::within(const BundleRow& row) const {
  const auto fits = [](std::uint64_t offset, std::uint64_t size, std::uint64_t begin,
                       std::uint64_t end) {
    return offset >= begin && offset <= end && size <= end - offset;
  };
  return row.kind <= static_cast<std::uint32_t>(EntryKind::record) &&
         row.key_size <= kMaxBundleKey &&
         fits(row.key_offset, row.key_size, parts_.keys, parts_.keys_end) &&
         fits(row.payload_offset, row.payload_size, parts_.keys_end, header_.size) &&
         row.payload_offset % kBundleAlignment == 0;
}

bool BundleReader::Order::advance(const BundleRow& row) {
  if (any && std::tie(row.digest, row.kind) <= std::tie(digest, kind)) return false;
  if (row.key_offset < key_end || row.payload_offset < payload_end) return false;
  *this = {row.digest, row.kind, true, row.key_offset + row.key_size,
           row.payload_offset + row.payload_size};
  return true;
}

std::optional<BundleRow> BundleReader::find(EntryKind kind, const Digest& digest) const {
  const auto rows = row_bucket(first_byte(digest));
  if (!rows) return std::nullopt;
  const auto wanted = static_cast<std::uint32_t>(kind);
  const std::uint64_t index = partition(rows->begin, rows->end, [&](std::uint64_t i) {
    const BundleRow candidate = row(i);
    return std::tie(candidate.digest, candidate.kind) < std::tie(digest, wanted);
  });
  if (index == rows->end) return std::nullopt;
  const BundleRow found = row(index);
  if (found.digest != digest || found.kind != wanted || !within(found)) return std::nullopt;
  return found;
}

std::vector<BundleRow> BundleReader::find_portable(EntryKind kind, const Digest& wanted) const {
  std::vector<BundleRow> found;
  const auto items = portable_bucket(first_byte(wanted));
  if (!items) return found;
  std::uint64_t index = partition(items->begin, items->end,
                                  [&](std::uint64_t i) { return portable(i).portable < wanted; });
  std::optional<Range> rows;  // the bucket whose hash was checked last; empty when it did not fit
  std::size_t checked = kBundleBuckets;
  for (Order order; index < items->end; ++index) {
    const BundlePortable item = portable(index);
    if (item.portable != wanted) break;
    if (item.row >= header_.rows()) continue;
    if (const std::size_t i = bucket_of(item.row); i != checked) {
      rows = row_bucket(i);
      checked = i;
    }
    if (!rows) continue;
    const BundleRow candidate = row(item.row);
    if (candidate.portable == wanted && candidate.kind == static_cast<std::uint32_t>(kind) &&
        first_byte(candidate.digest) == checked && within(candidate) && order.advance(candidate))
      found.push_back(candidate);
  }
  return found;
}

bool BundleReader::each_row(const std::function<bool(const BundleRow&)>& visit) const {
  bool whole = true;
  Order order;
  for (std::size_t b = 0; b < kBundleBuckets; ++b) {
    const auto rows = row_bucket(b);
    whole = whole && rows;
    for (std::uint64_t i = rows ? rows->begin : 0; rows && i < rows->end; ++i) {
      const BundleRow next = row(i);
      if (first_byte(next.digest) != b || !within(next) || !order.advance(next))
        whole = false;
      else if (!visit(next))
        return whole;
    }
  }
  return whole;
}

std::optional<Key> BundleReader::key(const BundleRow& row) const {
  const auto bytes = file_.subspan(row.key_offset, row.key_size);
  Key key;
  key.digest = row.digest;
  key.portable = row.portable;
  if (sha256(bytes) != row.key_sha256 || !decode_fields(bytes, key)) return std::nullopt;
  return key;
}

std::optional<std::span<const std::byte>> BundleReader::payload(const BundleRow& row) const {
  const auto bytes = file_.subspan(row.payload_offset, row.payload_size);
  if (sha256(bytes) != row.payload_sha256) return std::nullopt;
  return bytes;
}

std::optional<BundleInfo> BundleReader::manifest() const {
  const auto bytes = file_.subspan(parts_.manifest, header_.manifest_size);
  if (sha256(bytes) != header_.manifest) return std::nullopt;
  return decode_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

bool BundleReader::zero(std::uint64_t begin, std::uint64_t end) const {
  return std::ranges::all_of(file_.subspan(begin, end - begin),
                             [](std::byte b) { return b == std::byte{0}; });
}

void BundleReader::check_rows(Check& check, PartCounter& counter) const {
  const auto problem = [&](std::string text) { check.problems.push_back(std::move(text)); };
  // The writer puts each part in exactly one possible place. After damage the place of the next
  // part is unknown.
  std::uint64_t key_end = parts_.keys, payload_end = parts_.keys_end;
  bool known = true;
  Order order;
  for (std::size_t b = 0; b < kBundleBuckets; ++b) {
    const auto rows = row_bucket(b);
    if (!rows) {
      problem("part " + std::to_string(b) + " of the index is damaged");
      known = false;
      continue;
    }
    for (std::uint64_t i = rows->begin; i < rows->end; ++i) {
      const BundleRow next = row(i);
      if (first_byte(next.digest) != b || !within(next) || !order.advance(next)) {
        problem("row " + std::to_string(i) + " of the index is inconsistent");
        known = false;
        continue;
      }
      const auto fields = key(next);
      if (!fields)
        problem(name_of(next) + ": its key is damaged");
      else if (!payload(next))
        problem(name_of(next) + ": its contents are damaged");
      else if (known &&
               (next.key_offset != key_end || next.payload_offset != aligned(payload_end) ||
                !zero(payload_end, next.payload_offset)))
        problem(name_of(next) + ": the padding before it is not zero");
      if (fields) counter.add(static_cast<EntryKind>(next.kind), *fields);
      ++check.entries;
      key_end = order.key_end;
      payload_end = order.payload_end;
      known = true;
    }
  }
  if (known && (key_end != parts_.keys_end || payload_end != header_.size))
    problem("the file has bytes that belong to no entry");
}

void BundleReader::check_portables(Check& check) const {
  const bool rows_whole = check.problems.empty();
  std::optional<BundlePortable> last;
  for (std::size_t b = 0; b < kBundleBuckets; ++b) {
    const auto items = portable_bucket(b);
    bool right = items.has_value();
    for (std::uint64_t i = right ? items->begin : 0; right && i < items->end; ++i) {
      const BundlePortable item = portable(i);
      right = first_byte(item.portable) == b && item.row < header_.rows() &&
              (!last || std::tie(last->portable, last->row) < std::tie(item.portable, item.row)) &&
              (!rows_whole || row(item.row).portable == item.portable);
      last = item;
    }
    if (!right)
      check.problems.push_back("part " + std::to_string(b) + " of the second index is damaged");
  }
}

BundleReader::Check BundleReader::check() const {
  Check check;
  PartCounter counter;
  check_rows(check, counter);
  check_portables(check);
  const auto info = manifest();
  if (!info) {
    check.problems.push_back("the manifest is damaged");
  } else if (check.problems.empty()) {
    // Names that are not UTF-8 read back with U+FFFD, so the manifest as written is compared.
    const auto bytes = file_.subspan(parts_.manifest, header_.manifest_size);
    const std::string expected = encode_manifest(info->made_by, counter.parts());
    if (!std::ranges::equal(bytes, std::as_bytes(std::span(expected))) ||
        info->binaries != header_.binaries || info->records != header_.records)
      check.problems.push_back("the manifest does not match the entries");
  }
  return check;
}

}  // namespace kiln::cache
