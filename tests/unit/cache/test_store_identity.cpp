#include "cache/store.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

std::optional<std::uint64_t> identity_in(const fs::path& directory) {
  StoreOptions options;
  options.directory = directory;
  return cache::Store(options).identity();
}

}  // namespace

TEST_CASE("a store is the same whichever process opens it, and its copy is another",
          "[cache][identity]") {
  TemporaryDirectory directory;
  const fs::path original = directory.path() / "original", copy = directory.path() / "copy";
  const auto identity = identity_in(original);
  REQUIRE(identity);
  CHECK(*identity != 0);
  CHECK(identity_in(original) == identity);
  CHECK(in_child([&] { return identity_in(original) == identity ? 0 : 1; }) == 0);

  fs::copy(original, copy, fs::copy_options::recursive);
  REQUIRE(read_bytes(copy / "v1" / "locks" / "identity") ==
          read_bytes(original / "v1" / "locks" / "identity"));
  const auto copied = identity_in(copy);
  REQUIRE(copied);
  CHECK(copied != identity);
  CHECK(identity_in(copy) == copied);
  CHECK(identity_in(original) == identity);

  fs::rename(original, directory.path() / "moved");
  CHECK(identity_in(directory.path() / "moved") == identity);
  CHECK(identity_in(original) != identity);
}
