#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>

#include "cache/atomic_file.hpp"
#include "cache/bundle.hpp"
#include "cache/bundle_layout.hpp"
#include "cache/bundle_manifest.hpp"
#include "cache/regular_file.hpp"
#include "cache/signature.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::cache {
namespace {

/// A bundle is a product and not part of a private cache, so it gets the mode of any output file,
/// but never one that its readers refuse. Anything at its name that is not a file stays.
class OutputFiles : public FileSystem {
 public:
  int create(int directory, const char* name) override {
    return ::openat(directory, name,
                    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0644);
  }
  int rename(int directory, const char* from, const char* to) override {
    const int result = FileSystem::rename(directory, from, to);
    if (result != 0 && errno == EISDIR) errno = EEXIST;  // AtomicFile would remove an empty one
    return result;
  }
};

/// Bucket ends and hashes over `items`, which are in order; `first` gives an item's first byte.
template <class Item, class First>
void append_buckets(std::vector<std::byte>& table, const std::vector<Item>& items,
                    std::span<const std::byte> encoded, First first) {
  std::size_t begin = 0;
  for (std::size_t b = 0; b < kBundleBuckets; ++b) {
    std::size_t end = begin;
    while (end < items.size() && first(items[end]) == static_cast<std::byte>(b)) ++end;
    append(table, {end, sha256(encoded.subspan(begin * Item::kSize, (end - begin) * Item::kSize))});
    begin = end;
  }
}

template <class Item>
std::vector<std::byte> encode_all(const std::vector<Item>& items) {
  std::vector<std::byte> bytes;
  bytes.reserve(items.size() * Item::kSize);
  for (const Item& item : items) append(bytes, item);
  return bytes;
}

std::vector<BundlePortable> portables_of(const std::vector<BundleRow>& rows) {
  std::vector<BundlePortable> portables;
  for (std::size_t i = 0; i < rows.size(); ++i) portables.push_back({rows[i].portable, i});
  std::ranges::stable_sort(portables, {}, &BundlePortable::portable);
  return portables;
}

}  // namespace

void BundleWriter::add(EntryKind kind, const Key& key, detail::Bytes payload) {
  items_.try_emplace({key.digest, kind}, Item{key, std::move(payload)});
}

std::optional<Failure> BundleWriter::write(const std::filesystem::path& path,
                                           const std::string& made_by,
                                           const std::filesystem::path& private_key) const {
  // A rename would put a file in the place of a device.
  std::error_code none;
  const auto status = std::filesystem::symlink_status(path, none);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_symlink(status) && !std::filesystem::is_directory(status))
    return Failure{path.string() + " is a device, a FIFO or a socket", "name a file to write",
                   EEXIST};
  std::optional<PrivateKey> signer;
  if (!private_key.empty()) {
    auto loaded = PrivateKey::load(private_key);
    if (auto* failure = std::get_if<Failure>(&loaded)) return std::move(*failure);
    signer = std::get<PrivateKey>(std::move(loaded));
  }
  if (!path.has_filename())
    return Failure{detail::format("'{}' is not the name of a file", path.string()),
                   "name the file to write"};

  // Offsets count from the first key, until it is known where that is.
  BundleHeader header;
  header.version = kBundleVersion;
  PartCounter counter;
  std::vector<BundleRow> rows;
  std::vector<std::byte> keys;
  for (const auto& [id, item] : items_) {
    const auto fields = encode_fields(item.key);
    if (fields.size() > kMaxBundleKey)
      return Failure{"the key " + item.key.hex() + " is too large for a bundle",
                     "leave this entry out"};
    ++(id.second == EntryKind::binary ? header.binaries : header.records);
    counter.add(id.second, item.key);
    BundleRow row;
    row.digest = item.key.digest;
    row.portable = item.key.portable;
    row.key_sha256 = sha256(fields);
    row.payload_sha256 = sha256(item.payload);
    row.key_offset = keys.size();
    row.payload_size = item.payload.size();
    row.key_size = static_cast<std::uint32_t>(fields.size());
    row.kind = static_cast<std::uint32_t>(id.second);
    rows.push_back(row);
    keys.insert(keys.end(), fields.begin(), fields.end());
  }
  const std::string manifest = encode_manifest(made_by, counter.parts());
  if (manifest.size() > kMaxBundleManifest)
    return Failure{"the names of kernels and targets together are too long for one bundle",
                   "write several bundles"};

  const std::vector<BundlePortable> portables = portables_of(rows);
  header.manifest_size = manifest.size();
  header.manifest = sha256(manifest);
  header.keys_size = keys.size();
  const std::uint64_t keys_at = BundleParts::kRows +
                                rows.size() * (BundleRow::kSize + BundlePortable::kSize) +
                                manifest.size();
  header.size = keys_at + keys.size();
  for (BundleRow& row : rows) {
    row.key_offset += keys_at;
    row.payload_offset = aligned(header.size);
    header.size = row.payload_offset + row.payload_size;
  }

  const std::vector<std::byte> row_bytes = encode_all(rows), portable_bytes = encode_all(portables);
  std::vector<std::byte> tables;
  append_buckets(tables, rows, row_bytes, [](const BundleRow& row) { return row.digest[0]; });
  append_buckets(tables, portables, portable_bytes,
                 [](const BundlePortable& item) { return item.portable[0]; });
  header.tables = sha256(tables);
  if (signer) {
    header.key_id = signer->id();
    const std::vector<std::byte> bytes = encode(header);
    const auto signature = signer->sign(std::span(bytes).first(BundleHeader::kSigned));
    if (!signature) return Failure{"OpenSSL cannot sign with " + private_key.string(), {}};
    header.signature = *signature;
  }

  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const UniqueFd directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return file_failure("open", folder, errno);
  OutputFiles files;
  AtomicFile file(files, directory.get(), path.filename().string());
  bool written = file.write(encode(header)) && file.write(tables) && file.write(row_bytes) &&
                 file.write(portable_bytes) && file.write(std::as_bytes(std::span(manifest))) &&
                 file.write(keys);
  std::uint64_t at = keys_at + keys.size();
  constexpr std::array<std::byte, kBundleAlignment> kSpace{};
  for (auto item = items_.begin(); written && item != items_.end(); ++item) {
    written =
        file.write(std::span(kSpace).first(aligned(at) - at)) && file.write(item->second.payload);
    at = aligned(at) + item->second.payload.size();
  }
  if (written && file.commit()) return std::nullopt;
  Failure failure = file_failure("write", path, file.failure().code);
  failure.what = folder.string() + ": " + file.failure().what;
  return failure;
}

}  // namespace kiln::cache
