// Store entries, bundles and sizes for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "kiln/bundle.hpp"
#include "kiln/store.hpp"

namespace kiln::tools {

/// `1.5 MiB`.
std::string show_bytes(std::uint64_t bytes);
/// `2G`, `512M`, `4096`: bytes, with K, M, G, T for powers of 1024. @throws UserError naming
/// `option` for anything else.
std::uint64_t parse_bytes(const std::string& option, const std::string& text);

const char* to_string(EntryKind kind) noexcept;
/// The kernel of a key; entries of older formats name it by the source's entry alone.
std::string kernel_of(const Key& key);
/// One line: kind, short key, kernel, target, size, last use.
std::string describe(const StoreEntry& entry);
/// With every field of the key.
nlohmann::json to_json(const StoreEntry& entry);

/// A table of kernels and targets under a line about the file.
std::string describe(const BundleInfo& bundle);
nlohmann::json to_json(const BundleInfo& bundle);

/// `{"checked": N, "newer": N, "unfinished": N, "damaged": [{"path", "reason"}],
/// "unreadable": [{"path", "reason"}]}`
nlohmann::json to_json(const VerifyReport& report);

}  // namespace kiln::tools
