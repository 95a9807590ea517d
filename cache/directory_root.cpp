#include "cache/directory_root.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/disk_level.hpp"
#include "cache/entry_file.hpp"
#include "cache/key_index.hpp"

namespace kiln::cache {
namespace {

class DirectoryRoot final : public Root {
 public:
  DirectoryRoot(std::filesystem::path named, std::filesystem::path directory)
      : path_(std::move(named)),
        disk_(std::move(directory), std::make_shared<FileSystem>(), Owner::anyone) {}

  const std::filesystem::path& path() const override { return path_; }

  std::optional<StoredEntry> find(EntryKind kind, const Key& key) override {
    auto entry = read_entry(disk_, kind, key.hex(), false);
    return entry && same_key(kind, entry->key, key) ? std::move(entry) : std::nullopt;
  }

  std::vector<StoredEntry> find_portable(EntryKind kind, const Digest& portable,
                                         const std::set<std::string>& known) override {
    std::vector<StoredEntry> entries;
    for (const std::string& hex : index_.find(kind, portable)) {
      if (known.contains(hex)) continue;
      if (auto entry = read_entry(disk_, kind, hex, false);
          entry && entry->key.portable == portable)
        entries.push_back(*std::move(entry));
    }
    return entries;
  }

  bool refresh(EntryKind kind) override {
    index_.refresh(kind);  // what has changed may have been noted by another thread
    return true;
  }

  void each_key(EntryKind kind, const std::function<bool(const Key&)>& visit) override {
    bool go_on = true;
    each(kind, [&](const DiskLevel::Found& found) {
      if (!go_on) return;
      if (const auto key = read_key(disk_, found)) go_on = visit(*key);
    });
  }

  std::uint64_t count(EntryKind kind) override {
    std::uint64_t entries = 0;
    each(kind, [&](const DiskLevel::Found&) { ++entries; });
    return entries;
  }

 private:
  void each(EntryKind kind, const std::function<void(const DiskLevel::Found&)>& visit) {
    for (unsigned shard = 0; shard < DiskLevel::kShards; ++shard)
      disk_.walk_shard(kind, shard, [&](const DiskLevel::Found& found) {
        if (found.what == DiskLevel::Found::What::entry && found.regular) visit(found);
      });
  }

  const std::filesystem::path path_;
  DiskLevel disk_;
  KeyIndex index_{disk_};
};

}  // namespace

std::variant<std::unique_ptr<Root>, Failure> make_directory_root(
    const std::filesystem::path& path) {
  std::error_code error;
  // Links are resolved now: the guard below follows none.
  std::filesystem::path directory = std::filesystem::canonical(path, error);
  if (error) return call_failure("open", path.string(), error.value());
  GuardedDirectory guarded =
      open_guarded(AT_FDCWD, directory.string(), directory.string(), Owner::anyone);
  if (guarded.fd && ::faccessat(guarded.fd.get(), ".", R_OK | X_OK, AT_EACCESS) != 0)
    guarded.failure = call_failure("open", path.string(), errno);
  if (guarded.failure) {
    guarded.failure->advice = "have its owner correct its permissions, or remove it from the roots";
    return *std::move(guarded.failure);
  }
  return std::make_unique<DirectoryRoot>(path, std::move(directory));
}

}  // namespace kiln::cache
