// The bundle's format, byte for byte. A difference here is a new format: it needs a new version
// number, a line in cache/FORMAT.md, and a golden file of its own beside the old one. The golden
// file was written from FORMAT.md by other means than the code under test.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cache/bundle.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
namespace fs = std::filesystem;

namespace {

// RFC 8032, 7.1, test 1.
constexpr const char* kPrivate =
    "-----BEGIN PRIVATE KEY-----\n"
    "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n"
    "-----END PRIVATE KEY-----\n";
constexpr const char* kPublic =
    "-----BEGIN PUBLIC KEY-----\n"
    "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
    "-----END PUBLIC KEY-----\n";

class Folder {
 public:
  Folder() {
    write("private.pem", kPrivate);
    write("public.pem", kPublic);
  }

  fs::path operator/(const char* name) const { return directory_.path() / name; }
  void write(const char* name, const std::string& bytes) const {
    test::write_text(*this / name, bytes);
    fs::permissions(*this / name, fs::perms(0600));
  }
  std::string read(const char* name) const { return test::read_text(*this / name); }

 private:
  const test::TemporaryDirectory directory_;
};

/// Lines of hexadecimal digits; ` * N` stands for N such lines.
std::string read_golden(const char* name) {
  std::ifstream file(fs::path(KILN_GOLDEN_DIRECTORY) / name);
  REQUIRE(file);
  std::string bytes;
  for (std::string line; std::getline(file, line);) {
    std::istringstream parts(line);
    std::string digits, star, run;
    std::size_t times = 1;
    if (!(parts >> digits)) continue;
    if (parts >> star) parts >> times;
    for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
      run += static_cast<char>(std::stoul(digits.substr(i, 2), nullptr, 16));
    for (; times > 0; --times) bytes += run;
  }
  return bytes;
}

/// One field of each type, the first six of which say what is wanted.
Key golden_key(const char* kind, const char* target, const char* compiler) {
  const std::vector<std::string> options{"-O3", "-std=c++20"};
  return detail::KeyBuilder(kind, 2)
      .add("kernel", "gemm")
      .add("target", target)
      .add("options", options)
      .add("threads", std::int64_t{-256})
      .made_with()
      .add("source", sha256(std::string_view("__global__ void k() {}")))
      .add("compiler", compiler)
      .finish();
}

std::vector<std::byte> golden_payload(int size) {
  std::vector<std::byte> payload;
  for (int i = 0; i < size; ++i) payload.push_back(static_cast<std::byte>(i * 37));
  return payload;
}

std::vector<std::byte> golden_payload_of_record() {
  const auto text = std::as_bytes(std::span(std::string_view(R"({"winner":{"block":128}})")));
  return {text.begin(), text.end()};
}

}  // namespace

TEST_CASE("the bytes of a bundle have not changed", "[golden][bundle]") {
  CHECK(cache::kBundleVersion == 1);  // with a new version, a new file here
  const Folder folder;
  cache::BundleWriter writer;
  writer.add(EntryKind::record, golden_key("record", "sm_90a", "13.0"), golden_payload_of_record());
  writer.add(EntryKind::binary, golden_key("binary", "sm_90a", "13.0"), golden_payload(64));
  writer.add(EntryKind::binary, golden_key("binary", "sm_80", "12.9"), golden_payload(100));
  writer.add(EntryKind::binary, golden_key("binary", "sm_80", "13.0"), detail::Bytes());
  REQUIRE_FALSE(writer.write(folder / "written", "kiln 0.1.0", folder / "private.pem"));

  const std::string golden = read_golden("bundle_v1.hex"), written = folder.read("written");
  CHECK(written.size() == golden.size());
  const auto [mine, theirs] = std::ranges::mismatch(written, golden);
  CHECK(mine - written.begin() == static_cast<std::ptrdiff_t>(golden.size()));
}

TEST_CASE("the golden bundle is read, and its signature believed", "[golden][bundle]") {
  const Folder folder;
  folder.write("golden", read_golden("bundle_v1.hex"));
  auto opened = cache::Bundle::open(folder / "golden", folder / "public.pem");
  REQUIRE(std::holds_alternative<std::unique_ptr<cache::Bundle>>(opened));
  cache::Bundle& bundle = *std::get<std::unique_ptr<cache::Bundle>>(opened);
  CHECK(bundle.verify().ok());
  CHECK(bundle.verify().checked == 4);

  const auto check = [&](EntryKind kind, const Key& key, const std::vector<std::byte>& payload) {
    const auto entry = bundle.find(kind, key);
    REQUIRE(entry);
    CHECK(entry->key.portable == key.portable);
    CHECK(entry->key.portable_fields == key.portable_fields);
    CHECK(entry->key.fields == key.fields);
    CHECK(std::ranges::equal(entry->payload, payload));
  };
  check(EntryKind::binary, golden_key("binary", "sm_80", "12.9"), golden_payload(100));
  check(EntryKind::binary, golden_key("binary", "sm_80", "13.0"), {});
  check(EntryKind::binary, golden_key("binary", "sm_90a", "13.0"), golden_payload(64));
  check(EntryKind::record, golden_key("record", "sm_90a", "13.0"), golden_payload_of_record());
  const Key wanted = golden_key("binary", "sm_80", "unknown");
  CHECK(bundle.find_portable(EntryKind::binary, wanted.portable).size() == 2);

  const auto info = std::get<BundleInfo>(bundle.info());
  CHECK(info.made_by == "kiln 0.1.0");
  REQUIRE(info.parts.size() == 2);
  CHECK(info.parts[0].target == "sm_80");
  CHECK(info.parts[0].binaries == 2);
  CHECK(info.parts[1].records == 1);
  CHECK(info.signer == "21fe31dfa154a261");
}
