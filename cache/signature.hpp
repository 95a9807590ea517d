// Ed25519 signatures, by OpenSSL. Keys are PEM files:
//   openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out pub.pem
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "cache/file_system.hpp"
#include "kiln/key.hpp"

struct evp_pkey_st;  // OpenSSL's EVP_PKEY

namespace kiln::cache {

using Signature = std::array<std::byte, 64>;

/// Safe from any number of threads. Loading refuses a file that is not regular, is writable by
/// others, is larger than 64 KiB or holds no Ed25519 key; it never asks for a password.
class PublicKey {
 public:
  static std::variant<PublicKey, Failure> load(const std::filesystem::path& pem);

  /// SHA-256 of the 32 raw bytes.
  const Digest& id() const { return id_; }
  bool verifies(std::span<const std::byte> message, const Signature& signature) const;

 private:
  std::shared_ptr<evp_pkey_st> key_;
  Digest id_{};
};

/// As PublicKey. Keys protected by a password are refused.
class PrivateKey {
 public:
  static std::variant<PrivateKey, Failure> load(const std::filesystem::path& pem);

  /// The identity of the public key that belongs to this private key.
  const Digest& id() const { return id_; }
  /// Nothing when OpenSSL fails.
  std::optional<Signature> sign(std::span<const std::byte> message) const;

 private:
  std::shared_ptr<evp_pkey_st> key_;
  Digest id_{};
};

}  // namespace kiln::cache
