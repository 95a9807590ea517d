// Kernel + config + target -> source -> key: everything before a compiler is asked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "codegen/compiler.hpp"
#include "codegen/include_closure.hpp"
#include "codegen/source.hpp"
#include "kiln/definition.hpp"

namespace kiln::codegen {

/// The source of one instance for one compiler. Reads the template and follows its includes.
/// @throws UserError when the template file cannot be read.
Source make_source(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                   const Target& target, const Compiler& compiler, const FilesSeen& files);

/// The key of the binary that `compiler` makes of `source`.
/// @param source_digest as source_digest() gives it.
Key binary_key(const Source& source, const Target& target, const Compiler& compiler,
               const std::optional<Digest>& source_digest);

/// What the key of any binary of this instance begins with: Key::portable of the one is the digest
/// of the other. Reads no file and needs no compiler.
Key wanted_key(const KernelDefinition& kernel, std::span<const std::int64_t> config,
               const Target& target);

/// Digest over the template and what it includes from the kernel's own folders, the same for every
/// config, compiler and target: what tells an edited kernel apart where there is no compiler.
/// Headers of the compiler and of Kiln are left out, as they need not be there. Nothing when the
/// template cannot be read, as in a program that is shipped without its kernels' sources.
std::optional<Digest> source_digest(const KernelDefinition& kernel, const FilesSeen& files);

struct KernelSourceDigest {
  Digest digest{};  ///< as source_digest()
  /// The first of the kernel's includes that cannot be followed, so that the digest covers less
  /// than a compiler reads; empty: all can.
  std::string unfollowed{};
};
/// Nothing when the template cannot be read.
std::optional<KernelSourceDigest> read_source_digest(const KernelDefinition& kernel,
                                                     const FilesSeen& files);

/// The name that keys use for it: `template arguments`, `macros`, ...
const char* to_string(Passing passing) noexcept;

/// For when it does not compile: as unknown_entry() of entry_names.hpp, of the template and what it
/// includes from the kernel's own folders and Kiln's. Reads them; empty where they are not here.
std::string unknown_entry(const KernelDefinition& kernel, const FilesSeen& files);

/// The field of keys that holds source_digest().
inline constexpr const char* kKernelSourceField = "kernel source";

/// The same space with one config, and without constraints.
DynamicSpace space_of_one(const DynamicSpace& space, std::span<const std::int64_t> config);

/// What the source and the keys of this instance are made of, without the program's functions: what
/// its rules say of the config is evaluated now.
KernelDefinition definition_of_one(const KernelDefinition& kernel,
                                   std::span<const std::int64_t> config);

/// Printable instance: `gemm<float>{block_m=128,...}`.
std::string describe_instance(const KernelDefinition& kernel, std::span<const std::int64_t> config);

}  // namespace kiln::codegen
