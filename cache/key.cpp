#include "kiln/key.hpp"

#include <algorithm>

#include <openssl/evp.h>

#include "kiln/detail/key_builder.hpp"
#include "kiln/error.hpp"

namespace kiln {

Digest sha256(std::span<const std::byte> bytes) {
  // Fetched once, because a fetch takes longer than the digest of a short text.
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Digest digest;
  unsigned length = 0;
  if (!algorithm ||
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()),
                 &length, algorithm, nullptr) != 1 ||
      length != digest.size())
    throw EnvironmentError("EVP_Digest(SHA-256) failed: this OpenSSL build refuses SHA-256");
  return digest;
}

Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

std::string to_hex(const Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * digest.size());
  for (std::byte b : digest) {
    hex += kDigits[std::to_integer<unsigned>(b) >> 4];
    hex += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return hex;
}

std::string Key::value(std::string_view name) const {
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const KeyField& f) { return f.name == name; });
  return found == fields.end() ? std::string() : found->value;
}

std::string Key::explain() const {
  std::string text;
  for (const KeyField& field : fields) text += field.name + " = " + field.value + "\n";
  return text;
}

namespace {

void append_sized(std::string& out, std::string_view bytes) {
  const auto size = static_cast<std::uint64_t>(bytes.size());
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(size >> shift);
  out += bytes;
}

}  // namespace

namespace detail {

KeyBuilder::KeyBuilder(std::string_view kind, std::int64_t schema) {
  append('k', "kind", kind, std::string(kind));
  add("schema", schema);
}

void KeyBuilder::append(char type, std::string_view name, std::string_view encoded,
                        std::string shown) {
  encoded_ += type;
  append_sized(encoded_, name);
  append_sized(encoded_, encoded);
  fields_.push_back({std::string(name), std::move(shown), type});
}

KeyBuilder& KeyBuilder::add(std::string_view name, std::string_view value) {
  append('s', name, value, std::string(value));
  return *this;
}

KeyBuilder& KeyBuilder::add(std::string_view name, std::int64_t value) {
  append('i', name, std::to_string(value), std::to_string(value));
  return *this;
}

KeyBuilder& KeyBuilder::add(std::string_view name, std::span<const std::string> values) {
  std::string encoded, shown;
  for (const std::string& value : values) {
    append_sized(encoded, value);
    if (!shown.empty()) shown += ' ';
    shown += value;
  }
  append('l', name, encoded, std::move(shown));
  return *this;
}

KeyBuilder& KeyBuilder::add(std::string_view name, const Digest& value) {
  const std::string hex = to_hex(value);
  append('d', name, hex, hex);
  return *this;
}

KeyBuilder& KeyBuilder::made_with() {
  portable_size_ = encoded_.size();
  portable_fields_ = fields_.size();
  return *this;
}

Key KeyBuilder::finish() const {
  const std::string_view all = encoded_;
  const bool split = portable_fields_ != 0;
  return Key{sha256(all), sha256(split ? all.substr(0, portable_size_) : all),
             split ? portable_fields_ : fields_.size(), fields_};
}

}  // namespace detail

}  // namespace kiln
