// A read-only store under the writable one: a bundle, or another cache directory.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cache/entry.hpp"
#include "cache/file_system.hpp"
#include "kiln/key.hpp"
#include "kiln/store.hpp"

namespace kiln::cache {

/// Safe from any number of threads. Damaged entries are not found; only bad_alloc is thrown.
class Root {
 public:
  virtual ~Root() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual std::optional<StoredEntry> find(EntryKind kind, const Key& key) = 0;
  /// Every entry with this Key::portable, in a fixed order, but for those that are `known`
  /// (Key::hex()). Entries that have come since the first call are seen after refresh().
  virtual std::vector<StoredEntry> find_portable(EntryKind kind, const Digest& portable,
                                                 const std::set<std::string>& known = {}) = 0;
  /// Looks for what has come and gone since. False: nothing ever does.
  virtual bool refresh(EntryKind kind) = 0;
  /// Every key, without reading payloads; `visit` returns false to stop.
  virtual void each_key(EntryKind kind, const std::function<bool(const Key&)>& visit) = 0;
  /// Entries of a kind.
  virtual std::uint64_t count(EntryKind kind) = 0;

  /// Hears of the first damaged entry that was asked for. Before the first look-up.
  void when_damaged(std::function<void(const std::string& what)> tell) { tell_ = std::move(tell); }

 protected:
  void tell_damaged(const std::string& what) {
    if (tell_ && !told_.exchange(true)) tell_(what);
  }

 private:
  std::function<void(const std::string&)> tell_;
  std::atomic<bool> told_{false};
};

/// `path`: a bundle, or a cache directory (then without a public key only). `public_key`: the PEM
/// file that must verify a bundle; empty: none must. A Failure says why it may not be used.
std::variant<std::unique_ptr<Root>, Failure> open_root(const std::filesystem::path& path,
                                                       const std::filesystem::path& public_key);

}  // namespace kiln::cache
