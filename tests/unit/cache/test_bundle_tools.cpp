#include <functional>

#include <nlohmann/json.hpp>

#include "bundle_fixture.hpp"
#include "cache/record.hpp"
#include "cache/root.hpp"
#include "cache/store.hpp"
#include "kiln/bundle.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/error.hpp"

using namespace kiln;
using namespace kiln::test;
using nlohmann::json;

namespace {

/// What a call throws, by kind and words.
template <class Error>
bool throws(const std::function<void()>& call, const std::string& words) {
  try {
    call();
  } catch (const Error& e) {
    INFO(e.what());
    return std::string(e.what()).find(words) != std::string::npos;
  }
  return false;
}

Buffer damaged(Buffer file) {
  file.back() ^= std::byte{1};
  return file;
}

StoreOptions options_at(const fs::path& directory) {
  StoreOptions options;
  options.directory = directory;
  return options;
}

}  // namespace

TEST_CASE("a bundle's contents are told by kernel and target", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const KeyPair keys(folder.path());
  const fs::path path = folder.path() / "a";
  auto contents = small_contents();
  Key nameless = detail::KeyBuilder("record", 1).add("x", "y").finish();
  contents.push_back({EntryKind::record, nameless, to_buffer("1")});
  write_bundle(path, contents, keys.private_pem);
  const BundleInfo info = bundle_info(path);
  CHECK(info.path == path);
  CHECK(info.version == 1);
  CHECK(info.bytes == fs::file_size(path));
  CHECK(info.binaries == 3);
  CHECK(info.records == 2);
  CHECK(info.made_by == "kiln 1.2.3");
  CHECK(info.signer.size() == 16);
  REQUIRE(info.parts.size() == 4);
  const auto is = [](const BundleInfo::Part& part, const char* kernel, const char* target,
                     std::uint64_t binaries, std::uint64_t records) {
    return part.kernel == kernel && part.target == target && part.binaries == binaries &&
           part.records == records;
  };
  CHECK(is(info.parts[0], "", "", 0, 1));
  CHECK(is(info.parts[1], "gemm", "sm_80", 1, 0));
  CHECK(is(info.parts[2], "gemm", "sm_90a", 1, 1));
  CHECK(is(info.parts[3], "scan", "sm_90a", 1, 0));

  const auto entries = bundle_entries(path);
  REQUIRE(entries.size() == 5);
  std::uint64_t bytes = 0, binaries = 0;
  for (const StoreEntry& entry : entries) {
    CHECK(entry.path == path);
    CHECK_FALSE(entry.key.fields.empty());
    bytes += entry.bytes;
    binaries += entry.kind == EntryKind::binary;
  }
  CHECK(binaries == 3);
  CHECK(bytes == 70 + 1 + 0 + contents[3].payload.size() + 1);
}

TEST_CASE("the caller's mistakes and the environment's are told apart", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const KeyPair keys(folder.path());
  const fs::path path = folder.path() / "a", none = folder.path() / "none";
  const std::vector<fs::path> inputs{path};
  for (const std::function<void(const fs::path&)>& call :
       {std::function<void(const fs::path&)>([](const fs::path& p) { bundle_info(p); }),
        std::function<void(const fs::path&)>([](const fs::path& p) { bundle_entries(p); }),
        std::function<void(const fs::path&)>(
            [&](const fs::path& p) { extract_bundle(p, folder.path() / "cache"); }),
        std::function<void(const fs::path&)>(
            [&](const fs::path& p) { merge_bundles(std::vector{p}, folder.path() / "out"); })}) {
    CHECK(throws<EnvironmentError>([&] { call(none); }, "none: open: No such file"));
    CHECK(throws<UserError>([&] { call(folder.path()); }, "is a directory"));
    write_bytes(path, to_buffer("hello"));
    CHECK(throws<UserError>([&] { call(path); }, "is not a bundle"));
  }
  CHECK_FALSE(fs::exists(folder.path() / "cache"));
  CHECK_FALSE(fs::exists(folder.path() / "out"));

  write_bundle(path, small_contents());
  CHECK(throws<EnvironmentError>([&] { verify_bundle(none); }, "No such file"));
  CHECK(throws<EnvironmentError>([&] { verify_bundle(path, none); }, "No such file"));
  CHECK(throws<UserError>([&] { verify_bundle(path, path); }, "does not hold a public key"));
  CHECK(throws<UserError>([&] { merge_bundles({}, folder.path() / "out"); }, "at least one"));
  CHECK(throws<UserError>([&] { merge_bundles(inputs, folder.path() / "out", keys.public_pem); },
                          "holds a public key"));
  CHECK(throws<EnvironmentError>([&] { merge_bundles(inputs, none / "out"); }, "No such file"));
  CHECK_FALSE(fs::exists(folder.path() / "out"));
}

