#include <algorithm>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/un.h>

#include "cache/entry.hpp"
#include "cache/record.hpp"
#include "cache/store.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Store;
using nlohmann::json;

namespace {

/// The same bytes with a byte changed and a checksum that fits again.
Buffer with_version(Buffer file, unsigned char version) {
  file[8] = std::byte{version};
  const Digest checksum = sha256(std::span(file).first(file.size() - sizeof(Digest)));
  std::copy(checksum.begin(), checksum.end(), file.end() - sizeof(Digest));
  return file;
}

/// The entry under `key`, as it lies there, must be a counted miss that the next put repairs.
void check_repaired(const fs::path& directory, const Key& key) {
  Log log;
  Store store(options_for(directory, &log));
  CHECK_FALSE(store.find(key));
  CHECK(store.stats().damaged == 1);
  CHECK(log.at(LogLevel::debug).size() == 1);
  CHECK(log.warnings().empty());
  store.put(key, make_bytes(77));
  CHECK(store.stats().repaired == 1);
  CHECK(Store(options_for(directory)).find(key) == make_bytes(77));
}

}  // namespace

TEST_CASE("a binary is found by this store, and by later ones", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  const Buffer bytes = make_bytes(100'000);
  Store store(options_for(root.path() / "deep" / "er"));
  CHECK_FALSE(store.find(key));
  store.put(key, bytes);
  CHECK(store.find(key) == bytes);
  CHECK(store.stats().memory_hits == 1);

  Store later(options_for(root.path() / "deep" / "er"));
  CHECK(later.find(key) == bytes);
  CHECK_FALSE(later.find(make_key("b")));
  CHECK(later.find(key) == bytes);
  const StoreStatistics stats = later.stats();
  CHECK(stats.disk_hits == 1);
  CHECK(stats.memory_hits == 1);
  CHECK(stats.misses == 1);
  CHECK(stats.damaged == 0);
  CHECK(stats.binaries == 1);
  CHECK(stats.records == 0);
  CHECK(stats.bytes == fs::file_size(binary_path(root.path() / "deep" / "er", key)));
  CHECK_FALSE(stats.memory_only);

  store.put(make_key("empty"), {});
  CHECK(Store(options_for(root.path() / "deep" / "er")).find(make_key("empty")) == Buffer{});
}

TEST_CASE("a put replaces, and the same put again writes nothing", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  Store store(options_for(root.path()));
  store.put(key, make_bytes(10, 1));
  store.put(key, make_bytes(10, 1));
  CHECK(store.stats().writes == 1);
  store.put(key, make_bytes(10, 2));
  CHECK(store.stats().writes == 2);
  CHECK(store.find(key) == make_bytes(10, 2));
  CHECK(Store(options_for(root.path())).find(key) == make_bytes(10, 2));
  CHECK(store.stats().repaired == 0);
}

TEST_CASE("reading creates nothing", "[cache][store]") {
  const TemporaryDirectory root;
  Store store(options_for(root.path() / "cache"));
  store.find(make_key("a"));
  store.find_record(make_key("a"));
  CHECK(store.list().empty());
  CHECK(store.stats().bytes == 0);
  CHECK(store.verify().ok());
  CHECK(store.clear() == 0);
  store.each_record([](const Key&, const json&) {});
  CHECK(fs::is_empty(root.path()));
  CHECK_FALSE(store.stats().memory_only);
}

TEST_CASE("without a disk everything is kept in memory", "[cache][store]") {
  const TemporaryDirectory root;
  StoreOptions options = options_for(root.path() / "cache");
  options.disk = false;
  Store store(options);
  store.put(make_key("a"), make_bytes(10));
  store.put_record(make_key("r"), {{"ms", 1}});
  CHECK(store.find(make_key("a")) == make_bytes(10));
  CHECK(store.find_record(make_key("r")) == json{{"ms", 1}});
  CHECK(fs::is_empty(root.path()));
  CHECK(store.stats().memory_only);
  CHECK(store.stats().failed_writes == 0);
  std::size_t seen = 0;
  store.each_record([&](const Key& key, const json&) { seen += key == make_key("r"); });
  CHECK(seen == 1);
  CHECK(store.clear() == 0);
  CHECK_FALSE(store.find(make_key("a")));
}

TEST_CASE("directories are 0700 and files 0600, whatever the umask", "[cache][store]") {
  for (const mode_t mask : {0, 022, 0777}) {
    const TemporaryDirectory root;
    const mode_t old = ::umask(mask);
    Store store(options_for(root.path() / "new" / "cache"));
    store.put(make_key("a"), make_bytes(10));
    store.put_record(make_key("r"), 1);
    ::umask(old);
    std::size_t files = 0;
    for (const auto& item : fs::recursive_directory_iterator(root.path())) {
      INFO(item.path());
      CHECK(mode_of(item.path()) == (item.is_directory() ? 0700 : 0600));
      files += item.is_regular_file();
    }
    CHECK(files == 2);
  }
}

TEST_CASE("records are read back, replaced, and shared between stores", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("gemm", "record");
  Store one(options_for(root.path())), two(options_for(root.path()));
  CHECK_FALSE(one.find_record(key));
  one.put_record(key, {{"ms", 1.5}});
  CHECK(two.find_record(key) == json{{"ms", 1.5}});
  two.put_record(key, {{"ms", 0.5}});
  CHECK(one.find_record(key) == json{{"ms", 0.5}});
  two.put_record(key, {{"ms", 0.5}});
  CHECK(two.stats().writes == 1);
  CHECK(two.stats().records == 1);

  two.put_record(make_key("other", "record"), 2);
  std::vector<std::string> names;
  one.each_record([&](const Key& k, const json&) { names.push_back(k.fields[3].value); });
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"gemm", "other"});
}

