// Internal: what a cubin's kernel uses, read from the cubin and from ptxas's report.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/binary.hpp"

namespace kiln::codegen {

/// Registers, stack, static shared memory and launch bounds of the kernel `symbol`, as the driver
/// will read them. The spill fields stay 0: a cubin does not tell. Nothing when `cubin` is not a
/// 64-bit ELF file, or has no such kernel; never reads past its end.
std::optional<ResourceUsage> read_cubin_resources(std::span<const std::byte> cubin,
                                                  std::string_view symbol);

/// A global variable of a cubin, `__constant__` or `__device__`.
struct CubinVariable {
  std::string symbol;  ///< by which the driver finds it
  std::string name;    ///< `image::filter`
  std::uint64_t bytes = 0;

  bool operator==(const CubinVariable&) const = default;
};

/// In the order of the file; NVRTC keeps those that are not used. Empty when `cubin` is not a
/// 64-bit ELF file; never reads past its end.
std::vector<CubinVariable> read_cubin_variables(std::span<const std::byte> cubin);

/// A compiler's log, taken apart.
struct PtxasLog {
  std::string messages;  ///< what is left for people: warnings and errors
  /// Registers, stack, spills (those of the functions it calls included) and static shared memory
  /// of one kernel, if ptxas reported it.
  std::optional<ResourceUsage> kernel;
};

/// Splits a log made with --ptxas-options=-v.
PtxasLog split_ptxas_log(std::string_view log, std::string_view symbol);

}  // namespace kiln::codegen