TEST_CASE("verify reads everything, and the signature if asked", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const KeyPair mine(folder.path(), 1), other(folder.path(), 2);
  const fs::path path = folder.path() / "a";
  write_bundle(path, small_contents(), mine.private_pem);
  VerifyReport report = verify_bundle(path);
  CHECK(report.ok());
  CHECK(report.checked == 4);
  CHECK(verify_bundle(path, mine.public_pem).ok());
  report = verify_bundle(path, other.public_pem);
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].reason.find("is signed by") != std::string::npos);
  CHECK(report.checked == 4);

  const Buffer whole = read_bytes(path);
  write_bytes(path, damaged(whole));
  report = verify_bundle(path, mine.public_pem);  // the signature covers the hash, not the bytes
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].path == path);
  write_bytes(path, std::span(whole).first(1000));
  report = verify_bundle(path);
  REQUIRE(report.problems.size() == 1);
  CHECK(report.checked == 0);
}

TEST_CASE("what is extracted are entries like any other", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a", directory = folder.path() / "cache";
  const auto contents = small_contents();
  write_bundle(path, contents);
  {
    cache::Store before(options_at(directory));
    before.put(contents[0].key, kiln::detail::Bytes(make_bytes(5, 5)));
    before.put(target_key("mine", "sm_80", 1), kiln::detail::Bytes(make_bytes(6, 6)));
  }
  CHECK(extract_bundle(path, directory) == 4);
  fs::remove(path);
  cache::Store store(options_at(directory));
  for (std::size_t i = 0; i < 3; ++i) {
    const auto found = store.find(contents[i].key);
    REQUIRE(found);
    CHECK(equal(*found, contents[i].payload));
  }
  CHECK(store.find_record(contents[3].key) == json{{"winner", {{"block", 128}}}});
  CHECK(store.find(target_key("mine", "sm_80", 1)));
  CHECK(store.stats().binaries == 4);
  CHECK(store.stats().records == 1);
  CHECK(store.verify().ok());
  // The keys keep what is portable.
  const Key wanted = target_key("gemm", "sm_80", 128, "binary", "unknown");
  CHECK(store.find_portable(EntryKind::binary, wanted.portable, cache::Store::Where::anywhere,
                            [](const Key&) { return true; }));
}

TEST_CASE("a damaged bundle is extracted and merged not at all", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a", directory = folder.path() / "cache";
  write_bundle(path, small_contents());
  const Buffer whole = read_bytes(path);
  write_bytes(path, damaged(whole));
  CHECK(throws<UserError>([&] { extract_bundle(path, directory); }, "damaged"));
  CHECK_FALSE(fs::exists(directory));
  CHECK(throws<UserError>([&] { merge_bundles(std::vector{path}, folder.path() / "out"); },
                          "damaged"));
  CHECK_FALSE(fs::exists(folder.path() / "out"));
  CHECK(throws<UserError>([&] { merge_bundles(std::vector{path}, path); }, "damaged"));
  CHECK(read_bytes(path) == damaged(whole));
}

TEST_CASE("a record that is no JSON is not extracted", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a";
  for (const std::string& text : {std::string("{"), std::string(), std::string(1'000'000, '['),
                                  std::string(1'000'000, '[') + std::string(1'000'000, ']')}) {
    write_bundle(path,
                 {{EntryKind::record, target_key("k", "sm_80", 1, "record"), to_buffer(text)}});
    CHECK(throws<UserError>([&] { extract_bundle(path, folder.path() / "cache"); }, "is not JSON"));
  }
}

