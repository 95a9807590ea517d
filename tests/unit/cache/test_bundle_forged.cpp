// Bundles made by somebody who wants to be believed: every hash fits, and what it covers lies.
#include <algorithm>
#include <functional>

#include "damage_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::BundleParts;

namespace {

constexpr std::uint64_t kHuge = ~std::uint64_t{0};

}  // namespace

TEST_CASE("headers that promise too much are refused", "[cache][bundle][damage]") {
  Damage d;
  struct Lie {
    std::function<void(cache::BundleHeader&)> tell;
    const char* refusal;
  };
  const char* const wrong = "inconsistent";
  const std::vector<Lie> lies{
      {[&](auto& h) { h.binaries = kHuge; }, wrong},
      {[&](auto& h) { h.records = kHuge; }, wrong},
      {[&](auto& h) { h.binaries = kHuge - h.records + 1; }, wrong},  // a sum of zero
      {[&](auto& h) { h.binaries = kHuge / 160; }, wrong},
      {[&](auto& h) { h.binaries = kHuge / 200 + 1; }, wrong},
      {[&](auto& h) { h.binaries = h.records = (h.size - BundleParts::kRows) / 200; }, wrong},
      {[&](auto& h) { h.binaries += 1; }, "damaged index"},
      {[&](auto& h) { h.binaries -= 1; }, "damaged index"},
      {[&](auto& h) { h.manifest_size = kHuge; }, wrong},
      {[&](auto& h) { h.manifest_size = h.size; }, wrong},
      {[&](auto& h) { h.keys_size = kHuge; }, wrong},
      {[&](auto& h) { h.keys_size = kHuge - h.manifest_size; }, wrong},
      {[&](auto& h) { h.keys_size = h.size; }, wrong},
      {[&](auto& h) { h.size = kHuge; }, "should have"},
      {[&](auto& h) { h.size += 1; }, "should have"},
      {[&](auto& h) { h.size = 0; }, "should have"},
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    INFO("lie " << i);
    Forgery forgery(d.whole);
    lies[i].tell(forgery.header);
    CHECK(d.refusal(forgery.bytes(false)).find(lies[i].refusal) != std::string::npos);
  }
  // The size is believed only if the file has it; then the rest must fit into it.
  for (const std::size_t size : {0, 1, 255, 256, 257, 20735, 20736}) {
    cache::BundleHeader header;
    header.version = cache::kBundleVersion;
    header.size = size;
    Buffer file = encode(header);
    file.resize(size);
    CHECK_FALSE(d.refusal(file).empty());
  }
}

TEST_CASE("bucket tables that cannot be right are refused", "[cache][bundle][damage]") {
  Damage d;
  for (const std::uint64_t last : {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{5}, kHuge}) {
    Forgery rows(d.whole), portables(d.whole);
    rows.row_ends[255] = last;
    CHECK(d.refusal(rows.bytes()).find("damaged index") != std::string::npos);
    portables.portable_ends[255] = last;
    CHECK(d.refusal(portables.bytes()).find("damaged index") != std::string::npos);
  }
  Forgery middle(d.whole);
  middle.row_ends[0] = kHuge;
  CHECK(d.refusal(middle.bytes()).find("damaged index") != std::string::npos);
}

