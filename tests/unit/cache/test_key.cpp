#include <string>
#include <vector>

#include "kiln/detail/key_builder.hpp"
#include "kiln/key.hpp"
#include "kiln_test.hpp"

using kiln::detail::KeyBuilder;

TEST_CASE("sha256 agrees with the published vectors", "[cache][key]") {
  // FIPS 180-4 example vectors.
  CHECK(kiln::to_hex(kiln::sha256(std::string_view("abc"))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(kiln::to_hex(kiln::sha256(std::string_view(""))) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST_CASE("no two different field lists share a digest", "[cache][key]") {
  auto key = [](auto fill) {
    KeyBuilder b("test", 1);
    fill(b);
    return b.finish();
  };
  const std::vector<std::string> ab{"a", "b"}, joined{"ab"}, empty;
  std::vector<kiln::Key> keys = {
      key([](KeyBuilder&) {}),
      key([](KeyBuilder& b) { b.add("x", "1"); }),
      key([](KeyBuilder& b) { b.add("x", std::int64_t{1}); }),
      key([](KeyBuilder& b) { b.add("x1", ""); }),
      key([](KeyBuilder& b) { b.add("", "x1"); }),
      key([](KeyBuilder& b) { b.add("x", "1").add("y", ""); }),
      key([](KeyBuilder& b) { b.add("y", "").add("x", "1"); }),
      key([&](KeyBuilder& b) { b.add("x", ab); }),
      key([&](KeyBuilder& b) { b.add("x", joined); }),
      key([&](KeyBuilder& b) { b.add("x", empty); }),
      KeyBuilder("test", 2).finish(),
      KeyBuilder("tes", 1).finish(),
  };
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < keys.size(); ++j) CHECK((keys[i] == keys[j]) == (i == j));
}

TEST_CASE("a key explains itself", "[cache][key]") {
  const kiln::Key key = KeyBuilder("binary", 3).add("target", "sm_90a").finish();
  CHECK(key.explain() == "kind = binary\nschema = 3\ntarget = sm_90a\n");
  CHECK(key.hex().size() == 64);
}