TEST_CASE("a key that is not UTF-8 finds its record", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = detail::KeyBuilder("record", 1).add("name", "\xff\x80").finish();
  Store(options_for(root.path())).put_record(key, 1);
  CHECK(Store(options_for(root.path())).find_record(key) == json(1));
}

TEST_CASE("a record that cannot be read is a miss until the next put", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("gemm", "record");
  Store store(options_for(root.path()));
  store.put_record(key, {{"ms", 1.5}});
  const Buffer whole = read_bytes(record_path(root.path(), key));
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    write_bytes(record_path(root.path(), key), std::span(whole).first(size));
    CHECK_FALSE(store.find_record(key));
  }
  const StoreStatistics stats = store.stats();
  CHECK(stats.damaged == (whole.size() + 6) / 7);
  store.put_record(key, {{"ms", 1.5}});
  CHECK(store.stats().repaired == 1);
  CHECK(store.find_record(key) == json{{"ms", 1.5}});
}

TEST_CASE("a binary cut or changed on disk is a miss until the next put", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  StoreOptions options = options_for(root.path());
  options.memory_bytes = 0;
  Store store(options);
  store.put(key, make_bytes(5000));
  const fs::path path = binary_path(root.path(), key);
  const Buffer whole = read_bytes(path);
  const std::size_t header = whole.size() - 5000 - 32;
  std::uint64_t damages = 0, accepted = 0;
  for (std::size_t at = 0; at < whole.size(); at += at < header ? 1 : 97) {
    write_bytes(path, std::span(whole).first(at));
    accepted += store.find(key).has_value();
    Buffer flipped = whole;
    flipped[at] ^= std::byte{1} << (at % 8);
    write_bytes(path, flipped);
    accepted += store.find(key).has_value();
    damages += 2;
  }
  CHECK(accepted == 0);
  CHECK(store.stats().damaged == damages);
  store.put(key, make_bytes(5000));
  CHECK(store.stats().repaired == 1);
  CHECK(store.find(key) == make_bytes(5000));
}

TEST_CASE("another key's whole entry under this name is damage", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("mine"), other = make_key("other");
  Store(options_for(root.path())).put(key, make_bytes(10));
  write_bytes(binary_path(root.path(), key), cache::encode_entry(other, make_bytes(10)));
  CHECK(Store(options_for(root.path())).verify().problems.size() == 1);
  check_repaired(root.path(), key);

  Key same_digest = key;  // fields are compared, not only the digest
  same_digest.fields.back().value = "changed";
  CHECK_FALSE(Store(options_for(root.path())).find(same_digest));
  same_digest = key;
  same_digest.fields.back().type = 's';
  CHECK_FALSE(Store(options_for(root.path())).find(same_digest));
}