TEST_CASE("rows that point anywhere are not followed", "[cache][bundle][damage]") {
  Damage d;
  const std::uint64_t size = d.whole.size();
  const std::vector<std::function<void(cache::BundleRow&)>> lies{
      [&](auto& r) { r.key_offset = kHuge; },
      [&](auto& r) { r.key_offset = kHuge - r.key_size + 1; },
      [&](auto& r) { r.key_offset = 0; },
      [&](auto& r) { r.key_offset = size; },
      [&](auto& r) { r.key_size = 0xffffffff; },
      [&](auto& r) { r.key_size = 0; },
      [&](auto& r) { r.key_size = cache::kMaxBundleKey + 1; },
      [&](auto& r) { r.payload_offset = kHuge; },
      [&](auto& r) { r.payload_offset = kHuge / 64 * 64; },
      [&](auto& r) { r.payload_offset = 0; },
      [&](auto& r) { r.payload_offset = cache::aligned(size); },
      [&](auto& r) { r.payload_offset += 1; },
      [&](auto& r) { r.payload_size = kHuge; },
      [&](auto& r) { r.payload_size = kHuge - r.payload_offset + 1; },
      [&](auto& r) { r.payload_size = size; },
      [&](auto& r) { r.kind = 2; },
      [&](auto& r) { r.kind = 0xffffffff; },
      [&](auto& r) { r.digest[0] ^= std::byte{1}; },  // lies in another bucket
  };
  for (std::size_t i = 0; i < lies.size(); ++i)
    for (std::size_t row = 0; row < d.contents.size(); ++row) {
      INFO("lie " << i << ", row " << row);
      Forgery forgery(d.whole);
      lies[i](forgery.rows[row]);
      d.check_not_found(forgery.bytes(), d.contents.size() - 1);
    }
}

TEST_CASE("rows out of order or twice are reported", "[cache][bundle][damage]") {
  Damage d;
  Forgery twice(d.whole);
  twice.rows[1] = twice.rows[0];
  write_bytes(d.path, twice.bytes());
  auto bundle = open_bundle(d.path);
  CHECK(look_up(*bundle, d.contents).wrong == 0);
  CHECK_FALSE(bundle->verify().ok());
  std::size_t seen = 0;  // what lies in one place is read once, so that many rows cost no more
  CHECK(bundle->each_entry([&](EntryKind, const cache::StoredEntry&) { ++seen; }).has_value());
  CHECK(seen == d.contents.size() - 1);

  Forgery swapped(d.whole);
  std::swap(swapped.rows[0].payload_offset, swapped.rows[3].payload_offset);
  write_bytes(d.path, swapped.bytes());
  bundle = open_bundle(d.path);
  CHECK(look_up(*bundle, d.contents).wrong == 0);
  CHECK_FALSE(bundle->verify().ok());
}

TEST_CASE("a second entry under one digest is reported", "[cache][bundle][damage]") {
  Damage d;
  Forgery forgery(d.whole);
  const auto first = std::to_integer<std::size_t>(forgery.rows[0].digest[0]);
  const auto second = std::to_integer<std::size_t>(forgery.rows[1].digest[0]);
  forgery.rows[1].digest = forgery.rows[0].digest;
  for (std::size_t b = first; b < second; ++b) forgery.row_ends[b] = 2;
  write_bytes(d.path, forgery.bytes());
  const auto bundle = open_bundle(d.path);
  std::size_t rows = 0;
  CHECK(bundle->each_entry([&](EntryKind, const cache::StoredEntry&) { ++rows; }).has_value());
  CHECK(rows == d.contents.size() - 1);
  CHECK(bundle->verify().problems.at(0).reason.find("row 1 of the index") != std::string::npos);
}

TEST_CASE("a key is at most a megabyte", "[cache][bundle][damage]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a";
  Key key = target_key("gemm", "sm_80", 1);
  key.fields.push_back({"large", "", 's'});
  const std::size_t others = cache::encode_fields(key).size();
  key.fields.back().value.assign(cache::kMaxBundleKey - others, 'x');
  write_bundle(path, {{EntryKind::binary, key, {}}});
  CHECK(open_bundle(path)->find(EntryKind::binary, key));
  CHECK(open_bundle(path)->verify().ok());

  // One byte more, and all that tells of it.
  Forgery forgery(read_bytes(path));
  key.fields.back().value += 'x';
  auto& row = forgery.rows[0];
  forgery.rest = cache::encode_fields(key);
  row.key_sha256 = sha256(forgery.rest);
  row.key_size += 1;
  forgery.header.keys_size += 1;
  row.payload_offset = cache::aligned(row.key_offset + row.key_size);
  forgery.rest.resize(row.payload_offset - row.key_offset);
  write_bytes(path, forgery.bytes());
  CHECK_FALSE(open_bundle(path)->find(EntryKind::binary, key));
  CHECK(open_bundle(path)->verify().problems.size() == 1);
}

