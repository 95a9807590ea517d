// Bundles: grammar in cache/FORMAT.md. The first byte of an input says what is to be made right:
//   1  the two tables of buckets are left out of it, and made from what follows
//   2  the header's sizes
//   4  the hashes of keys and payloads
//   8  all other hashes
#include "cache/bundle.hpp"

#include <algorithm>

#include "cache/bundle_layout.hpp"
#include "cache/bundle_reader.hpp"
#include "fuzz.hpp"
#include "kiln/error.hpp"

using namespace kiln;
using namespace kiln::cache;
using fuzz::require;

namespace {

using File = std::vector<std::byte>;

constexpr std::size_t kTables = 2 * kBundleBuckets * BundleBucket::kSize;

void put(File& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset <= file.size() && bytes.size() <= file.size() - offset)
    std::ranges::copy(bytes, file.begin() + static_cast<std::ptrdiff_t>(offset));
}

/// The part of the file, or as much of it as there is.
std::span<const std::byte> part(const File& file, std::uint64_t offset, std::uint64_t size) {
  const auto from = std::min<std::uint64_t>(offset, file.size());
  return std::span(file).subspan(from, std::min<std::uint64_t>(size, file.size() - from));
}

/// What the header says, its checksum aside.
BundleHeader header_of(const File& file) {
  File front(file.begin(), file.begin() + BundleHeader::kSize);
  const Digest checksum = sha256(part(front, 0, BundleHeader::kSize - sizeof(Digest)));
  put(front, BundleHeader::kSize - sizeof(Digest), checksum);
  BundleHeader header;
  (void)decode(front, header);
  return header;
}

/// A table of buckets over items of `size` bytes, by their first byte or as the file has them.
void make_table(File& file, std::uint64_t table, std::uint64_t items, std::uint64_t count,
                std::size_t size, bool make_ends) {
  std::uint64_t begin = 0;
  for (std::size_t b = 0; b < kBundleBuckets; ++b) {
    const std::uint64_t at = table + b * BundleBucket::kSize;
    std::uint64_t end = begin;
    if (make_ends) {
      while (end < count && file[items + end * size] == static_cast<std::byte>(b)) ++end;
      if (b + 1 == kBundleBuckets) end = count;
    } else {
      const File bytes(file.begin() + static_cast<std::ptrdiff_t>(at),
                       file.begin() + static_cast<std::ptrdiff_t>(at + BundleBucket::kSize));
      end = std::clamp(decode_bucket(std::span(bytes).first<BundleBucket::kSize>()).end, begin,
                       count);
    }
    File bucket;
    append(bucket, {end, sha256(part(file, items + begin * size, (end - begin) * size))});
    put(file, at, bucket);
    begin = end;
  }
}

File repaired(File file, unsigned what) {
  if ((what & 1) != 0 && file.size() >= BundleHeader::kSize)
    file.insert(file.begin() + BundleHeader::kSize, kTables, std::byte{0});
  if (file.size() < BundleHeader::kSize + kTables) return file;
  BundleHeader header = header_of(file);
  if ((what & 2) != 0) {
    header.version = kBundleVersion;
    header.size = file.size();
    header.binaries %= 64;
    header.records %= 64;
  }
  const auto parts = BundleParts::of(header);
  if (parts && header.size <= file.size()) {
    if ((what & 4) != 0)
      for (std::uint64_t i = 0; i < header.rows(); ++i) {
        const std::uint64_t at = BundleParts::kRows + i * BundleRow::kSize;
        const auto bytes = part(file, at, BundleRow::kSize);
        BundleRow row = decode_row(bytes.first<BundleRow::kSize>());
        row.key_sha256 = sha256(part(file, row.key_offset, row.key_size));
        row.payload_sha256 = sha256(part(file, row.payload_offset, row.payload_size));
        File again;
        append(again, row);
        put(file, at, again);
      }
    if ((what & 8) != 0) {
      make_table(file, BundleParts::kRowBuckets, BundleParts::kRows, header.rows(),
                 BundleRow::kSize, (what & 1) != 0);
      make_table(file, BundleParts::kPortableBuckets, parts->portables, header.rows(),
                 BundlePortable::kSize, (what & 1) != 0);
      header.tables = sha256(part(file, BundleParts::kRowBuckets, kTables));
      header.manifest = sha256(part(file, parts->manifest, header.manifest_size));
    }
  }
  put(file, 0, encode(header));
  return file;
}

/// Everything that a look-up may ask of a root.
void ask(Root& root) {
  for (const EntryKind kind : {EntryKind::binary, EntryKind::record}) {
    std::vector<Key> keys;
    root.each_key(kind, [&](const Key& key) {
      keys.push_back(key);
      return keys.size() < 200;
    });
    for (const Key& key : keys) {
      require(key.portable_fields <= key.fields.size(), "more fields are portable than there are");
      if (const auto found = root.find(kind, key))
        require(found->key.digest == key.digest && found->key.fields == key.fields,
                "another key's entry was found");
      for (const StoredEntry& entry : root.find_portable(kind, key.portable))
        require(entry.key.portable == key.portable, "another portable's entry was found");
      (void)key.explain();
    }
    Key absent;
    (void)root.find(kind, absent);
    (void)root.find_portable(kind, absent.portable);
    (void)root.count(kind);
  }
}

void read(const File& file) {
  auto opened = BundleReader::open(file);
  if (const auto* why = std::get_if<std::string>(&opened))
    return require(!why->empty(), "no reason is given");
  const auto& reader = std::get<BundleReader>(opened);
  const auto check = reader.check();
  (void)reader.manifest();
  std::uint64_t rows = 0;
  const bool whole = reader.each_row([&](const BundleRow& row) {
    (void)reader.key(row);
    if (const auto payload = reader.payload(row))
      require(payload->data() >= file.data() &&
                  payload->data() + payload->size() <= file.data() + file.size(),
              "a payload is not in the file");
    return ++rows < 10'000;
  });
  require(whole || !check.problems.empty(), "rows are damaged, and nothing is said to be");
  require(!check.problems.empty() || rows == reader.header().rows() || rows == 10'000,
          "a bundle without problems lacks rows");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const File file = repaired(fuzz::bytes_of(data + 1, size - 1), data[0]);
  read(file);
  const fuzz::File on_disk(file);
  auto opened = Bundle::open(on_disk.path());
  if (auto* bundle = std::get_if<std::unique_ptr<Bundle>>(&opened)) {
    ask(**bundle);
    (void)(*bundle)->info();
    (void)(*bundle)->entries();
  }
  try {
    (void)verify_bundle(on_disk.path());
  } catch (const Error&) {
  }
  return 0;
}
