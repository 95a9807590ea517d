// What the bundle's tests share: keys of several architectures, small bundles, signing keys, and a
// forger who makes every hash fit again.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <openssl/evp.h>

#include "cache/bundle.hpp"
#include "cache/bundle_layout.hpp"
#include "cache/signature.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

namespace kiln::test {

using cache::Bundle;
using cache::BundleWriter;
using cache::Failure;

inline Key target_key(const std::string& kernel, const std::string& target, int config,
                      const char* kind = "binary", const std::string& compiler = "13.0") {
  return detail::KeyBuilder(kind, 2)
      .add("kernel", kernel)
      .add("block", std::int64_t{config})
      .add("target", target)
      .made_with()
      .add("compiler", compiler)
      .finish();
}

inline Buffer to_buffer(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline bool equal(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::ranges::equal(a, b);
}

/// What went wrong; empty when nothing did.
template <class T>
std::string why(const std::variant<T, Failure>& result) {
  const auto* failure = std::get_if<Failure>(&result);
  return failure != nullptr ? failure->what : "";
}

inline std::unique_ptr<Bundle> open_bundle(const fs::path& path, const fs::path& key = {}) {
  auto opened = Bundle::open(path, key);
  INFO(why(opened));
  REQUIRE(std::holds_alternative<std::unique_ptr<Bundle>>(opened));
  return std::get<std::unique_ptr<Bundle>>(std::move(opened));
}

struct Content {
  EntryKind kind;
  Key key;
  Buffer payload;
};

/// Three binaries and a record, for two architectures.
inline std::vector<Content> small_contents() {
  return {{EntryKind::binary, target_key("gemm", "sm_80", 128), make_bytes(70, 1)},
          {EntryKind::binary, target_key("gemm", "sm_90a", 128), make_bytes(1, 2)},
          {EntryKind::binary, target_key("scan", "sm_90a", 128), {}},
          {EntryKind::record, target_key("gemm", "sm_90a", 0, "record"),
           to_buffer("{\"winner\":{\"block\":128}}")}};
}

inline void write_bundle(const fs::path& path, const std::vector<Content>& contents,
                         const fs::path& private_key = {}) {
  BundleWriter writer;
  for (const Content& c : contents) writer.add(c.kind, c.key, c.payload);
  const auto failure = writer.write(path, "kiln 1.2.3", private_key);
  INFO((failure ? failure->what : ""));
  REQUIRE_FALSE(failure);
}

/// How many of the contents are found; anything else than the right bytes counts as wrong.
struct Hits {
  std::size_t found = 0, wrong = 0;
};
inline Hits look_up(Bundle& bundle, const std::vector<Content>& contents) {
  Hits hits;
  for (const Content& c : contents) {
    const auto entry = bundle.find(c.kind, c.key);
    hits.found += entry.has_value();
    hits.wrong += entry && !(entry->key.fields == c.key.fields && equal(entry->payload, c.payload));
    for (const auto& e : bundle.find_portable(c.kind, c.key.portable))
      hits.wrong += !(e.key == c.key && equal(e.payload, c.payload));
  }
  return hits;
}

/// An Ed25519 pair as PEM files. The same seed makes the same pair.
class KeyPair {
 public:
  explicit KeyPair(const fs::path& folder, unsigned char seed = 1)
      : private_pem(folder / ("private" + std::to_string(seed) + ".pem")),
        public_pem(folder / ("public" + std::to_string(seed) + ".pem")) {
    std::array<unsigned char, 32> secret{}, shown{};
    secret.fill(seed);
    std::size_t size = shown.size();
    EVP_PKEY* key =
        EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, secret.data(), secret.size());
    const bool made = EVP_PKEY_get_raw_public_key(key, shown.data(), &size) == 1;
    EVP_PKEY_free(key);
    if (!made) throw std::runtime_error("no Ed25519");
    write(private_pem, "PRIVATE KEY", pem_body(kPrivate, secret));
    write(public_pem, "PUBLIC KEY", pem_body(kPublic, shown));
  }

  const fs::path private_pem, public_pem;

  static void write(const fs::path& path, const std::string& label, const std::string& body) {
    write_bytes(path, to_buffer("-----BEGIN " + label + "-----\n" + body + "\n-----END " + label +
                                "-----\n"));
    fs::permissions(path, fs::perms(0600));
  }
  /// The DER around a raw key, in base 64.
  static std::string pem_body(std::string_view der, const std::array<unsigned char, 32>& raw) {
    std::string all(der);
    all.append(reinterpret_cast<const char*>(raw.data()), raw.size());
    std::string text(2 * all.size(), '\0');
    text.resize(static_cast<std::size_t>(EVP_EncodeBlock(
        reinterpret_cast<unsigned char*>(text.data()),
        reinterpret_cast<const unsigned char*>(all.data()), static_cast<int>(all.size()))));
    return text;
  }
  static constexpr std::string_view kPrivate{
      "\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20", 16};
  static constexpr std::string_view kPublic{"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12};
};

/// A bundle taken to pieces. What is changed in them gets hashes that fit.
struct Forgery {
  cache::BundleHeader header;
  std::vector<cache::BundleRow> rows;
  std::vector<cache::BundlePortable> portables;
  Buffer manifest, rest;  ///< rest: keys and payloads
  std::array<std::uint64_t, cache::kBundleBuckets> row_ends{}, portable_ends{};

  explicit Forgery(const Buffer& file) {
    using namespace cache;
    if (decode(file, header)) throw std::runtime_error("not a bundle");
    const BundleParts parts = BundleParts::of(header).value();
    const std::span<const std::byte> bytes(file);
    for (std::size_t i = 0; i < kBundleBuckets; ++i) {
      const auto bucket = [&](std::uint64_t table) {
        return decode_bucket(bytes.subspan(table + i * BundleBucket::kSize).first<40>()).end;
      };
      row_ends[i] = bucket(BundleParts::kRowBuckets);
      portable_ends[i] = bucket(BundleParts::kPortableBuckets);
    }
    for (std::size_t i = 0; i < header.rows(); ++i) {
      rows.push_back(decode_row(bytes.subspan(BundleParts::kRows + i * 160).first<160>()));
      portables.push_back(decode_portable(bytes.subspan(parts.portables + i * 40).first<40>()));
    }
    const auto part = [&](std::uint64_t begin, std::uint64_t end) {
      return Buffer(file.begin() + static_cast<std::ptrdiff_t>(begin),
                    file.begin() + static_cast<std::ptrdiff_t>(end));
    };
    manifest = part(parts.manifest, parts.keys);
    rest = part(parts.keys, file.size());
  }

  /// The bytes of a key or payload; offsets are the file's.
  std::span<std::byte> at(std::uint64_t offset, std::uint64_t size) {
    const std::uint64_t begin =
        cache::BundleParts::kRows + rows.size() * (160 + 40) + manifest.size();
    return std::span(rest).subspan(offset - begin, size);
  }
  void rehash_key(cache::BundleRow& row) {
    row.key_sha256 = sha256(at(row.key_offset, row.key_size));
  }

  Buffer bytes(bool own_size = true) {
    using namespace cache;
    Buffer row_bytes, portable_bytes, tables;
    for (const auto& row : rows) append(row_bytes, row);
    for (const auto& portable : portables) append(portable_bytes, portable);
    const auto add_table = [&](const auto& ends, const Buffer& items, std::size_t size) {
      std::uint64_t begin = 0;
      for (const std::uint64_t end : ends) {
        Digest digest{};
        if (end >= begin && end * size <= items.size())
          digest = sha256(std::span(items).subspan(begin * size, (end - begin) * size));
        append(tables, BundleBucket{end, digest});
        begin = end;
      }
    };
    add_table(row_ends, row_bytes, BundleRow::kSize);
    add_table(portable_ends, portable_bytes, BundlePortable::kSize);
    header.tables = sha256(tables);
    header.manifest = sha256(manifest);
    const std::uint64_t size = BundleHeader::kSize + tables.size() + row_bytes.size() +
                               portable_bytes.size() + manifest.size() + rest.size();
    if (own_size) header.size = size;
    Buffer file = encode(header);
    for (const Buffer* part : {&tables, &row_bytes, &portable_bytes, &manifest, &rest})
      file.insert(file.end(), part->begin(), part->end());
    return file;
  }
};

}  // namespace kiln::test