TEST_CASE("many rows over one large payload cost no more than one", "[cache][bundle][damage]") {
  // 20 000 rows, each with a megabyte: hashing them all would take minutes.
  constexpr std::size_t kRows = 20'000;
  Damage d;
  write_bundle(d.path, {{EntryKind::binary, d.contents[0].key, make_bytes(1 << 20)}});
  Forgery forgery(read_bytes(d.path));
  const cache::BundleRow row = forgery.rows[0];
  const std::uint64_t moved = (kRows - 1) * 200;
  Buffer space(cache::aligned(row.payload_offset + moved) - row.payload_offset - moved);
  forgery.rest.insert(forgery.rest.begin() + static_cast<std::ptrdiff_t>(row.key_size),
                      space.begin(), space.end());
  forgery.rows.clear();
  forgery.portables.clear();
  for (std::size_t i = 0; i < kRows; ++i) {
    cache::BundleRow copy = row;
    copy.digest[30] = static_cast<std::byte>(i >> 8);
    copy.digest[31] = static_cast<std::byte>(i);
    copy.key_offset += moved;
    copy.payload_offset = cache::aligned(row.payload_offset + moved);
    forgery.rows.push_back(copy);
    forgery.portables.push_back({row.portable, i});
  }
  std::ranges::sort(forgery.rows, {}, &cache::BundleRow::digest);
  for (auto& end : forgery.row_ends) end = end == 0 ? 0 : kRows;
  for (auto& end : forgery.portable_ends) end = end == 0 ? 0 : kRows;
  forgery.header.binaries = kRows;
  write_bytes(d.path, forgery.bytes());
  const auto bundle = open_bundle(d.path);
  CHECK(bundle->find_portable(EntryKind::binary, row.portable).size() == 1);
  std::size_t keys = 0, entries = 0;
  bundle->each_key(EntryKind::binary, [&](const Key&) { return ++keys > 0; });
  CHECK(keys == 1);
  CHECK(bundle->each_entry([&](EntryKind, const cache::StoredEntry&) { ++entries; }).has_value());
  CHECK(entries == 1);
  CHECK(bundle->verify().checked == 1);
}

TEST_CASE("keys that are no keys are not found", "[cache][bundle][damage]") {
  Damage d;
  const auto set = [](std::span<std::byte> bytes, std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  };
  // portablefields, count, then the first field: type, length and name.
  const std::vector<std::function<void(std::span<std::byte>)>> lies{
      [&](auto key) { set(key, 0, 0xffffffff); }, [&](auto key) { set(key, 4, 0xffffffff); },
      [&](auto key) { set(key, 4, 1); },          [&](auto key) { set(key, 4, 5); },
      [&](auto key) { set(key, 4, 7); },          [&](auto key) { key[8] = std::byte{'x'}; },
      [&](auto key) { key[8] = std::byte{0}; },   [&](auto key) { set(key, 9, 0xffffffff); },
      [&](auto key) { set(key, 9, 3); },          [&](auto key) { set(key, 9, 0x7fffffff); },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    INFO("lie " << i);
    Forgery forgery(d.whole);
    auto& row = forgery.rows[1];
    lies[i](forgery.at(row.key_offset, row.key_size));
    forgery.rehash_key(row);
    d.check_not_found(forgery.bytes(), d.contents.size() - 1);
  }
}

