// Looking after the store on disk: what `kiln cache` does.
//
//   kiln::Cache cache;                          // the default directory
//   for (auto& e : cache.explain("3fa9")) std::cout << e.key.explain();
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kiln/store.hpp"
#include "kiln/tune.hpp"

namespace kiln {

namespace cache {
class Store;
}

/// Thread-safe; other processes may use the same directory at the same time.
class Cache {
 public:
  explicit Cache(StoreOptions options = {});

  StoreStatistics stats() const;
  /// Reads every entry in full; changes nothing.
  VerifyReport verify() const;
  /// Removes every entry and returns the number of files removed. @throws EnvironmentError when the
  /// directory may not be used or a file cannot be removed.
  std::size_t clear() const;
  /// Removes the least recently used entries until at most `max_bytes` in at most `max_files`
  /// entries are left, and abandoned temporary and lock files. Safe while others read and write.
  /// @throws EnvironmentError when the directory may not be used.
  TrimReport trim(std::uint64_t max_bytes,
                  std::uint64_t max_files = std::numeric_limits<std::uint64_t>::max()) const;
  /// The entries whose digest begins with these hexadecimal digits; all entries if there are none.
  /// @throws UserError for anything but hexadecimal digits.
  std::vector<StoreEntry> explain(std::string_view hex_prefix) const;
  /// What a record says: the winner, the default and everything that was tried, as it was measured.
  /// Nothing for a binary, for a record of another version of Kiln, and for one that is gone.
  std::optional<TuneResult> result(const StoreEntry& entry) const;

 private:
  std::shared_ptr<cache::Store> store_;
};

}  // namespace kiln
