#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "bundle_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::PrivateKey;
using cache::PublicKey;

namespace {

std::array<unsigned char, 32> from_hex(std::string_view text) {
  std::array<unsigned char, 32> raw{};
  for (std::size_t i = 0; i < raw.size(); ++i)
    raw[i] =
        static_cast<unsigned char>(std::stoul(std::string(text.substr(2 * i, 2)), nullptr, 16));
  return raw;
}

PrivateKey private_key(const fs::path& path) {
  auto loaded = PrivateKey::load(path);
  INFO(why(loaded));
  REQUIRE(std::holds_alternative<PrivateKey>(loaded));
  return std::get<PrivateKey>(loaded);
}

PublicKey public_key(const fs::path& path) {
  auto loaded = PublicKey::load(path);
  INFO(why(loaded));
  REQUIRE(std::holds_alternative<PublicKey>(loaded));
  return std::get<PublicKey>(loaded);
}

/// `seed` as a private key's file, protected by a password.
void write_protected(const fs::path& path, bool traditional) {
  const std::array<unsigned char, 32> seed{1};
  EVP_PKEY* key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size());
  BIO* out = BIO_new_file(path.c_str(), "w");
  char password[] = "secret";
  REQUIRE((traditional ? PEM_write_bio_PrivateKey(out, key, EVP_aes_128_cbc(),
                                                  reinterpret_cast<unsigned char*>(password), 6,
                                                  nullptr, nullptr)
                       : PEM_write_bio_PKCS8PrivateKey(out, key, EVP_aes_256_cbc(), password, 6,
                                                       nullptr, nullptr)) == 1);
  BIO_free(out);
  EVP_PKEY_free(key);
}

}  // namespace