TEST_CASE("a newer entry is passed over and kept, an older one replaced", "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  Store(options_for(root.path())).put(key, make_bytes(10));
  const fs::path path = binary_path(root.path(), key);
  const Buffer newer = with_version(read_bytes(path), 3), older = with_version(newer, 0);

  write_bytes(path, newer);
  Store store(options_for(root.path()));
  CHECK_FALSE(store.find(key));
  store.put(key, make_bytes(20));
  CHECK(store.find(key) == make_bytes(20));  // from memory
  CHECK(read_bytes(path) == newer);
  CHECK(store.stats().damaged == 0);
  CHECK(store.stats().failed_writes == 0);
  CHECK(store.verify().newer == 1);
  CHECK(store.verify().ok());
  CHECK(store.list().empty());

  write_bytes(path, older);
  Store again(options_for(root.path()));
  CHECK_FALSE(again.find(key));
  CHECK(again.verify().problems.size() == 1);
  again.put(key, make_bytes(20));
  CHECK(Store(options_for(root.path())).find(key) == make_bytes(20));
}

TEST_CASE("what is planted under an entry's name is neither followed nor waited for",
          "[cache][store]") {
  const TemporaryDirectory root, elsewhere;
  const Key key = make_key("a");
  Store(options_for(root.path())).put(key, make_bytes(10));
  const fs::path path = binary_path(root.path(), key), victim = elsewhere.path() / "victim";
  fs::copy_file(path, victim);  // whole and right, but reached by a link
  const Buffer victim_bytes = read_bytes(victim);
  const auto replace_by = [&](const std::function<void()>& plant) {
    fs::remove_all(path);
    plant();
    check_repaired(root.path(), key);
  };
  replace_by([&] { fs::create_symlink(victim, path); });
  replace_by([&] { fs::create_symlink(elsewhere.path() / "nowhere", path); });
  replace_by([&] { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); });
  replace_by([&] { fs::create_directory(path); });
  replace_by([&] {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // The path is longer than a socket's name may be: bind relative to its directory.
    const fs::path cwd = fs::current_path();
    fs::current_path(path.parent_path());
    path.filename().string().copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    fs::current_path(cwd);
    ::close(fd);
  });
  replace_by([&] {
    fs::copy_file(victim, path);
    REQUIRE(::chmod(path.c_str(), 0622) == 0);
  });
  replace_by([&] {  // larger than any entry, and sparse
    write_bytes(path, {});
    REQUIRE(::truncate(path.c_str(), off_t{1} << 40) == 0);
  });
  CHECK(read_bytes(victim) == victim_bytes);
  CHECK_FALSE(fs::exists(elsewhere.path() / "nowhere"));
}

TEST_CASE("a directory with something in it under an entry's name is left alone",
          "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  fs::create_directories(binary_path(root.path(), key) / "precious");
  for (fs::path p : {"v1", "v1/binaries"}) fs::permissions(root.path() / p, fs::perms(0700));
  fs::permissions(binary_path(root.path(), key).parent_path(), fs::perms(0700));
  Log log;
  Store store(options_for(root.path(), &log));
  store.put(key, make_bytes(10));
  CHECK(store.find(key) == make_bytes(10));
  CHECK(log.warnings().size() == 1);
  CHECK(store.clear() == 0);
  CHECK(fs::exists(binary_path(root.path(), key) / "precious"));
}