TEST_CASE("records are nested as deeply wherever they lie, and not more", "[cache][bundle]") {
  for (const int levels : {cache::kRecordDepth, cache::kRecordDepth + 1}) {
    INFO(levels);
    const bool allowed = levels == cache::kRecordDepth;
    const TemporaryDirectory folder;
    const fs::path bundle = folder.path() / "a", disk = folder.path() / "disk";
    const Key key = target_key("k", "sm_80", 1, "record");
    const auto depth = static_cast<std::size_t>(levels);
    const std::string text = std::string(depth, '[') + std::string(depth, ']');
    const json record = json::parse(text);
    // Each way to read it agrees with the others.
    const auto found = [&](const fs::path& directory, std::vector<fs::path> roots = {}) {
      StoreOptions options = options_at(directory);
      options.roots = std::move(roots);
      cache::Store store(options);
      const bool there = store.find_record(key) == record;
      std::size_t visited = 0;
      store.each_record([&](const Key&, const json& each) { visited += each == record; });
      CHECK(visited == std::size_t{there});
      return there;
    };

    cache::Store(options_at(disk)).put_record(key, 1);
    write_bytes(record_path(disk, key), to_buffer(cache::encode_record(key, record)));
    CHECK(found(disk) == allowed);
    CHECK(found(folder.path() / "none", {disk}) == allowed);
    CHECK(cache::Store(options_at(disk)).verify().ok() == allowed);

    write_bundle(bundle, {{EntryKind::record, key, to_buffer(text)}});
    CHECK(found(folder.path() / "none", {bundle}) == allowed);
    const fs::path extracted = folder.path() / "extracted";
    if (allowed)
      CHECK(extract_bundle(bundle, extracted) == 1);
    else
      CHECK(throws<UserError>([&] { extract_bundle(bundle, extracted); }, "nested too deeply"));
    CHECK(found(extracted) == allowed);

    const fs::path put = folder.path() / "put";  // what could not be read is not written
    cache::Store store(options_at(put));
    store.put_record(key, record);
    CHECK((store.find_record(key) == record) == allowed);
    CHECK(store.stats().writes == std::uint64_t{allowed});
    CHECK(found(put) == allowed);
  }
}

TEST_CASE("a directory that cannot be written is the environment's fault", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path path = folder.path() / "a", shared = folder.path() / "shared";
  write_bundle(path, small_contents());
  fs::create_directory(shared);
  fs::permissions(shared, fs::perms(0777));
  CHECK(throws<EnvironmentError>([&] { extract_bundle(path, shared); }, "writable by others"));
  CHECK(fs::is_empty(shared));
  CHECK(throws<EnvironmentError>([&] { extract_bundle(path, path); }, "directory"));
}

TEST_CASE("a merge holds what all had, the first of equal keys", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path a = folder.path() / "a", b = folder.path() / "b", out = folder.path() / "out";
  auto first = small_contents();
  std::vector<Content> second{
      {EntryKind::binary, first[0].key, make_bytes(8, 8)},
      {EntryKind::binary, target_key("gemm", "sm_100a", 1), make_bytes(9, 9)}};
  write_bundle(a, first);
  write_bundle(b, second);
  const BundleInfo info = merge_bundles(std::vector{a, b}, out);
  CHECK(info.path == out);
  CHECK(info.binaries == 4);
  CHECK(info.records == 1);
  CHECK(info.made_by == "kiln 1.2.3");
  CHECK(verify_bundle(out).ok());
  const auto merged = open_bundle(out);
  first.push_back(second[1]);
  CHECK(look_up(*merged, first).found == 5);
  CHECK(look_up(*merged, first).wrong == 0);
  merge_bundles(std::vector{b, a}, folder.path() / "other");
  CHECK(equal(open_bundle(folder.path() / "other")->find(EntryKind::binary, first[0].key)->payload,
              second[0].payload));
}

