#include "cache/signature.hpp"

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "cache/regular_file.hpp"

namespace kiln::cache {
namespace {

constexpr std::uint64_t kMaxPem = 64 << 10;
constexpr const char* kMakePrivate = "make one with: openssl genpkey -algorithm ed25519";
constexpr const char* kMakePublic = "make one with: openssl pkey -in PRIVATE_KEY -pubout";

/// A file's bytes, wiped from memory at the end.
struct Secret {
  std::vector<unsigned char> bytes;
  Secret() = default;
  Secret(Secret&&) = default;
  Secret& operator=(Secret&&) = default;
  ~Secret() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

std::variant<Secret, Failure> read_pem(const std::filesystem::path& path) {
  auto opened = open_regular(path, "a key");
  if (auto* failure = std::get_if<Failure>(&opened)) return std::move(*failure);
  const RegularFile& file = std::get<RegularFile>(opened);
  if (file.size > kMaxPem)
    return Failure{path.string() + " is too large for a key", "name a PEM file"};
  Secret secret;
  secret.bytes.resize(kMaxPem + 1);  // whole at once: a growing buffer would leave copies behind
  std::size_t size = 0;
  while (size < secret.bytes.size()) {
    const ssize_t got =
        ::read(file.fd.get(), secret.bytes.data() + size, secret.bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_failure("read", path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > kMaxPem) return Failure{path.string() + " is too large for a key", "name a PEM file"};
  secret.bytes.resize(size);
  return secret;
}

/// OpenSSL would ask on the terminal if it were given no callback.
int refuse_password(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

/// Leaves OpenSSL's list of this thread's errors as it was: the program may use OpenSSL too.
struct ErrorMark {
  ErrorMark() { ERR_set_mark(); }
  ~ErrorMark() { ERR_pop_to_mark(); }
  ErrorMark(const ErrorMark&) = delete;
  ErrorMark& operator=(const ErrorMark&) = delete;
};

using Read = EVP_PKEY*(BIO*, EVP_PKEY**, pem_password_cb*, void*);

std::shared_ptr<EVP_PKEY> parse(const Secret& pem, Read* read, bool* password) {
  const ErrorMark mark;
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(pem.bytes.data(), static_cast<int>(pem.bytes.size())), &BIO_free);
  EVP_PKEY* key = bio ? read(bio.get(), nullptr, &refuse_password, password) : nullptr;
  return {key, &EVP_PKEY_free};
}

struct LoadedKey {
  std::shared_ptr<EVP_PKEY> key;
  Digest id{};
};

std::variant<LoadedKey, Failure> load_key(const std::filesystem::path& path, bool want_private) {
  auto text = read_pem(path);
  if (auto* failure = std::get_if<Failure>(&text)) return std::move(*failure);
  const Secret& pem = std::get<Secret>(text);

  Read* const read = want_private ? &PEM_read_bio_PrivateKey : &PEM_read_bio_PUBKEY;
  Read* const other = want_private ? &PEM_read_bio_PUBKEY : &PEM_read_bio_PrivateKey;
  const char* const advice = want_private ? kMakePrivate : kMakePublic;
  bool password = false;
  const ErrorMark mark;
  LoadedKey loaded{parse(pem, read, &password)};
  if (!loaded.key) {
    if (want_private && password)
      return Failure{
          path.string() + " is protected by a password",
          "write the key without it to a file that only you can read: openssl pkey -in KEY -out "
          "PLAIN"};
    if (parse(pem, other, &password) || password)
      return Failure{path.string() + (want_private ? " holds a public key, not a private one"
                                                   : " holds a private key, not a public one"),
                     advice};
    return Failure{path.string() + " does not hold a " + (want_private ? "private" : "public") +
                       " key in PEM form",
                   advice};
  }
  if (EVP_PKEY_id(loaded.key.get()) != EVP_PKEY_ED25519)
    return Failure{path.string() + " holds a key that is not an Ed25519 key", kMakePrivate};
  std::array<unsigned char, 32> raw{};
  std::size_t size = raw.size();
  if (EVP_PKEY_get_raw_public_key(loaded.key.get(), raw.data(), &size) != 1 || size != raw.size())
    return Failure{path.string() + " holds a key that OpenSSL cannot use", advice};
  loaded.id = sha256(std::as_bytes(std::span(raw)));
  return loaded;
}

using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

std::variant<PublicKey, Failure> PublicKey::load(const std::filesystem::path& pem) {
  auto loaded = load_key(pem, false);
  if (auto* failure = std::get_if<Failure>(&loaded)) return std::move(*failure);
  PublicKey key;
  key.key_ = std::get<LoadedKey>(loaded).key;
  key.id_ = std::get<LoadedKey>(loaded).id;
  return key;
}

bool PublicKey::verifies(std::span<const std::byte> message, const Signature& signature) const {
  const ErrorMark mark;
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  return context &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key_.get()) == 1 &&
         EVP_DigestVerify(context.get(), raw(signature), signature.size(), raw(message),
                          message.size()) == 1;
}

std::variant<PrivateKey, Failure> PrivateKey::load(const std::filesystem::path& pem) {
  auto loaded = load_key(pem, true);
  if (auto* failure = std::get_if<Failure>(&loaded)) return std::move(*failure);
  PrivateKey key;
  key.key_ = std::get<LoadedKey>(loaded).key;
  key.id_ = std::get<LoadedKey>(loaded).id;
  return key;
}

std::optional<Signature> PrivateKey::sign(std::span<const std::byte> message) const {
  const ErrorMark mark;
  const Context context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  Signature signature{};
  std::size_t size = signature.size();
  const bool done =
      context && EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_.get()) == 1 &&
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                     raw(message), message.size()) == 1 &&
      size == signature.size();
  if (!done) return std::nullopt;
  return signature;
}

}  // namespace kiln::cache