// RFC 8032, 7.1, test 2.
TEST_CASE("signatures agree with the published vectors", "[cache][signature]") {
  const TemporaryDirectory folder;
  const fs::path secret = folder.path() / "secret", shown = folder.path() / "shown";
  KeyPair::write(secret, "PRIVATE KEY",
                 KeyPair::pem_body(
                     KeyPair::kPrivate,
                     from_hex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")));
  const auto raw = from_hex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
  KeyPair::write(shown, "PUBLIC KEY", KeyPair::pem_body(KeyPair::kPublic, raw));
  const std::array<std::byte, 1> message{std::byte{0x72}};

  const PrivateKey key = private_key(secret);
  const auto signature = key.sign(message);
  REQUIRE(signature);
  Digest front{}, back{};
  std::copy_n(signature->begin(), 32, front.begin());
  std::copy_n(signature->begin() + 32, 32, back.begin());
  CHECK(to_hex(front) == "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da");
  CHECK(to_hex(back) == "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00");

  const PublicKey verifier = public_key(shown);
  CHECK(verifier.id() == sha256(std::as_bytes(std::span(raw))));
  CHECK(verifier.id() == key.id());
  CHECK(verifier.verifies(message, *signature));
  CHECK_FALSE(verifier.verifies({}, *signature));
}

TEST_CASE("a signature fits one message and one key", "[cache][signature]") {
  const TemporaryDirectory folder;
  const KeyPair mine(folder.path(), 1), other(folder.path(), 2);
  const Buffer message = make_bytes(160);
  const auto signature = private_key(mine.private_pem).sign(message).value();
  const PublicKey key = public_key(mine.public_pem);
  CHECK(key.verifies(message, signature));
  CHECK_FALSE(public_key(other.public_pem).verifies(message, signature));
  for (std::size_t at = 0; at < message.size(); ++at) {
    Buffer changed = message;
    changed[at] ^= std::byte{1} << (at % 8);
    CHECK_FALSE(key.verifies(changed, signature));
  }
  for (std::size_t at = 0; at < signature.size(); ++at) {
    auto changed = signature;
    changed[at] ^= std::byte{1} << (at % 8);
    CHECK_FALSE(key.verifies(message, changed));
  }
  CHECK_FALSE(key.verifies(message, cache::Signature{}));
}

TEST_CASE("what is no Ed25519 key is refused with a reason", "[cache][signature]") {
  const TemporaryDirectory folder;
  const KeyPair keys(folder.path());
  const fs::path path = folder.path() / "key";
  const auto of_private = [&] { return why(PrivateKey::load(path)); };
  const auto of_public = [&] { return why(PublicKey::load(path)); };
  const auto says = [](const std::string& text, const char* what) {
    INFO(text);
    return text.find(what) != std::string::npos && text.find("key") != std::string::npos;
  };

  CHECK(std::get<Failure>(PublicKey::load(path)).code == ENOENT);
  for (const std::string text : {"", "hello", "-----BEGIN PRIVATE KEY-----\nAAAA\n"}) {
    write_bytes(path, to_buffer(text));
    CHECK(says(of_private(), "does not hold a private key"));
    CHECK(says(of_public(), "does not hold a public key"));
  }
  const auto pem = read_bytes(keys.private_pem);
  for (std::size_t size = 0; size + 10 < pem.size(); size += 3) {
    write_bytes(path, std::span(pem).first(size));
    CHECK(says(of_private(), "does not hold a private key"));
  }
  write_bytes(path, read_bytes(keys.public_pem));
  CHECK(says(of_private(), "holds a public key"));
  write_bytes(path, pem);
  CHECK(says(of_public(), "holds a private key"));
  write_bytes(path, make_bytes(65'537));
  CHECK(says(of_public(), "too large"));

  std::array<unsigned char, 32> raw{1};
  std::string other(KeyPair::kPrivate);
  other[11] = '\x6e';  // X25519: agrees on keys, signs nothing
  KeyPair::write(path, "PRIVATE KEY", KeyPair::pem_body(other, raw));
  CHECK(says(of_private(), "not an Ed25519"));
  other = KeyPair::kPublic;
  other[8] = '\x6e';
  KeyPair::write(path, "PUBLIC KEY", KeyPair::pem_body(other, raw));
  CHECK(says(of_public(), "not an Ed25519"));
}

TEST_CASE("a password is never asked for", "[cache][signature]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "key";
  for (const bool traditional : {false, true}) {
    write_protected(path, traditional);
    CHECK(why(PrivateKey::load(path)).find("protected by a password") != std::string::npos);
    CHECK(why(PublicKey::load(path)).find("holds a private key") != std::string::npos);
  }
}

TEST_CASE("a key file is not waited for, and must not be writable by others",
          "[cache][signature]") {
  const TemporaryDirectory folder;
  const KeyPair keys(folder.path());
  CHECK(why(PublicKey::load(folder.path())).find("is a directory") != std::string::npos);
  REQUIRE(::mkfifo((folder.path() / "fifo").c_str(), 0600) == 0);
  CHECK(why(PublicKey::load(folder.path() / "fifo")).find("is not a file") != std::string::npos);
  CHECK(why(PrivateKey::load("/dev/zero")).find("is not a file") != std::string::npos);
  fs::permissions(keys.public_pem, fs::perms(0666));
  CHECK(why(PublicKey::load(keys.public_pem)).find("writable by others") != std::string::npos);
}

TEST_CASE("OpenSSL's errors of the program are left alone", "[cache][signature]") {
  const TemporaryDirectory folder;
  write_bytes(folder.path() / "key", make_bytes(10));
  ERR_clear_error();
  CHECK_FALSE(why(PrivateKey::load(folder.path() / "key")).empty());
  CHECK(ERR_peek_error() == 0);
  ERR_put_error(ERR_LIB_USER, 0, 7, __FILE__, __LINE__);
  CHECK_FALSE(why(PublicKey::load(folder.path() / "key")).empty());
  CHECK(ERR_GET_REASON(ERR_get_error()) == 7);
  CHECK(ERR_get_error() == 0);
}
