// The second stage: one instance's compiled bytes, what it needs to run, and their wire form.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/detail/bytes.hpp"
#include "kiln/key.hpp"
#include "kiln/target.hpp"

namespace kiln::codegen {

/// What the compiler says an instance uses. Host binaries leave the register fields at 0.
struct ResourceUsage {
  int registers = 0;      ///< per thread
  int spill_stores = 0;   ///< bytes per thread
  int spill_loads = 0;    ///< bytes per thread
  int stack = 0;          ///< bytes per thread, spills included
  int static_shared = 0;  ///< bytes per block
  int max_threads = 0;    ///< per block, from __launch_bounds__; 0: not bounded

  bool operator==(const ResourceUsage&) const = default;
};

/// A kernel of a module.
struct BinaryEntry {
  std::string symbol;  ///< mangled name
  ResourceUsage resources;

  bool operator==(const BinaryEntry&) const = default;
};

/// Compiled code for one target: a cubin, or a host shared object.
struct Binary {
  Target target;
  std::string symbol;  ///< mangled entry name
  ResourceUsage resources;
  std::vector<BinaryEntry> steps;  ///< further entries, in the order of Source::steps
  std::string log;                 ///< warnings; empty when the compiler was silent
  detail::Bytes code;
  /// The digest of its key, where that says all that it was made of. Not in the byte form.
  std::optional<Digest> key{};
};

/// Byte form kept in the store. `parse` returns nothing for bytes it did not write; it never throws
/// and never reads past `bytes`. The code is not copied: it stays a part of `bytes`.
std::vector<std::byte> serialize(const Binary& binary);
std::optional<Binary> parse_binary(const detail::Bytes& bytes);

}  // namespace kiln::codegen
