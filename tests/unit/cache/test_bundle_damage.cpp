// Bundles that were cut or changed, and bytes that are none.
#include <algorithm>
#include <string>
#include <vector>

#include <fcntl.h>

#include "cache/bundle_reader.hpp"
#include "damage_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::BundleParts;
using cache::BundleReader;

TEST_CASE("a bundle cut anywhere does not open", "[cache][bundle][damage][slow]") {
  Damage d;
  const int fd = ::open(d.path.c_str(), O_WRONLY);
  std::size_t opened = 0;
  for (std::size_t size = d.whole.size(); size-- > 0;) {
    REQUIRE(::ftruncate(fd, static_cast<off_t>(size)) == 0);
    opened += why(Bundle::open(d.path)).empty();
  }
  ::close(fd);
  CHECK(opened == 0);
  d.whole.push_back(std::byte{0});
  CHECK(d.refusal(d.whole).find("should have") != std::string::npos);
}

TEST_CASE("one changed bit anywhere gives no wrong byte, and is found",
          "[cache][bundle][damage][slow]") {
  Damage d;
  const int fd = ::open(d.path.c_str(), O_WRONLY);
  const std::uint64_t entries = Forgery(d.whole).header.rows();
  const std::uint64_t portables_at = BundleParts::kRows + entries * 160;
  const std::uint64_t manifest_at = portables_at + entries * 40;
  const std::uint64_t keys_at = manifest_at + Forgery(d.whole).header.manifest_size;
  std::size_t wrong = 0, not_noticed = 0, opened_with_bad_tables = 0, lost_too_much = 0;
  for (std::size_t at = 0; at < d.whole.size(); ++at) {
    const std::byte changed = d.whole[at] ^ std::byte{1} << (at % 8);
    REQUIRE(::pwrite(fd, &changed, 1, static_cast<off_t>(at)) == 1);
    const auto opened = Bundle::open(d.path);
    if (const auto* bundle = std::get_if<std::unique_ptr<Bundle>>(&opened)) {
      const Hits hits = look_up(**bundle, d.contents);
      opened_with_bad_tables += at < BundleParts::kRows;
      wrong += hits.wrong;
      not_noticed += (*bundle)->verify().ok();
      // Each bit concerns one entry, or (in the index) those of one bucket, which has one here.
      lost_too_much += hits.found + 1 < d.contents.size();
      // Damage to what no look-up by digest reads loses nothing.
      if (at >= portables_at && at < keys_at) lost_too_much += hits.found < d.contents.size();
      (*bundle)->each_key(EntryKind::binary, [&](const Key& key) {
        wrong += std::ranges::none_of(d.contents, [&](const Content& c) {
          return c.key == key && c.key.fields == key.fields && c.key.portable == key.portable;
        });
        return true;
      });
    }
    REQUIRE(::pwrite(fd, &d.whole[at], 1, static_cast<off_t>(at)) == 1);
  }
  ::close(fd);
  CHECK(wrong == 0);
  CHECK(not_noticed == 0);
  CHECK(opened_with_bad_tables == 0);
  CHECK(lost_too_much == 0);
  CHECK(look_up(*open_bundle(d.path), d.contents).found == d.contents.size());
}

TEST_CASE("a damaged entry leaves the others, and says which it is", "[cache][bundle][damage]") {
  Damage d;
  d.whole.back() ^= std::byte{1};
  write_bytes(d.path, d.whole);
  const auto bundle = open_bundle(d.path);
  std::vector<std::string> told;
  bundle->when_damaged([&](const std::string& what) { told.push_back(what); });
  for (int again = 0; again < 2; ++again)
    CHECK(look_up(*bundle, d.contents).found == d.contents.size() - 1);
  REQUIRE(told.size() == 1);
  CHECK(told[0].find(d.path.string() + " has a damaged entry, ") == 0);
  const VerifyReport report = bundle->verify();
  CHECK(report.checked == d.contents.size());
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].path == d.path);
  CHECK(report.problems[0].reason.find("its contents are damaged") != std::string::npos);
}

TEST_CASE("a bundle of another version is told from a damaged one", "[cache][bundle][damage]") {
  Damage d;
  for (const std::uint32_t version : {0u, 2u, 0xffffffffu}) {
    Forgery forgery(d.whole);
    forgery.header.version = version;
    CHECK(d.refusal(forgery.bytes()).find("has format version " + std::to_string(version)) !=
          std::string::npos);
  }
}

TEST_CASE("a reader of arbitrary bytes stays within them", "[cache][bundle][damage]") {
  Damage d;
  unsigned seed = 1;
  for (int round = 0; round < 1000; ++round) {
    Forgery forgery(d.whole);
    for (int change = 0; change < 3; ++change) {
      seed = seed * 1664525u + 1013904223u;
      auto* row = reinterpret_cast<std::byte*>(&forgery.rows[(seed >> 8) % 4]);
      row[(seed >> 12) % sizeof(cache::BundleRow)] = static_cast<std::byte>(seed >> 24);
    }
    const Buffer file = forgery.bytes();
    const auto opened = BundleReader::open(file);
    REQUIRE(std::holds_alternative<BundleReader>(opened));
    const BundleReader& reader = std::get<BundleReader>(opened);
    reader.each_row([&](const cache::BundleRow& row) {
      if (const auto key = reader.key(row)) CHECK(key->digest == row.digest);
      if (const auto payload = reader.payload(row))
        CHECK(payload->data() + payload->size() <= file.data() + file.size());
      return true;
    });
    for (const Content& c : d.contents) reader.find_portable(c.kind, c.key.portable);
    reader.check();
  }
}
