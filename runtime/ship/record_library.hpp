// The tuning records of caches and bundles, by what they are about: which configs won.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kiln/detail/bytes.hpp"
#include "kiln/key.hpp"
#include "kiln/target.hpp"

namespace kiln::runtime {

/// Immutable.
class RecordLibrary {
 public:
  struct Entry {
    Key key;
    detail::Bytes payload;  ///< the record's JSON text
    std::map<std::string, std::int64_t> winner;
    bool complete = false;  ///< its search has ended
  };

  /// Reads every record of these cache directories and bundles; whole records of another form are
  /// passed over. If several have one key, the first whose search has ended counts, else the first.
  /// @throws UserError naming the path that cannot be used and why.
  explicit RecordLibrary(std::span<const std::filesystem::path> paths);

  bool empty() const noexcept { return entries_.empty(); }
  /// Returns the entries of a bucketed problem of the kernel or choice of this name and these types
  /// on devices of this target. They live as long as the library.
  std::vector<const Entry*> find(const std::string& name, const std::vector<std::string>& types,
                                 const std::map<std::string, std::int64_t>& problem,
                                 const Target& target) const;

 private:
  void add(const std::string& about, Entry entry);

  std::multimap<std::string, Entry> entries_;
};

}  // namespace kiln::runtime