TEST_CASE("a second index that lies finds nothing wrong", "[cache][bundle][damage]") {
  Damage d;
  const std::vector<std::function<void(Forgery&)>> lies{
      [&](Forgery& f) { f.portables[0].row = kHuge; },
      [&](Forgery& f) { f.portables[0].row = f.rows.size(); },
      [&](Forgery& f) { f.portables[0].row = f.portables[1].row; },
      [&](Forgery& f) { std::swap(f.portables[0].row, f.portables[1].row); },
      [&](Forgery& f) { f.portables[0].portable[31] ^= std::byte{1}; },
      [&](Forgery& f) { f.rows[0].portable[31] ^= std::byte{1}; },
      [&](Forgery& f) { std::swap(f.portables[0], f.portables[1]); },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    INFO("lie " << i);
    Forgery forgery(d.whole);
    lies[i](forgery);
    d.check_not_found(forgery.bytes(), d.contents.size());
  }
}

TEST_CASE("a second index out of order is reported", "[cache][bundle][damage]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a";
  write_bundle(path, {{EntryKind::binary, target_key("a", "sm_80", 1, "binary", "12"), {}},
                      {EntryKind::binary, target_key("a", "sm_80", 1, "binary", "13"), {}}});
  Forgery swapped(read_bytes(path)), misplaced(read_bytes(path));
  std::swap(swapped.portables[0].row, swapped.portables[1].row);
  write_bytes(path, swapped.bytes());
  CHECK(open_bundle(path)->verify().problems.size() == 1);

  for (const std::uint64_t row : {std::uint64_t{2}, kHuge}) {
    Forgery beyond = misplaced;  // behind one that is right
    const Digest portable = beyond.portables[0].portable;
    beyond.portables[1].row = row;
    write_bytes(path, beyond.bytes());
    CHECK(open_bundle(path)->find_portable(EntryKind::binary, portable).size() == 1);
    CHECK(open_bundle(path)->verify().problems.size() == 1);
  }

  const auto own = std::to_integer<std::size_t>(misplaced.portables[0].portable[0]);
  REQUIRE((own > 0 && own < 255));
  auto later = misplaced;
  misplaced.portable_ends[own - 1] = 2;  // in the bucket before
  write_bytes(path, misplaced.bytes());
  CHECK(open_bundle(path)->verify().problems.size() == 1);
  later.portable_ends[own] = 0;  // in the one after
  write_bytes(path, later.bytes());
  CHECK(open_bundle(path)->verify().problems.size() == 1);
}

TEST_CASE("a manifest, or bytes between entries, that do not fit are reported",
          "[cache][bundle][damage]") {
  Damage d;
  const auto problems_of = [&](Forgery& forgery) {
    write_bytes(d.path, forgery.bytes());
    const auto bundle = open_bundle(d.path);
    CHECK(look_up(*bundle, d.contents).found == d.contents.size());
    return bundle->verify().problems.size();
  };
  Forgery counts(d.whole);
  const Buffer count = to_buffer("\"binaries\":1");
  const auto place = std::ranges::search(counts.manifest, count);
  REQUIRE(place.size() == count.size());
  place.back() = std::byte{'2'};
  CHECK(problems_of(counts) == 1);

  Forgery no_json(d.whole);
  no_json.manifest[0] = std::byte{'['};
  CHECK(problems_of(no_json) == 1);
  CHECK(why(open_bundle(d.path)->info()).find("damaged manifest") != std::string::npos);

  Forgery space(d.whole);
  const auto& row = space.rows[0];
  REQUIRE(row.payload_offset > space.rows.back().key_offset + space.rows.back().key_size);
  space.at(row.payload_offset - 1, 1)[0] = std::byte{1};
  CHECK(problems_of(space) == 1);

  Forgery tail(d.whole);
  tail.rest.push_back(std::byte{0});
  CHECK(problems_of(tail) == 1);

  Forgery swapped_counts(d.whole);
  std::swap(swapped_counts.header.binaries, swapped_counts.header.records);
  CHECK(problems_of(swapped_counts) == 1);
}
