#include "cache/bundle.hpp"

#include <cerrno>
#include <utility>

#include <sys/mman.h>

#include "cache/bundle_reader.hpp"
#include "cache/record.hpp"
#include "cache/regular_file.hpp"
#include "cache/signature.hpp"

namespace kiln::cache {
namespace {

constexpr const char* kMakeAgain = "make the bundle again, or remove it from the roots";

/// Keeps a file's bytes mapped for as long as this exists.
class Map {
 public:
  Map(int fd, std::size_t size) : size_(size) {
    if (size > 0) data_ = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  }
  ~Map() {
    if (data_ != MAP_FAILED) ::munmap(data_, size_);
  }
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;

  bool failed() const { return size_ > 0 && data_ == MAP_FAILED; }
  std::span<const std::byte> bytes() const {
    if (data_ == MAP_FAILED) return {};
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_ = MAP_FAILED;
  std::size_t size_;
};

std::string short_hex(const Digest& id) { return to_hex(id).substr(0, 16); }

/// A record's key may have been through JSON, which knows UTF-8 only.
bool same_fields(EntryKind kind, const Key& held, const Key& wanted) {
  return held.fields == wanted.fields ||
         (kind == EntryKind::record && printable(held).fields == printable(wanted).fields);
}

}  // namespace

struct Bundle::Impl {
  std::filesystem::path path;
  std::shared_ptr<const Map> map;
  BundleReader reader;

  Failure damaged(const std::string& what) const {
    return {path.string() + " " + what, kMakeAgain};
  }

  std::optional<StoredEntry> entry(const BundleRow& row) const {
    auto key = reader.key(row);
    if (!key) return std::nullopt;
    const auto payload = reader.payload(row);
    if (!payload) return std::nullopt;
    return StoredEntry{*std::move(key), detail::Bytes(map, *payload)};
  }
};

Bundle::Bundle(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Bundle::~Bundle() = default;

std::variant<std::unique_ptr<Bundle>, Failure> Bundle::open(
    const std::filesystem::path& path, const std::filesystem::path& public_key) {
  auto opened = open_regular(path, "a bundle");
  if (auto* failure = std::get_if<Failure>(&opened)) return std::move(*failure);
  const RegularFile& file = std::get<RegularFile>(opened);
  auto map = std::make_shared<const Map>(file.fd.get(), static_cast<std::size_t>(file.size));
  if (map->failed()) return file_failure("mmap", path, errno);

  auto read = BundleReader::open(map->bytes());
  if (const auto* why = std::get_if<std::string>(&read))
    return Failure{path.string() + " " + *why, kMakeAgain};
  std::unique_ptr<Bundle> bundle(new Bundle(std::unique_ptr<Impl>(
      new Impl{path, std::move(map), std::get<BundleReader>(std::move(read))})));
  if (!public_key.empty()) {
    const auto key = PublicKey::load(public_key);
    if (const auto* failure = std::get_if<Failure>(&key))
      return Failure{"the public key that verifies bundles: " + failure->what, failure->advice,
                     failure->code};
    if (auto failure = bundle->distrust(std::get<PublicKey>(key))) return *std::move(failure);
  }
  return bundle;
}

std::optional<Failure> Bundle::distrust(const PublicKey& key) const {
  const BundleHeader& header = impl_->reader.header();
  const std::string path = impl_->path.string();
  if (!header.is_signed())
    return Failure{path + " is not signed", "sign it (kiln bundle sign), or require no signature"};
  if (header.key_id != key.id())
    return Failure{
        path + " is signed by " + short_hex(header.key_id) + ", not by " + short_hex(key.id()),
        "get the bundle from the holder of the trusted key, or trust the key that signed it"};
  if (!key.verifies(impl_->reader.signed_bytes(), header.signature))
    return Failure{path + " was changed after it was signed", "get it again from its signer"};
  return std::nullopt;
}

const std::filesystem::path& Bundle::path() const { return impl_->path; }

std::optional<StoredEntry> Bundle::find(EntryKind kind, const Key& key) {
  const auto row = impl_->reader.find(kind, key.digest);
  if (!row) return std::nullopt;
  auto entry = read(*row);
  if (!entry || !same_fields(kind, entry->key, key)) return std::nullopt;
  return entry;
}

std::optional<StoredEntry> Bundle::read(const BundleRow& row) {
  auto entry = impl_->entry(row);
  if (!entry)
    tell_damaged(impl_->path.string() + " has a damaged entry, " + to_hex(row.digest) +
                 ", which counts as not there; `kiln bundle verify` lists all of them");
  return entry;
}

std::vector<StoredEntry> Bundle::find_portable(EntryKind kind, const Digest& portable,
                                               const std::set<std::string>& known) {
  std::vector<StoredEntry> entries;
  for (const BundleRow& row : impl_->reader.find_portable(kind, portable))
    if (auto entry = read(row); entry && !known.contains(entry->key.hex()))
      entries.push_back(*std::move(entry));
  return entries;
}

void Bundle::each_key(EntryKind kind, const std::function<bool(const Key&)>& visit) {
  impl_->reader.each_row([&](const BundleRow& row) {
    if (row.kind != static_cast<std::uint32_t>(kind)) return true;
    const auto key = impl_->reader.key(row);
    return !key || visit(*key);
  });
}

std::uint64_t Bundle::count(EntryKind kind) {
  const BundleHeader& header = impl_->reader.header();
  return kind == EntryKind::binary ? header.binaries : header.records;
}

std::variant<BundleInfo, Failure> Bundle::info() const {
  const BundleHeader& header = impl_->reader.header();
  auto info = impl_->reader.manifest();
  if (!info) return impl_->damaged("has a damaged manifest");
  info->path = impl_->path;
  info->version = header.version;
  info->bytes = header.size;
  info->binaries = header.binaries;
  info->records = header.records;
  if (header.is_signed()) info->signer = short_hex(header.key_id);
  return *std::move(info);
}

std::variant<std::vector<StoreEntry>, Failure> Bundle::entries() const {
  std::vector<StoreEntry> entries;
  const bool whole = impl_->reader.each_row([&](const BundleRow& row) {
    if (auto key = impl_->reader.key(row)) {
      StoreEntry entry;
      entry.kind = static_cast<EntryKind>(row.kind);
      entry.key = *std::move(key);
      entry.path = impl_->path;
      entry.bytes = row.payload_size;
      entries.push_back(std::move(entry));
    }
    return true;
  });
  if (!whole || entries.size() != impl_->reader.header().rows())
    return impl_->damaged("has a damaged index");
  return entries;
}

VerifyReport Bundle::verify() const {
  VerifyReport report;
  BundleReader::Check check = impl_->reader.check();
  report.checked = check.entries;
  for (std::string& problem : check.problems)
    report.problems.push_back({impl_->path, std::move(problem)});
  return report;
}

std::optional<Failure> Bundle::each_entry(
    const std::function<void(EntryKind, StoredEntry entry)>& visit) const {
  std::optional<Failure> failure;
  const bool whole = impl_->reader.each_row([&](const BundleRow& row) {
    auto entry = impl_->entry(row);
    if (entry)
      visit(static_cast<EntryKind>(row.kind), *std::move(entry));
    else
      failure = impl_->damaged("has a damaged entry, " + to_hex(row.digest));
    return entry.has_value();
  });
  if (!whole && !failure) failure = impl_->damaged("has a damaged index");
  return failure;
}

}  // namespace kiln::cache