TEST_CASE("the same bundles merge to the same bytes", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const KeyPair keys(folder.path());
  const fs::path a = folder.path() / "a", b = folder.path() / "b";
  const auto contents = small_contents();
  write_bundle(a, {contents[0], contents[2]});
  write_bundle(b, {contents[1], contents[3]});
  write_bundle(folder.path() / "whole", contents);
  merge_bundles(std::vector{a, b}, folder.path() / "ab");
  merge_bundles(std::vector{b, a}, folder.path() / "ba");
  CHECK(read_bytes(folder.path() / "ab") == read_bytes(folder.path() / "whole"));
  CHECK(read_bytes(folder.path() / "ba") == read_bytes(folder.path() / "whole"));
  const auto& one = merge_bundles(std::vector{a, b}, folder.path() / "1", keys.private_pem);
  merge_bundles(std::vector{a, b}, folder.path() / "2", keys.private_pem);
  CHECK(read_bytes(folder.path() / "1") == read_bytes(folder.path() / "2"));
  CHECK(one.signer.size() == 16);
  CHECK(verify_bundle(folder.path() / "1", keys.public_pem).ok());
  // Merged without a key it is signed no more.
  CHECK(merge_bundles(std::vector{folder.path() / "1"}, folder.path() / "3").signer.empty());
}

TEST_CASE("a merge may replace an input, and one that fails leaves it", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const fs::path a = folder.path() / "a", b = folder.path() / "b";
  const auto contents = small_contents();
  write_bundle(a, {contents[0], contents[2]});
  write_bundle(b, {contents[1], contents[3]});
  const auto mapped = open_bundle(a);
  CHECK(merge_bundles(std::vector{a, b}, a).binaries == 3);
  CHECK(look_up(*open_bundle(a), contents).found == 4);
  CHECK(mapped->verify().ok());
  const Buffer before = read_bytes(a);
  CHECK_THROWS(merge_bundles(std::vector{a, folder.path() / "none"}, a));
  CHECK_THROWS(merge_bundles(std::vector{a, b}, a, folder.path() / "none"));
  CHECK(read_bytes(a) == before);
  CHECK(files_below(folder.path()).size() == 2);
}

TEST_CASE("a root is a bundle, or a directory where no signature is required", "[cache][bundle]") {
  const TemporaryDirectory folder;
  const KeyPair keys(folder.path());
  const fs::path bundle = folder.path() / "a", directory = folder.path() / "cache";
  const auto contents = small_contents();
  write_bundle(bundle, contents);
  extract_bundle(bundle, directory);
  const auto reason = [](const fs::path& path, const fs::path& key = {}) {
    return why(cache::open_root(path, key));
  };
  for (const fs::path& path : {bundle, directory}) {
    auto opened = cache::open_root(path, {});
    REQUIRE(std::holds_alternative<std::unique_ptr<cache::Root>>(opened));
    cache::Root& root = *std::get<std::unique_ptr<cache::Root>>(opened);
    CHECK(root.path() == path);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto entry = root.find(contents[i].kind, contents[i].key);
      REQUIRE(entry);
      CHECK(equal(entry->payload, contents[i].payload));
    }
    const auto record = root.find(EntryKind::record, contents[3].key);
    REQUIRE(record);
    CHECK(equal(record->payload, contents[3].payload));
  }
  CHECK(reason(directory, keys.public_pem).find("is a directory") != std::string::npos);
  CHECK(reason(bundle, keys.public_pem).find("is not signed") != std::string::npos);
  write_bundle(bundle, contents, keys.private_pem);
  CHECK(reason(bundle, keys.public_pem).empty());
  CHECK(reason(folder.path() / "none").find("No such file") != std::string::npos);
  fs::create_symlink("a", folder.path() / "link");
  CHECK(reason(folder.path() / "link").empty());
  fs::create_directory_symlink("cache", folder.path() / "directory link");
  CHECK(reason(folder.path() / "directory link").empty());
  REQUIRE(::mkfifo((folder.path() / "fifo").c_str(), 0600) == 0);
  CHECK(reason(folder.path() / "fifo").find("is not a file") != std::string::npos);
  fs::permissions(bundle, fs::perms(0666));
  CHECK(reason(bundle).find("writable by others") != std::string::npos);
}