TEST_CASE("links in place of inner directories are not followed", "[cache][store]") {
  const Key key = make_key("a");
  for (const int depth : {0, 1, 2, 3}) {
    const TemporaryDirectory root, elsewhere;
    const fs::path cache = root.path() / "cache", away = elsewhere.path() / "away";
    Store(options_for(cache)).put(key, make_bytes(10));
    fs::path moved = cache;
    const fs::path names[] = {"", "v1", "binaries", key.hex().substr(0, 2)};
    for (int i = 1; i <= depth; ++i) moved /= names[i];
    fs::rename(moved, away);
    fs::create_directory_symlink(away, moved);
    const auto before = files_below(elsewhere.path());

    Log log;
    Store store(options_for(cache, &log));
    CHECK_FALSE(store.find(key));
    store.put(key, make_bytes(20));
    CHECK(store.find(key) == make_bytes(20));
    CHECK(log.warnings().size() == 1);
    CHECK(files_below(elsewhere.path()) == before);
    CHECK(store.stats().memory_only);
    CHECK_FALSE(store.verify().ok());
    CHECK_THROWS_AS(store.clear(), EnvironmentError);
    CHECK(files_below(elsewhere.path()) == before);
  }
}

TEST_CASE("explain and list show the fields of what is whole", "[cache][store]") {
  const TemporaryDirectory root;
  const Key a = make_key("a"), r = make_key("r", "record"), broken = make_key("broken");
  Store store(options_for(root.path()));
  store.put(a, make_bytes(10));
  store.put(broken, make_bytes(10));
  store.put_record(r, 1);
  write_bytes(binary_path(root.path(), broken), make_bytes(3));

  const auto all = store.list();
  REQUIRE(all.size() == 2);
  CHECK(all[0].kind == EntryKind::binary);
  CHECK(all[0].key.fields == a.fields);
  CHECK(all[0].path == binary_path(root.path(), a));
  CHECK(all[0].bytes == fs::file_size(all[0].path));
  CHECK(all[1].kind == EntryKind::record);
  CHECK(all[1].key.explain() == r.explain());

  std::string upper = a.hex().substr(0, 12);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  REQUIRE(store.explain(upper).size() == 1);
  CHECK(store.explain(upper)[0].key == a);
  CHECK(store.explain(a.hex() + "0").empty());
  CHECK(store.explain(broken.hex()).empty());
  CHECK_THROWS_AS(store.explain("../.."), UserError);
  try {
    store.explain("xyz");
    FAIL("accepted");
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).find("xyz") != std::string::npos);
  }
}

TEST_CASE("verify names each problem and changes nothing", "[cache][store]") {
  const TemporaryDirectory root;
  Store store(options_for(root.path()));
  const Key good = make_key("good"), cut = make_key("cut"), link = make_key("link");
  for (const Key& key : {good, cut, link}) store.put(key, make_bytes(100));
  store.put_record(good, 1);
  CHECK(store.verify().ok());
  CHECK(store.verify().checked == 4);

  fs::resize_file(binary_path(root.path(), cut), 50);
  fs::remove(binary_path(root.path(), link));
  fs::create_symlink(binary_path(root.path(), good), binary_path(root.path(), link));
  write_bytes(binary_path(root.path(), good).parent_path() / ".kiln-1-2.tmp", make_bytes(5));
  write_bytes(binary_path(root.path(), good).parent_path() / "README", make_bytes(5));
  const auto before = files_below(root.path());
  const StoreStatistics counted = store.stats();

  const VerifyReport report = store.verify();
  CHECK(report.checked == 4);
  CHECK(report.unfinished == 1);
  REQUIRE(report.problems.size() == 2);
  for (const auto& problem : report.problems) {
    CHECK_FALSE(problem.reason.empty());
    CHECK((problem.path == binary_path(root.path(), cut) ||
           problem.path == binary_path(root.path(), link)));
  }
  CHECK(files_below(root.path()) == before);
  CHECK(store.stats().misses == counted.misses);
  CHECK(store.stats().damaged == counted.damaged);
}

TEST_CASE("verify does not call wrong permissions damage", "[cache][store]") {
  const TemporaryDirectory root;
  Store store(options_for(root.path()));
  const Key good = make_key("good"), open_to_all = make_key("open to all");
  for (const Key& key : {good, open_to_all}) store.put(key, make_bytes(100));
  fs::permissions(binary_path(root.path(), open_to_all), fs::perms::others_write,
                  fs::perm_options::add);

  VerifyReport report = store.verify();
  CHECK(report.problems.empty());
  REQUIRE(report.unreadable.size() == 1);
  CHECK(report.unreadable[0].path == binary_path(root.path(), open_to_all));
  CHECK(report.unreadable[0].reason.find("writable by others") != std::string::npos);
  CHECK_FALSE(report.ok());

  const fs::path shard = binary_path(root.path(), good).parent_path();
  fs::permissions(shard, fs::perms::others_write, fs::perm_options::add);
  report = store.verify();
  CHECK(report.problems.empty());
  CHECK_FALSE(report.unreadable.empty());
}

