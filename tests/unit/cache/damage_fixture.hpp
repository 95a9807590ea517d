// A small bundle whose file is changed, and what may come of that.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "bundle_fixture.hpp"

namespace kiln::test {

class Damage {
  const TemporaryDirectory folder_;

 public:
  Damage() : contents(small_contents()), path(folder_.path() / "a") {
    write_bundle(path, contents);
    whole = read_bytes(path);
    std::set<std::byte> buckets;  // one entry in each, so that damage to one loses one
    for (const Content& c : contents) buckets.insert(c.key.digest[0]);
    REQUIRE(buckets.size() == contents.size());
  }

  const std::vector<Content> contents;
  const fs::path path;
  Buffer whole;

  /// The reason it does not open; empty when it does.
  std::string refusal(const Buffer& file) {
    write_bytes(path, file);
    return why(Bundle::open(path));
  }
  /// With every hash right again, what is read from a forged bundle. Nothing of it may be wrong in
  /// another way than being the forger's; here it must not be found, and be reported.
  void check_not_found(const Buffer& file, std::size_t still_found) {
    write_bytes(path, file);
    const auto bundle = open_bundle(path);
    const Hits hits = look_up(*bundle, contents);
    CHECK(hits.wrong == 0);
    CHECK(hits.found == still_found);
    for (const Content& c : contents)
      for (const auto& e : bundle->find_portable(c.kind, c.key.portable)) CHECK(e.key == c.key);
    bundle->each_key(EntryKind::binary, [](const Key&) { return true; });
    CHECK_FALSE(bundle->verify().ok());
    bundle->each_entry([](EntryKind, const cache::StoredEntry&) {});
  }
};

}  // namespace kiln::test
