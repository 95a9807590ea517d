// Read-only cache directories under the writable store, and look-ups of what is wanted alone.
#include <fcntl.h>
#include <nlohmann/json.hpp>

#include "cache/directory_root.hpp"
#include "cache/entry.hpp"
#include "cache/store.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Failure;
using cache::Root;
using cache::Store;
using nlohmann::json;

namespace {

constexpr auto kAny = [](const Key&) { return true; };

/// The same for everything that wants `config`; made with `compiler`.
Key key_of(std::int64_t config, const std::string& compiler, const char* kind = "binary") {
  return detail::KeyBuilder(kind, 2)
      .add("kernel", "gemm")
      .add("block", config)
      .add("target", "sm_90a")
      .made_with()
      .add("compiler", compiler)
      .finish();
}

StoreOptions rooted_options(const fs::path& directory, std::vector<fs::path> roots = {}) {
  StoreOptions options;
  options.directory = directory;
  options.roots = std::move(roots);
  options.memory_bytes = 0;
  return options;
}

std::unique_ptr<Root> open(const fs::path& path) {
  auto opened = cache::make_directory_root(path);
  REQUIRE(std::holds_alternative<std::unique_ptr<Root>>(opened));
  return std::get<std::unique_ptr<Root>>(std::move(opened));
}

std::vector<std::string> names(const fs::path& root) {
  std::vector<std::string> result;
  for (const auto& item : fs::recursive_directory_iterator(root))
    result.push_back(item.path().string() + " " +
                     std::to_string(fs::last_write_time(item.path()).time_since_epoch().count()));
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace

TEST_CASE("roots are asked in order, after the writable store, and are left alone",
          "[cache][roots]") {
  const TemporaryDirectory own, first, second;
  const Key a = make_key("a"), b = make_key("b"), c = make_key("c");
  Store(rooted_options(own.path())).put(a, make_bytes(10, 1));
  {
    Store one(rooted_options(first.path())), two(rooted_options(second.path()));
    one.put(a, make_bytes(10, 2));
    one.put(b, make_bytes(10, 2));
    one.put_record(b, 2);
    for (const Key& key : {a, b, c}) two.put(key, make_bytes(10, 3));
    two.put_record(b, 3);
    two.put_record(c, 3);
  }
  const timespec old[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
  REQUIRE(::utimensat(AT_FDCWD, binary_path(first.path(), b).c_str(), old, 0) == 0);
  const auto before_first = names(first.path()), before_second = names(second.path());

  Store store(rooted_options(own.path(), {first.path(), second.path()}));
  CHECK(store.root_problems().empty());
  CHECK(store.find(a) == make_bytes(10, 1));
  CHECK(store.find(b) == make_bytes(10, 2));
  CHECK(store.find(c) == make_bytes(10, 3));
  CHECK_FALSE(store.find(make_key("d")));
  CHECK(store.find_record(b) == json(2));
  CHECK(store.find_record(c) == json(3));
  CHECK_FALSE(store.find_record(a));
  json seen;
  store.each_record(
      [&](const Key& key, const json& record) { seen[key.fields[3].value] = record; });
  CHECK(seen == json{{"b", 2}, {"c", 3}});

  const StoreStatistics stats = store.stats();
  CHECK(stats.disk_hits == 1);
  CHECK(stats.root_hits == 4);
  CHECK(stats.misses == 2);
  CHECK(stats.binaries == 1);  // a hit in a root is not copied
  REQUIRE(stats.roots.size() == 2);
  CHECK(stats.roots[1].path == second.path());
  CHECK(stats.roots[1].binaries == 3);
  CHECK(stats.roots[1].records == 2);
  store.put_record(b, 9);
  CHECK(store.find_record(b) == json(9));
  store.clear();
  store.trim(0);
  CHECK(store.find(b) == make_bytes(10, 2));
  CHECK(names(first.path()) == before_first);
  CHECK(names(second.path()) == before_second);
}

TEST_CASE("roots serve a store without a writable directory, and from memory the second time",
          "[cache][roots]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  Store(rooted_options(root.path())).put(key, make_bytes(10));
  StoreOptions options = rooted_options({}, {root.path()});
  options.disk = false;
  options.memory_bytes = 1 << 20;
  Store store(options);
  CHECK(store.find(key) == make_bytes(10));
  CHECK(store.find(key) == make_bytes(10));
  CHECK(store.stats().root_hits == 1);
  CHECK(store.stats().memory_hits == 1);
}

TEST_CASE("a root that cannot be used is named once, and the others serve", "[cache][roots]") {
  const TemporaryDirectory own, good, open_to_all, parent;
  const Key key = make_key("a");
  Store(rooted_options(good.path())).put(key, make_bytes(10));
  Store(rooted_options(open_to_all.path())).put(make_key("b"), make_bytes(10));
  REQUIRE(::chmod(open_to_all.path().c_str(), 0770) == 0);
  Log log;
  StoreOptions options =
      rooted_options(own.path(), {parent.path() / "nowhere", open_to_all.path(), good.path()});
  options.log = log.sink();
  Store store(options);
  CHECK(log.warnings().empty());  // not before it is needed
  for (int i = 0; i < 3; ++i) {
    CHECK(store.find(key) == make_bytes(10));
    CHECK_FALSE(store.find(make_key("b")));
  }
  CHECK(log.warnings().size() == 2);
  const auto problems = store.root_problems();
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].find("nowhere") != std::string::npos);
  CHECK(problems[1].find("writable by others") != std::string::npos);
  const auto roots = store.stats().roots;
  REQUIRE(roots.size() == 3);
  CHECK(roots[0].problem == problems[0]);
  CHECK(roots[1].problem == problems[1]);
  CHECK(roots[2].problem.empty());
  CHECK(roots[2].binaries == 1);
  CHECK_FALSE(store.stats().memory_only);
}

TEST_CASE("roots come from the environment if none are named", "[cache][roots]") {
  const TemporaryDirectory own, first, second;
  const Key key = make_key("a");
  Store(rooted_options(second.path())).put(key, make_bytes(10));
  const std::string value = first.path().string() + "::" + second.path().string() + ":";
  ::setenv("KILN_ROOTS", value.c_str(), 1);
  Store store(rooted_options(own.path())), named(rooted_options(own.path(), {first.path()}));
  ::unsetenv("KILN_ROOTS");
  CHECK(store.find(key) == make_bytes(10));
  CHECK(store.stats().roots.size() == 2);
  CHECK_FALSE(named.find(key));
}

TEST_CASE("two users share a root", "[cache][roots]") {
  if (::geteuid() != 0) KILN_SKIP("only root may become another user");
  const TemporaryDirectory root;
  const Key key = make_key("a");
  Store(rooted_options(root.path() / "shared")).put(key, make_bytes(10));
  REQUIRE(::chmod(root.path().c_str(), 0755) == 0);
  for (const auto& item : fs::recursive_directory_iterator(root.path()))
    REQUIRE(::chmod(item.path().c_str(), item.is_directory() ? 0755 : 0644) == 0);
  const auto before = names(root.path());
  const auto user = [&](uid_t uid) {
    return in_child([&] {
      if (::setresuid(uid, uid, uid) != 0) return 1;
      StoreOptions options = rooted_options({}, {root.path() / "shared"});
      options.disk = false;
      Store store(options);
      if (store.find(key) != make_bytes(10)) return 2;
      if (!store.find_portable(EntryKind::binary, key.portable, Store::Where::anywhere, kAny))
        return 3;
      // As a writable store it is foreign.
      return Store(rooted_options(root.path() / "shared")).find(key) ? 4 : 0;
    });
  };
  CHECK(user(65534) == 0);
  CHECK(user(65533) == 0);
  CHECK(names(root.path()) == before);
  REQUIRE(::chmod((root.path() / "shared").c_str(), 0700) == 0);
  CHECK(user(65534) == 2);  // may not be read: no root, but no harm
}

TEST_CASE("a directory root gives whole entries under their own names only", "[cache][roots]") {
  const TemporaryDirectory root, elsewhere;
  const Key good = make_key("good"), cut = make_key("cut"), link = make_key("link"),
            loose = make_key("loose"), other = make_key("other"), renamed = make_key("renamed");
  Store store(rooted_options(root.path()));
  for (const Key& key : {good, cut, link, loose, renamed}) store.put(key, make_bytes(100));
  fs::resize_file(binary_path(root.path(), cut), 600);  // the key is whole, the payload not
  fs::rename(binary_path(root.path(), link), elsewhere.path() / "entry");
  fs::create_symlink(elsewhere.path() / "entry", binary_path(root.path(), link));
  REQUIRE(::chmod(binary_path(root.path(), loose).c_str(), 0666) == 0);
  write_bytes(binary_path(root.path(), renamed), cache::encode_entry(other, make_bytes(100)));

  for (const bool through_link : {false, true}) {
    fs::path path = root.path();
    if (through_link) {
      path = elsewhere.path() / "current";
      fs::create_directory_symlink(root.path(), path);
    }
    const auto opened = open(path);
    CHECK(opened->path() == path);
    const auto found = opened->find(EntryKind::binary, good);
    REQUIRE(found);
    CHECK(found->payload == make_bytes(100));
    CHECK(found->key.fields == good.fields);
    for (const Key& key : {cut, link, loose, other, renamed}) {
      CHECK_FALSE(opened->find(EntryKind::binary, key));
      CHECK(opened->find_portable(EntryKind::binary, key.portable).empty());
    }
    CHECK(opened->find_portable(EntryKind::binary, good.portable).size() == 1);
    Key lie = good;
    lie.fields.back().value = "changed";
    CHECK_FALSE(opened->find(EntryKind::binary, lie));
    lie = good;
    --lie.portable_fields;
    CHECK_FALSE(opened->find(EntryKind::binary, lie));
    lie = good;
    lie.portable[0] ^= std::byte{1};
    CHECK_FALSE(opened->find(EntryKind::binary, lie));
    std::vector<std::string> keys;
    opened->each_key(EntryKind::binary, [&](const Key& key) {
      keys.push_back(key.fields[3].value);
      return true;
    });
    std::sort(keys.begin(), keys.end());
    CHECK(keys == std::vector<std::string>{"cut", "good"});  // keys alone are not vouched for
    int visits = 0;
    opened->each_key(EntryKind::binary, [&](const Key&) { return ++visits, false; });
    CHECK(visits == 1);
  }
}

TEST_CASE("what is no directory of one writer is no root", "[cache][roots]") {
  const TemporaryDirectory root;
  write_bytes(root.path() / "file", make_bytes(10));
  REQUIRE(::mkfifo((root.path() / "fifo").c_str(), 0600) == 0);
  for (const char* name : {"nothing", "file", "fifo"})
    CHECK(std::holds_alternative<Failure>(cache::make_directory_root(root.path() / name)));
  Store(rooted_options(root.path())).put(make_key("a"), make_bytes(10));
  REQUIRE(::chmod((root.path() / "v1" / "binaries").c_str(), 0777) == 0);
  const auto opened = open(root.path());
  CHECK_FALSE(opened->find(EntryKind::binary, make_key("a")));  // refused within as well
  CHECK(opened->count(EntryKind::binary) == 0);
}

TEST_CASE("what is wanted is found whatever it was made with", "[cache][roots]") {
  const TemporaryDirectory own, root;
  const Key here = key_of(128, "13.0"), there = key_of(128, "12.9"), wanted = key_of(128, "?");
  Store(rooted_options(root.path())).put(there, make_bytes(10, 2));
  for (const std::size_t memory : {std::size_t{0}, std::size_t{1} << 20}) {
    StoreOptions options = rooted_options(own.path() / std::to_string(memory), {root.path()});
    options.memory_bytes = memory;
    Store store(options);
    const auto find = [&](bool with_own, const auto& accept) {
      const auto entry =
          store.find_portable(EntryKind::binary, wanted.portable,
                              with_own ? Store::Where::anywhere : Store::Where::roots, accept);
      return entry ? entry->key.fields.back().value : "none";
    };
    CHECK(find(true, kAny) == "12.9");
    store.put(here, make_bytes(10, 1));
    CHECK(find(true, kAny) == "13.0");
    CHECK(find(false, kAny) == "12.9");
    CHECK(find(true, [&](const Key& key) { return !(key == here); }) == "12.9");
    CHECK(find(true, [](const Key&) { return false; }) == "none");
    CHECK_FALSE(
        store.find_portable(EntryKind::record, wanted.portable, Store::Where::anywhere, kAny));
    CHECK_FALSE(store.find_portable(EntryKind::binary, key_of(64, "?").portable,
                                    Store::Where::anywhere, kAny));
    CHECK(store.stats().misses == 3);

    // Written by another process after the index was made.
    Store(rooted_options(own.path() / std::to_string(memory))).put(key_of(64, "x"), make_bytes(5));
    CHECK(store
              .find_portable(EntryKind::binary, key_of(64, "?").portable, Store::Where::anywhere,
                             kAny)
              ->payload == make_bytes(5));
    fs::resize_file(binary_path(own.path() / std::to_string(memory), here), 300);
    if (memory == 0) CHECK(find(true, kAny) == "12.9");  // damaged: passed over
  }
}

TEST_CASE("records are found by what is wanted, the unwritten one first", "[cache][roots]") {
  const TemporaryDirectory own;
  auto system = std::make_shared<FaultyFileSystem>();
  StoreOptions options = rooted_options(own.path());
  options.memory_bytes = 1 << 20;
  Store store(options, system);
  const Key key = key_of(128, "13.0", "record");
  store.put_record(key, {{"ms", 1}});
  const auto find = [&] {
    const auto entry =
        store.find_portable(EntryKind::record, key.portable, Store::Where::anywhere, kAny);
    REQUIRE(entry);
    return json::parse(
        std::string(reinterpret_cast<const char*>(entry->payload.data()), entry->payload.size()));
  };
  CHECK(find() == json{{"ms", 1}});
  system->fault = [](Call call, int) { return call == Call::write ? ENOSPC : 0; };
  store.put_record(key, {{"ms", 2}});
  CHECK(find() == json{{"ms", 2}});
}

TEST_CASE("a look-up of a record counts once, where what was found was accepted",
          "[cache][roots]") {
  const TemporaryDirectory own, root;
  const Key key = make_key("a", "record");
  Store(rooted_options(root.path())).put_record(key, "root");
  auto system = std::make_shared<FaultyFileSystem>();
  Store store(rooted_options(own.path(), {root.path()}), system);
  store.put_record(key, "disk");
  system->fault = [](Call call, int) { return call == Call::write ? ENOSPC : 0; };
  store.put_record(key, "memory");

  std::vector<json> offered;
  const auto find = [&](const char* wanted) {
    offered.clear();
    return store.find_record(key, [&](const json& record) {
      offered.push_back(record);
      return record == json(wanted);
    });
  };
  // Hits in memory, on disk, in roots, and misses.
  const auto counts = [&] {
    const StoreStatistics stats = store.stats();
    return std::vector<std::uint64_t>{stats.memory_hits, stats.disk_hits, stats.root_hits,
                                      stats.misses};
  };
  using Counts = std::vector<std::uint64_t>;
  CHECK_FALSE(find("none"));
  CHECK(offered == std::vector<json>{"memory", "disk", "root"});
  CHECK(counts() == Counts{0, 0, 0, 1});
  CHECK(find("root") == json("root"));
  CHECK(counts() == Counts{0, 0, 1, 1});
  CHECK(find("disk") == json("disk"));
  CHECK(counts() == Counts{0, 1, 1, 1});
  CHECK(find("memory") == json("memory"));
  CHECK(counts() == Counts{1, 1, 1, 1});
}

TEST_CASE("the closest key differs in the fewest wanted fields", "[cache][roots]") {
  const TemporaryDirectory own, root;
  Store store(rooted_options(own.path(), {root.path()}));
  const Key wanted = key_of(128, "?");
  CHECK_FALSE(store.closest(EntryKind::binary, wanted, kAny));
  const Key far = detail::KeyBuilder("binary", 2).add("kernel", "rmsnorm").add("block", 1).finish();
  store.put(far, make_bytes(10));
  CHECK(store.closest(EntryKind::binary, wanted, kAny)->digest == far.digest);
  Store(rooted_options(root.path())).put(key_of(64, "13.0"), make_bytes(10));
  CHECK(store.closest(EntryKind::binary, wanted, kAny)->digest == key_of(64, "13.0").digest);
  store.put(key_of(32, "13.0"), make_bytes(10));  // as close: one of the two, always the same
  const auto tie = store.closest(EntryKind::binary, wanted, kAny);
  CHECK(tie->digest == std::min(key_of(32, "13.0").digest, key_of(64, "13.0").digest));
  store.put(key_of(128, "12.0"), make_bytes(10));
  CHECK(store.closest(EntryKind::binary, wanted, kAny)->digest == key_of(128, "12.0").digest);
  CHECK_FALSE(store.closest(EntryKind::binary, wanted, [](const Key&) { return false; }));
  CHECK_FALSE(store.closest(EntryKind::record, wanted, kAny));
}

TEST_CASE("entries of version 1 answer their whole key, and nothing portable", "[cache][roots]") {
  const TemporaryDirectory root;
  const Key key = key_of(128, "13.0");
  Store(rooted_options(root.path())).put(key, make_bytes(10));
  Buffer file = read_bytes(binary_path(root.path(), key));  // as version 1 had it
  file[8] = std::byte{1};
  file.erase(file.begin() + 12 + 32, file.begin() + 12 + 32 + 36);
  const Digest checksum = sha256(std::span(file).first(file.size() - sizeof(Digest)));
  std::copy(checksum.begin(), checksum.end(), file.end() - sizeof(Digest));
  write_bytes(binary_path(root.path(), key), file);
  Store store(rooted_options(root.path()));
  CHECK(store.find(key) == make_bytes(10));
  CHECK_FALSE(store.find_portable(EntryKind::binary, key.portable, Store::Where::anywhere, kAny));
  CHECK(store.verify().ok());
  CHECK(store.list().size() == 1);
  store.put(key, make_bytes(10));  // now as it is written today
  CHECK(store.stats().writes == 1);
  CHECK(store.find_portable(EntryKind::binary, key.portable, Store::Where::anywhere, kAny));
}

TEST_CASE("keys longer than the first read are told", "[cache][roots]") {
  const TemporaryDirectory root;
  const Key key =
      detail::KeyBuilder("binary", 2).add("options", std::string(20'000, 'x')).made_with().finish();
  Store store(rooted_options(root.path()));
  store.put(key, make_bytes(10));
  CHECK(store.find_portable(EntryKind::binary, key.portable, Store::Where::anywhere, kAny));
  CHECK(store.closest(EntryKind::binary, key, kAny)->fields == key.fields);
}