TEST_CASE("clear removes what Kiln wrote and nothing else", "[cache][store]") {
  const TemporaryDirectory root, elsewhere;
  Store store(options_for(root.path()));
  const Key a = make_key("a"), link = make_key("link");
  store.put(a, make_bytes(100));
  store.put(link, make_bytes(100));
  store.put_record(a, 1);
  const fs::path shard = binary_path(root.path(), a).parent_path();
  fs::remove(binary_path(root.path(), link));
  write_bytes(elsewhere.path() / "victim", make_bytes(5));
  fs::create_symlink(elsewhere.path() / "victim", binary_path(root.path(), link));
  fs::create_symlink(elsewhere.path() / "victim", shard / ".kiln-9-9.tmp");
  write_bytes(shard / ".kiln-1-2.tmp", make_bytes(5));
  write_bytes(shard / "README", make_bytes(5));
  write_bytes(root.path() / "mine.kiln", make_bytes(5));
  write_bytes(shard / (std::string(64, 'g') + ".kiln"), make_bytes(5));
  std::string wrong_shard = a.hex();
  wrong_shard[0] = wrong_shard[0] == '0' ? '1' : '0';
  write_bytes(shard / (wrong_shard + ".kiln"), make_bytes(5));

  CHECK(store.clear() == 3);  // a's binary and record, one temporary file
  CHECK_FALSE(store.find(a));
  CHECK_FALSE(store.find_record(a));
  CHECK(fs::exists(elsewhere.path() / "victim"));
  CHECK(files_below(root.path()).size() == 6);
  store.put(a, make_bytes(100));
  CHECK(Store(options_for(root.path())).find(a) == make_bytes(100));
}

TEST_CASE("old temporary files go at the next write, young and foreign ones stay",
          "[cache][store]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  Store(options_for(root.path())).put(key, make_bytes(10));
  const fs::path shard = binary_path(root.path(), key).parent_path();
  const auto age = [](const fs::path& path, long seconds) {
    const timespec times[2] = {{::time(nullptr) - seconds, 0}, {::time(nullptr) - seconds, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
  };
  const fs::path old_temporary = shard / ".kiln-1-1.tmp", young = shard / ".kiln-1-2.tmp",
                 foreign = shard / "notes.tmp", link = shard / ".kiln-1-3.tmp",
                 directory = shard / ".kiln-1-4.tmp";
  for (const auto& path : {old_temporary, young, foreign}) write_bytes(path, make_bytes(5));
  fs::create_symlink(foreign, link);
  fs::create_directory(directory);
  for (const auto& path : {old_temporary, foreign, link, directory}) age(path, 4000);
  age(young, 3000);

  Store store(options_for(root.path()));
  store.find(key);
  CHECK(fs::exists(old_temporary));  // readers leave things as they are
  store.put(key, make_bytes(20));
  CHECK_FALSE(fs::exists(old_temporary));
  for (const auto& path : {young, foreign, link, directory})
    CHECK(fs::exists(fs::symlink_status(path)));
}

TEST_CASE("a cache removed under a running store is made anew", "[cache][store]") {
  const TemporaryDirectory root;
  Log log;
  Store store(options_for(root.path() / "cache", &log));
  store.put(make_key("a"), make_bytes(10));
  fs::remove_all(root.path() / "cache");
  store.put(make_key("b"), make_bytes(10));
  Store other(options_for(root.path() / "cache"));
  CHECK(other.find(make_key("b")) == make_bytes(10));
  other.put(make_key("c"), make_bytes(10));
  CHECK(store.find(make_key("c")) == make_bytes(10));
  CHECK(log.warnings().empty());
}
