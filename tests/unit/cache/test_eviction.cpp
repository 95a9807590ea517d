// The size of the store: which entries go, which stay, and none is lost meanwhile.
#include <atomic>
#include <chrono>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include "cache/atomic_file.hpp"
#include "cache/disk_level.hpp"
#include "cache/entry.hpp"
#include "cache/record.hpp"
#include "cache/size.hpp"
#include "cache/store.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Store;
using nlohmann::json;

namespace {

constexpr std::size_t kPayload = 10'000;

void age(const fs::path& path, long seconds) {
  const timespec times[2] = {{::time(nullptr) - seconds, 0}, {::time(nullptr) - seconds, 0}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

long age_of(const fs::path& path) {
  struct stat status{};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return ::time(nullptr) - status.st_mtim.tv_sec;
}

/// Whole, but of a version that is not known yet.
Buffer newer_entry(const Key& key) {
  Buffer file = cache::encode_entry(key, make_bytes(kPayload));
  file[8] = std::byte{99};
  const Digest checksum = sha256(std::span(file).first(file.size() - sizeof(Digest)));
  std::copy(checksum.begin(), checksum.end(), file.end() - sizeof(Digest));
  return file;
}

}  // namespace

TEST_CASE("a hit sets an old stamp to now, a young one not, and the future's neither stays",
          "[cache][eviction]") {
  const TemporaryDirectory root;
  auto system = std::make_shared<FaultyFileSystem>();
  Store store(evicting_options(root.path()), system);
  const Key key = make_key("a");
  store.put(key, make_bytes(10));
  store.put_record(key, 1);
  for (const fs::path& path : {binary_path(root.path(), key), record_path(root.path(), key)}) {
    const auto hit = [&] {
      return path.extension() == ".json" ? store.find_record(key).has_value()
                                         : store.find(key).has_value();
    };
    age(path, 3000);
    CHECK(hit());
    CHECK(age_of(path) >= 3000);
    age(path, 4000);
    CHECK(hit());
    CHECK(age_of(path) < 1000);
    age(path, -4000);  // some clock was wrong
    CHECK(hit());
    CHECK(age_of(path) > -1000);

    age(path, 4000);
    store.list();
    store.verify();
    store.each_record([](const Key&, const json&) {});
    CHECK(age_of(path) >= 4000);  // looking is not using
    system->fault = [](Call call, int) { return call == Call::touch ? EROFS : 0; };
    CHECK(hit());
    CHECK(age_of(path) >= 4000);
    system->fault = [](Call, int) { return 0; };
  }
  age(binary_path(root.path(), key), 4000);
  store.put(key, make_bytes(10));  // the same again is use as well
  CHECK(age_of(binary_path(root.path(), key)) < 1000);
  const auto used = std::chrono::system_clock::now() - store.list().at(0).used;
  CHECK(used < std::chrono::minutes(10));
  CHECK(used > -std::chrono::minutes(10));
}

TEST_CASE("trim removes the least recently used, binaries before records", "[cache][eviction]") {
  const TemporaryDirectory root;
  Store store(evicting_options(root.path()));
  std::vector<Key> keys;
  for (int i = 0; i < 10; ++i) {
    keys.push_back(make_key("k" + std::to_string(i)));
    store.put(keys.back(), make_bytes(kPayload));
    age(binary_path(root.path(), keys.back()), 10'000 - 500 * i);
    store.put_record(keys.back(), i);
    age(record_path(root.path(), keys.back()), 90'000 - 500 * i);
  }
  REQUIRE(store.find(keys[0]));  // the oldest, but used now
  const std::uint64_t all = store.stats().bytes, each = (kPayload + 500);
  const TrimReport report = store.trim(all - 4 * each);
  CHECK(report.entries == 5);
  CHECK(report.left == store.stats().bytes);
  CHECK(report.left == all - report.bytes);
  CHECK(report.left <= all - 4 * each);
  CHECK(store.stats().evicted == 5);
  CHECK(store.stats().records == 10);
  for (int i = 0; i < 10; ++i) {
    INFO(i);
    CHECK(store.find(keys[static_cast<std::size_t>(i)]).has_value() == (i == 0 || i > 5));
  }
  CHECK(store.trim(all).entries == 0);

  const TrimReport most = store.trim(store.stats().bytes - 5 * (kPayload + 600) - 1);
  CHECK(most.entries >= 6);  // the binaries were not enough
  CHECK(store.stats().binaries == 0);
  CHECK_FALSE(store.find_record(keys[0]));
  CHECK(store.find_record(keys[9]) == json(9));
  CHECK(store.trim(0).left == 0);
  CHECK(files_below(root.path()).empty());
}

TEST_CASE("trim leaves what is newer, planted, or not Kiln's", "[cache][eviction]") {
  const TemporaryDirectory root, elsewhere;
  Store store(evicting_options(root.path()));
  const Key a = make_key("a"), newer = make_key("newer"), link = make_key("link"),
            damaged = make_key("damaged");
  for (const Key& key : {a, newer, link, damaged}) {
    store.put(key, make_bytes(kPayload));
    store.put_record(key, 1);
  }
  write_bytes(binary_path(root.path(), newer), newer_entry(newer));
  Buffer torn = newer_entry(damaged);
  torn.back() ^= std::byte{1};
  write_bytes(binary_path(root.path(), damaged), torn);
  std::string text = cache::encode_record(newer, 1);
  text.replace(text.find("\"version\": 2"), 12, "\"version\": 9");
  const auto end = text.rfind(",\n  \"sha256\"");
  text.replace(end + 15, 64, to_hex(sha256(std::string_view(text).substr(0, end))));
  write_bytes(record_path(root.path(), newer), std::as_bytes(std::span(text)));
  REQUIRE(store.verify().newer == 2);
  write_bytes(elsewhere.path() / "victim", make_bytes(kPayload));
  fs::remove(binary_path(root.path(), link));
  fs::create_symlink(elsewhere.path() / "victim", binary_path(root.path(), link));
  const fs::path notes = binary_path(root.path(), a).parent_path() / "notes";
  write_bytes(notes, make_bytes(10));

  const TrimReport report = store.trim(0);
  CHECK(report.entries == 5);  // a, damaged; the records but one
  CHECK(report.left == fs::file_size(binary_path(root.path(), newer)) + text.size());
  CHECK(read_bytes(binary_path(root.path(), newer)) == newer_entry(newer));
  CHECK(fs::exists(record_path(root.path(), newer)));
  CHECK(fs::is_symlink(binary_path(root.path(), link)));
  CHECK(fs::exists(elsewhere.path() / "victim"));
  CHECK(fs::exists(notes));
}

TEST_CASE("trim sweeps abandoned files by the age that the file server tells",
          "[cache][eviction]") {
  const TemporaryDirectory root;
  Store store(evicting_options(root.path()));
  const Key key = make_key("a");
  store.put(key, make_bytes(10));
  {
    cache::WorkLock lock;
    REQUIRE(store.lock(EntryKind::binary, make_key("b"), lock) == cache::WorkLock::Outcome::held);
  }
  const fs::path shard = binary_path(root.path(), key).parent_path(),
                 locks = root.path() / "v1" / "locks";
  const std::vector<fs::path> old{shard / ".kiln-1-1.tmp", locks / ".kiln-1-2.tmp",
                                  locks / "dead.lock"},
      young{shard / ".kiln-1-3.tmp", locks / "live.lock", locks / "notes"};
  for (const auto& path : old) write_bytes(path, make_bytes(5));
  for (const auto& path : young) write_bytes(path, make_bytes(5));
  for (const auto& path : old) age(path, 4000);
  for (const auto& path : young) age(path, 3000);
  age(locks / "notes", 9000);
  const TrimReport report = store.trim(1 << 20);
  CHECK(report.abandoned == 3);
  CHECK(report.entries == 0);
  for (const auto& path : old) CHECK_FALSE(fs::exists(path));
  for (const auto& path : young) CHECK(fs::exists(path));
  CHECK(store.find(key) == make_bytes(10));
}

TEST_CASE("trim of a directory that may not be used is an error", "[cache][eviction]") {
  const TemporaryDirectory root;
  Store store(evicting_options(root.path()));
  store.put(make_key("a"), make_bytes(10));
  REQUIRE(::chmod(root.path().c_str(), 0777) == 0);
  CHECK_THROWS_AS(store.trim(0), EnvironmentError);
  CHECK(files_below(root.path()).size() == 1);
  REQUIRE(::chmod(root.path().c_str(), 0700) == 0);
  REQUIRE(::chmod((root.path() / "v1" / "binaries").c_str(), 0777) == 0);
  CHECK_THROWS_AS(Store(evicting_options(root.path())).trim(0), EnvironmentError);
  CHECK(files_below(root.path()).size() == 1);
  StoreOptions none;
  none.disk = false;
  CHECK(Store(none).trim(0).entries == 0);
}

TEST_CASE("the store keeps to its size by itself", "[cache][eviction]") {
  const TemporaryDirectory root;
  constexpr std::uint64_t kLimit = 10 * (kPayload + 1000);
  Store store(evicting_options(root.path(), kLimit));
  CHECK(store.stats().max_bytes == kLimit);
  for (int i = 0; i < 60; ++i) {
    const Key key = make_key(std::to_string(i));
    store.put(key, make_bytes(kPayload));
    CHECK(store.find(key) == make_bytes(kPayload));  // never the one just written
    CHECK(store.stats().bytes <= kLimit);
    age(binary_path(root.path(), key), 1000 - i);
  }
  CHECK(store.stats().evicted >= 50);
  CHECK(store.stats().binaries >= 8);  // nine tenths, not nothing
  CHECK(store.find(make_key("58")));
  CHECK_FALSE(store.find(make_key("0")));
  CHECK(store.verify().ok());
}

TEST_CASE("the store keeps to its number of files by itself", "[cache][eviction]") {
  const TemporaryDirectory root;
  StoreOptions options = evicting_options(root.path());
  options.max_files = 40;
  Store store(options, std::make_shared<FaultyFileSystem>());
  CHECK(store.stats().max_files == 40);
  for (int i = 0; i < 200; ++i) {
    const Key key = make_key(std::to_string(i));
    store.put(key, make_bytes(10));
    CHECK(store.find(key) == make_bytes(10));  // never the one just written
    CHECK(files_below(root.path()).size() <= 40);
    age(binary_path(root.path(), key), 10'000 - i);
  }
  CHECK(store.stats().files >= 36);  // nine tenths, not nothing
  CHECK(store.stats().evicted == 200 - store.stats().files);
  CHECK(store.find(make_key("198")));
  CHECK_FALSE(store.find(make_key("0")));
  // Records are counted as well, and go after all binaries.
  for (int i = 0; i < 20; ++i) store.put_record(make_key(std::to_string(i)), i);
  CHECK(store.stats().records == 20);
  CHECK(store.stats().files <= 40);
  CHECK(store.stats().files == store.stats().binaries + 20);
  CHECK(store.verify().ok());
}

TEST_CASE("many small files are noticed by looking at a part of them", "[cache][eviction]") {
  const TemporaryDirectory root;
  const auto system = std::make_shared<FaultyFileSystem>();
  {
    Store store(evicting_options(root.path()), system);
    for (int i = 0; i < 3000; ++i) store.put(make_key(std::to_string(i)), make_bytes(1));
  }
  StoreOptions options = evicting_options(root.path());
  options.max_files = 2900;  // reached by an estimate first, then by counting all
  Store store(options, system);
  store.put(make_key("new"), make_bytes(1));
  CHECK(store.stats().files == 2610);
  CHECK(store.find(make_key("new")));
  options.max_files = 10'000;
  Store(options, system).put(make_key("more"), make_bytes(1));
  CHECK(store.stats().files == 2611);
}

TEST_CASE("trim goes down to a number of files, too", "[cache][eviction]") {
  const TemporaryDirectory root;
  Store store(evicting_options(root.path()));
  for (int i = 0; i < 10; ++i) {
    store.put(make_key(std::to_string(i)), make_bytes(10));
    age(binary_path(root.path(), make_key(std::to_string(i))), 1000 - i);
  }
  const TrimReport report = store.trim(1 << 20, 3);
  CHECK(report.entries == 7);
  CHECK(report.left_files == 3);
  CHECK(report.left == store.stats().bytes);
  for (int i = 0; i < 10; ++i)
    CHECK(store.find(make_key(std::to_string(i))).has_value() == (i >= 7));
  CHECK(store.trim(1 << 20, 3).entries == 0);
  CHECK(store.trim(1 << 20, 0).left_files == 0);
}

TEST_CASE("a dropped entry is off the disk, and only that one", "[cache][eviction]") {
  const TemporaryDirectory root;
  StoreOptions options = evicting_options(root.path());
  options.memory_bytes = 1 << 20;
  Store store(options);
  const Key a = make_key("a"), b = make_key("b");
  for (const Key& key : {a, b}) {
    store.put(key, make_bytes(10));
    store.put_record(key, 1);
  }
  store.drop(EntryKind::binary, a.digest);
  CHECK_FALSE(fs::exists(binary_path(root.path(), a)));
  CHECK(store.stats().files == 3);
  CHECK(store.find(a));  // in memory
  CHECK_FALSE(Store(evicting_options(root.path())).find(a));
  store.drop(EntryKind::binary, a.digest);  // is no error
  StoreOptions none;
  none.disk = false;
  Store(none).drop(EntryKind::binary, a.digest);
  CHECK(store.stats().files == 3);
}

TEST_CASE("a store that found the directory full already makes room at its first write",
          "[cache][eviction]") {
  const TemporaryDirectory root;
  {
    Store store(evicting_options(root.path()));
    for (int i = 0; i < 20; ++i) store.put(make_key(std::to_string(i)), make_bytes(kPayload));
  }
  Store store(evicting_options(root.path(), 5 * (kPayload + 1000)));
  store.find(make_key("0"));
  CHECK(store.stats().binaries == 20);  // readers remove nothing
  store.put(make_key("new"), make_bytes(10));
  CHECK(store.stats().bytes <= 5 * (kPayload + 1000));
  CHECK(store.find(make_key("new")));
}

TEST_CASE("the limit comes from the options, else from the environment", "[cache][eviction]") {
  const auto limit = [](const char* value, Log* log = nullptr) {
    value ? ::setenv("KILN_CACHE_SIZE", value, 1) : ::unsetenv("KILN_CACHE_SIZE");
    StoreOptions options;
    options.disk = false;
    if (log != nullptr) options.log = log->sink();
    const std::uint64_t bytes = Store(options).stats().max_bytes;
    options.max_bytes = 77;
    CHECK(Store(options).stats().max_bytes == 77);
    ::unsetenv("KILN_CACHE_SIZE");
    return bytes;
  };
  constexpr std::uint64_t kDefault = std::uint64_t{5} << 30;
  CHECK(limit(nullptr) == kDefault);
  CHECK(limit("") == kDefault);
  CHECK(limit("0") == kDefault);
  CHECK(limit("2M") == 2 << 20);
  Log log;
  CHECK(limit("much", &log) == kDefault);
  CHECK(log.warnings().size() == 1);
  CHECK(cache::parse_size("0") == 0u);
  CHECK(cache::parse_size("123") == 123u);
  CHECK(cache::parse_size("1K") == 1024u);
  CHECK(cache::parse_size("3T") == std::uint64_t{3} << 40);
  CHECK(cache::parse_size("16777215T") == std::uint64_t{16777215} << 40);
  for (const char* bad : {"", "G", "-1", "+1", " 1", "1 G", "1GB", "1g", "1.5G", "0x10",
                          "16777216T", "99999999999999999999"})
    CHECK_FALSE(cache::parse_size(bad));
}

TEST_CASE("the number of files comes from the options, else from the environment",
          "[cache][eviction]") {
  const auto limit = [](const char* value, Log* log = nullptr) {
    value ? ::setenv("KILN_CACHE_FILES", value, 1) : ::unsetenv("KILN_CACHE_FILES");
    StoreOptions options;
    options.disk = false;
    if (log != nullptr) options.log = log->sink();
    const std::uint64_t files = Store(options).stats().max_files;
    options.max_files = 77;
    CHECK(Store(options).stats().max_files == 77);
    ::unsetenv("KILN_CACHE_FILES");
    return files;
  };
  CHECK(limit(nullptr) == 100'000);
  CHECK(limit("0") == 100'000);
  CHECK(limit("123") == 123);
  CHECK(limit("2K") == 2048);
  Log log;
  CHECK(limit("many", &log) == 100'000);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.warnings()[0].find("KILN_CACHE_FILES is 'many'") != std::string::npos);
}

TEST_CASE("readers, writers and evictors at once: whole entries, and the last rewrite stays",
          "[cache][eviction][race]") {
  const TemporaryDirectory root;
  const auto payload = [](int key, int version) {
    return make_bytes(3000, static_cast<unsigned>(1 + key * 1000 + version));
  };
  constexpr int kKeys = 4, kRounds = 150;
  std::vector<std::unique_ptr<Child>> children;
  for (int evictor = 0; evictor < 3; ++evictor)
    children.push_back(std::make_unique<Child>([&] {
      Store store(evicting_options(root.path()), std::make_shared<FaultyFileSystem>());
      for (int round = 0; round < 3 * kRounds; ++round) store.trim(round % 3 * 3500u);
      return 0;
    }));
  for (int number = 0; number < kKeys; ++number)
    children.push_back(std::make_unique<Child>([&, number] {
      Store store(evicting_options(root.path()), std::make_shared<FaultyFileSystem>());
      const Key key = make_key(std::to_string(number));
      for (int version = 0; version < kRounds; ++version) {
        store.put(key, payload(number, version));
        const auto found = store.find(key);
        if (found && *found != payload(number, version)) return 1;  // an older one came back
      }
      return store.stats().damaged == 0 && store.stats().failed_writes == 0 ? 0 : 2;
    }));
  for (auto& child : children) CHECK(child->wait() == 0);
  Store store(evicting_options(root.path()));
  CHECK(store.verify().ok());
  CHECK(store.verify().unfinished == 0);
}

TEST_CASE("evictors that compete remove no more than was asked for", "[cache][eviction][race]") {
  const TemporaryDirectory root;
  Store store(evicting_options(root.path()));
  for (int i = 10; i < 50; ++i) store.put(make_key(std::to_string(i)), make_bytes(kPayload));
  const std::uint64_t target = store.stats().bytes / 2;
  std::atomic<std::uint64_t> removed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back(
        [&] { removed += Store(evicting_options(root.path())).trim(target).entries; });
  for (std::thread& thread : threads) thread.join();
  CHECK(removed == 20);
  CHECK(store.stats().binaries == 20);
}
