// A bundle: binaries and records of several architectures in one read-only file, which a runtime
// maps instead of copying (StoreOptions::roots).
//
//   for (auto& problem : kiln::verify_bundle("kernels.kiln", "release.pub.pem").problems)
//     std::cout << problem.path << ": " << problem.reason << "\n";
//
// A bundle may be replaced by rename at any time. Cutting it short in place while a program has it
// mapped kills that program (SIGBUS).
//
// Signatures are Ed25519; keys are PEM files as `openssl genpkey -algorithm ed25519` and
// `openssl pkey -pubout` make them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kiln/store.hpp"

namespace kiln {

/// What is in a bundle, without reading all of it.
struct BundleInfo {
  struct Part {
    std::string kernel, target;
    std::uint64_t binaries = 0, records = 0;
  };

  std::filesystem::path path;
  std::uint32_t version = 0;  ///< of the format
  std::uint64_t bytes = 0;    ///< of the file
  std::uint64_t binaries = 0, records = 0;
  std::string made_by;      ///< `kiln 0.1.0`
  std::vector<Part> parts;  ///< by kernel and target
  std::string signer;  ///< first 16 hexadecimal digits of the public key's SHA-256; empty: none
};

/// @throws UserError when the file is not a bundle, or its header or index is damaged;
/// EnvironmentError when it cannot be read.
BundleInfo bundle_info(const std::filesystem::path& bundle);

/// Lists the entries of a bundle, in the order of the file. StoreEntry::bytes counts the payload
/// alone, and `used` is unknown. Throws as bundle_info.
std::vector<StoreEntry> bundle_entries(const std::filesystem::path& bundle);

/// Reads the whole file and checks every checksum, every entry's key and, with a public key, the
/// signature. Problems are in the report, unless the file cannot be read at all (EnvironmentError).
VerifyReport verify_bundle(const std::filesystem::path& bundle,
                           const std::filesystem::path& public_key = {});

/// Copies its entries into a cache directory, where they are entries like any other; what is there
/// already is replaced. Returns how many. Nothing is copied from a bundle with any damage. Throws
/// as bundle_info; EnvironmentError for the directory.
std::size_t extract_bundle(const std::filesystem::path& bundle,
                           const std::filesystem::path& directory);

/// Writes one bundle with the entries of several; where keys are equal, the entry of the first
/// bundle is used. The result is signed if a private key is given. `output` is replaced as a whole,
/// and may be one of the inputs. The same inputs give the same bytes. Throws as bundle_info;
/// UserError for a key that is not an Ed25519 private key.
BundleInfo merge_bundles(std::span<const std::filesystem::path> inputs,
                         const std::filesystem::path& output,
                         const std::filesystem::path& private_key = {});

}  // namespace kiln
