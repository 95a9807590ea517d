// Bundles with a signature, and those who cannot make one.
#include <algorithm>
#include <functional>

#include <fcntl.h>

#include "bundle_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

cache::BundleRow& largest(Forgery& forgery) {
  return *std::ranges::max_element(forgery.rows, {}, &cache::BundleRow::payload_size);
}

}  // namespace

TEST_CASE("a signature is required where a key is given", "[cache][bundle][damage]") {
  const TemporaryDirectory folder;
  const KeyPair mine(folder.path(), 1), other(folder.path(), 2);
  const fs::path path = folder.path() / "a";
  const auto contents = small_contents();
  const auto refusal = [&](const KeyPair& key) { return why(Bundle::open(path, key.public_pem)); };

  write_bundle(path, contents);
  CHECK(refusal(mine).find("is not signed") != std::string::npos);
  write_bundle(path, contents, mine.private_pem);
  CHECK(refusal(mine).empty());
  CHECK(why(Bundle::open(path)).empty());  // not required: not looked at
  const auto bundle = open_bundle(path, mine.public_pem);
  CHECK(look_up(*bundle, contents).found == contents.size());
  CHECK(bundle->verify().ok());
  const Digest id = std::get<cache::PublicKey>(cache::PublicKey::load(mine.public_pem)).id();
  CHECK(std::get<BundleInfo>(bundle->info()).signer == to_hex(id).substr(0, 16));
  CHECK(refusal(other).find("is signed by " + to_hex(id).substr(0, 16) + ", not by") !=
        std::string::npos);
  CHECK(std::get<Failure>(Bundle::open(path, folder.path() / "none")).code == ENOENT);
  CHECK(why(Bundle::open(path, mine.private_pem)).find("private key") != std::string::npos);
}

TEST_CASE("a forger without the key is not believed", "[cache][bundle][damage]") {
  const TemporaryDirectory folder;
  const KeyPair mine(folder.path(), 1), other(folder.path(), 2);
  const fs::path path = folder.path() / "a";
  const auto contents = small_contents();
  write_bundle(path, contents, mine.private_pem);
  const Buffer whole = read_bytes(path);
  const auto refusal = [&](const Buffer& file) {
    write_bytes(path, file);
    CHECK(why(Bundle::open(path)).empty());  // every hash fits
    return why(Bundle::open(path, mine.public_pem));
  };
  CHECK(refusal(Forgery(whole).bytes()).empty());  // unchanged

  const std::vector<std::function<void(Forgery&)>> lies{
      [](Forgery& f) {  // another payload, with its hash
        auto& row = largest(f);
        f.at(row.payload_offset, 1)[0] ^= std::byte{1};
        row.payload_sha256 = sha256(f.at(row.payload_offset, row.payload_size));
      },
      [](Forgery& f) {  // two payloads changed for one another
        std::swap(f.rows[0].payload_offset, f.rows[3].payload_offset);
        std::swap(f.rows[0].payload_size, f.rows[3].payload_size);
        std::swap(f.rows[0].payload_sha256, f.rows[3].payload_sha256);
      },
      [](Forgery& f) { f.manifest[2] ^= std::byte{1}; },
      [](Forgery& f) { f.header.signature[0] ^= std::byte{1}; },
      [](Forgery& f) { f.header.signature = {}; },
      [](Forgery& f) { std::swap(f.header.binaries, f.header.records); },
      [](Forgery& f) { f.rest.push_back(std::byte{0}); },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    INFO("lie " << i);
    Forgery forgery(whole);
    lies[i](forgery);
    CHECK(refusal(forgery.bytes()).find("was changed after it was signed") != std::string::npos);
  }
  Forgery unsigned_again(whole);
  unsigned_again.header.key_id = {};
  unsigned_again.header.signature = {};
  CHECK(refusal(unsigned_again.bytes()).find("is not signed") != std::string::npos);
  // Signed by another's key under my name.
  write_bundle(path, contents, other.private_pem);
  Forgery renamed(read_bytes(path));
  renamed.header.key_id = Forgery(whole).header.key_id;
  CHECK(refusal(renamed.bytes()).find("was changed") != std::string::npos);
}

TEST_CASE("a signed bundle overwritten in place is not trusted anew", "[cache][bundle][damage]") {
  const TemporaryDirectory folder;
  const KeyPair mine(folder.path(), 1);
  const fs::path path = folder.path() / "a";
  auto contents = small_contents();
  write_bundle(path, contents, mine.private_pem);
  const auto bundle = open_bundle(path, mine.public_pem);
  const Buffer before = read_bytes(path);
  Forgery forgery(before);
  auto& row = largest(forgery);
  forgery.at(row.payload_offset, 1)[0] ^= std::byte{1};
  row.payload_sha256 = sha256(forgery.at(row.payload_offset, row.payload_size));
  const Buffer after = forgery.bytes();
  REQUIRE(after.size() == before.size());
  const int fd = ::open(path.c_str(), O_WRONLY);
  REQUIRE(::pwrite(fd, after.data(), after.size(), 0) == static_cast<ssize_t>(after.size()));
  ::close(fd);
  const Hits hits = look_up(*bundle, contents);
  CHECK(hits.wrong == 0);
  CHECK(hits.found == contents.size() - 1);
}
