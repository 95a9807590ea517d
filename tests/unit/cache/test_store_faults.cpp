// The store when the disk refuses, or its writer dies.
#include <cerrno>
#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include "cache/store.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Store;
using nlohmann::json;

namespace {

/// How many calls that may fail one put of a binary makes in a directory that does not exist.
int calls_of_a_put() {
  const TemporaryDirectory root;
  auto system = std::make_shared<FaultyFileSystem>();
  Store(options_for(root.path() / "cache"), system).put(make_key("a"), make_bytes(1000));
  return system->calls;
}

/// Refused for good: misses, values kept in memory, one warning that names the path.
void check_refused(const fs::path& directory, const std::string& reason) {
  Log log;
  Store store(options_for(directory, &log));
  const Key key = make_key("a");
  CHECK_FALSE(store.find(key));
  store.put(key, make_bytes(10));
  store.put_record(key, 7);
  store.put(make_key("b"), make_bytes(10));
  CHECK(store.find(key) == make_bytes(10));
  CHECK(store.find_record(key) == json(7));
  REQUIRE(log.warnings().size() == 1);
  INFO(log.warnings()[0]);
  CHECK(log.warnings()[0].find(directory.string()) != std::string::npos);
  CHECK(log.warnings()[0].find(reason) != std::string::npos);
  CHECK(log.warnings()[0].find("KILN_CACHE_DIR") != std::string::npos);
  const StoreStatistics stats = store.stats();
  CHECK(stats.memory_only);
  CHECK(stats.reason.find(reason) != std::string::npos);
  CHECK(stats.failed_writes == 3);
  CHECK(store.list().empty());
}

}  // namespace

TEST_CASE("each call of a put may fail: one warning, memory, nothing half written",
          "[cache][store][faults]") {
  const int calls = calls_of_a_put();
  REQUIRE(calls >= 12);  // 4 directories, their syncs, and create, write, sync, rename, sync
  for (const int code : {ENOSPC, EDQUOT, EIO, EACCES}) {
    for (int failing = 0; failing < calls; ++failing) {
      INFO("call " << failing << " fails with " << code);
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache";
      Log log;
      auto system = std::make_shared<FaultyFileSystem>();
      system->fault = [&](Call call, int nth) {
        return call != Call::read && nth == failing ? code : 0;
      };
      Store store(options_for(directory, &log), system);
      const Key key = make_key("a");
      store.put(key, make_bytes(1000));

      CHECK(store.find(key) == make_bytes(1000));
      REQUIRE(log.warnings().size() == 1);
      CHECK(log.warnings()[0].find(directory.string()) != std::string::npos);
      CHECK(store.stats().failed_writes == 1);
      CHECK(store.stats().memory_only);
      const auto left = Store(options_for(directory)).find(key);
      CHECK((!left || *left == make_bytes(1000)));
      CHECK(Store(options_for(directory)).verify().unfinished == 0);

      store.put(make_key("b"), make_bytes(10));  // the fault is over
      CHECK_FALSE(store.stats().memory_only);
      CHECK(Store(options_for(directory)).find(make_key("b")) == make_bytes(10));
      CHECK(log.warnings().size() == 1);
    }
  }
}

TEST_CASE("a disk that stays full is warned of once", "[cache][store][faults]") {
  const TemporaryDirectory root;
  Log log;
  auto system = std::make_shared<FaultyFileSystem>();
  system->fault = [](Call call, int) { return call == Call::write ? ENOSPC : 0; };
  Store store(options_for(root.path(), &log), system);
  for (int i = 0; i < 20; ++i) {
    const Key key = make_key(std::to_string(i));
    store.put(key, make_bytes(100));
    store.put_record(key, i);
    CHECK(store.find(key) == make_bytes(100));
    CHECK(store.find_record(key) == json(i));
  }
  CHECK(log.warnings().size() == 1);
  CHECK(store.stats().failed_writes == 40);
  CHECK(files_below(root.path()).empty());
  std::size_t records = 0;
  store.each_record([&](const Key&, const json&) { ++records; });
  CHECK(records == 20);
}

TEST_CASE("a record that could not be written hides the older one on disk",
          "[cache][store][faults]") {
  const TemporaryDirectory root;
  auto system = std::make_shared<FaultyFileSystem>();
  Store store(options_for(root.path()), system);
  const Key key = make_key("a", "record");
  store.put_record(key, 1);
  system->fault = [](Call call, int) { return call == Call::rename ? EIO : 0; };
  store.put_record(key, 2);
  CHECK(store.find_record(key) == json(2));
  int seen = 0;
  store.each_record([&](const Key&, const json& record) { seen = 10 * seen + record.get<int>(); });
  CHECK(seen == 2);
  system->fault = [](Call, int) { return 0; };
  store.put_record(key, 3);
  CHECK(store.find_record(key) == json(3));
  CHECK(Store(options_for(root.path())).find_record(key) == json(3));
}

TEST_CASE("a store says why nothing is kept, before anything was written",
          "[cache][store][faults]") {
  const TemporaryDirectory root;
  const fs::path fresh = root.path() / "deep" / "fresh", file = root.path() / "file";
  std::ofstream(file) << "no folder";
  CHECK(Store(options_for(fresh)).stats().reason.empty());
  CHECK_FALSE(fs::exists(fresh));
  CHECK(Store(options_for(fresh)).obstacle().empty());
  CHECK(fs::exists(fresh));
  CHECK_THAT(Store(options_for(file / "below")).obstacle(), Catch::Contains("is not a directory"));
  REQUIRE(::chmod(fresh.c_str(), 0777) == 0);
  CHECK_FALSE(Store(options_for(fresh)).obstacle().empty());
  REQUIRE(::chmod(fresh.c_str(), 0700) == 0);
  const auto system = std::make_shared<FaultyFileSystem>();
  Store full(options_for(fresh), system);
  CHECK(full.obstacle().empty());
  system->fault = [](Call call, int) { return call == Call::create ? ENOSPC : 0; };
  CHECK_THAT(full.obstacle(), Catch::Contains("No space left"));
  system->fault = [](Call call, int) { return call == Call::write ? ENOSPC : 0; };
  CHECK_THAT(full.obstacle(), Catch::Contains("No space left"));
  StoreOptions memory = options_for(fresh);
  memory.disk = false;
  CHECK_FALSE(Store(memory).obstacle().empty());
}

TEST_CASE("records that cannot be written are kept without memory for binaries, up to a bound",
          "[cache][store][faults]") {
  const TemporaryDirectory root;
  REQUIRE(::chmod(root.path().c_str(), 0777) == 0);
  StoreOptions options = options_for(root.path());
  options.memory_bytes = 0;
  Store store(options);
  const Key key = make_key("a", "record");
  store.put_record(key, {{"ms", 1}});
  store.put(make_key("a"), make_bytes(10));
  CHECK(store.find_record(key) == json{{"ms", 1}});
  CHECK_FALSE(store.find(make_key("a")));
  CHECK(store.find_portable(EntryKind::record, key.portable, Store::Where::anywhere,
                            [](const Key&) { return true; }));
  std::size_t kept = 0;
  const auto count = [&](const Key&, const json&) { ++kept; };
  store.each_record(count);
  CHECK(kept == 1);

  const json large = std::string(std::size_t{1} << 20, 'x');
  for (int i = 0; i < 20; ++i) store.put_record(make_key(std::to_string(i), "record"), large);
  CHECK(store.find_record(make_key("19", "record")) == large);
  CHECK_FALSE(store.find_record(key));  // the oldest goes first
  kept = 0;
  store.each_record(count);
  CHECK(kept >= 4);
  CHECK(kept <= 8);
}

TEST_CASE("a failing read is a miss", "[cache][store][faults]") {
  const TemporaryDirectory root;
  const Key key = make_key("a");
  Store(options_for(root.path())).put(key, make_bytes(10));
  Log log;
  auto system = std::make_shared<FaultyFileSystem>();
  int interruptions = 3;
  system->fault = [&](Call call, int) { return call == Call::read ? EIO : 0; };
  Store store(options_for(root.path(), &log), system);
  CHECK_FALSE(store.find(key));
  CHECK_FALSE(store.find(key));
  CHECK(store.stats().misses == 2);
  CHECK(log.warnings().size() == 1);
  system->fault = [&](Call call, int) {
    return call == Call::read && interruptions-- > 0 ? EINTR : 0;
  };
  CHECK(store.find(key) == make_bytes(10));
}

TEST_CASE("a file system without fsync still keeps entries", "[cache][store][faults]") {
  const TemporaryDirectory root;
  auto system = std::make_shared<FaultyFileSystem>();
  system->fault = [](Call call, int) { return call == Call::sync ? EINVAL : 0; };
  Store store(options_for(root.path()), system);
  store.put(make_key("a"), make_bytes(10));
  CHECK(store.stats().failed_writes == 0);
  CHECK(Store(options_for(root.path())).find(make_key("a")) == make_bytes(10));
}

TEST_CASE("a writer killed at any call leaves whole entries only", "[cache][store][faults]") {
  const int calls = calls_of_a_put();
  const Key old_key = make_key("old"), key = make_key("a");
  for (const bool replacing : {false, true}) {
    int killed = 0;
    for (int fatal = 0; fatal < calls + 2; ++fatal) {
      INFO("killed before call " << fatal);
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache";
      if (replacing) {
        Store(options_for(directory)).put(old_key, make_bytes(500));
        Store(options_for(directory)).put(key, make_bytes(500));
      }
      const int status = in_child([&] {
        auto system = std::make_shared<FaultyFileSystem>();
        system->short_writes = true;  // so that some kills fall between the parts of a file
        system->fault = [&](Call call, int nth) {
          if (call != Call::read && nth == fatal) ::kill(::getpid(), SIGKILL);
          return 0;
        };
        Store(options_for(directory), system).put(key, make_bytes(1000));
        return 0;
      });
      killed += status == -SIGKILL;
      CHECK((status == -SIGKILL || status == 0));

      Store store(options_for(directory));
      const auto found = store.find(key);
      if (replacing) {
        REQUIRE(found);
        CHECK((*found == make_bytes(500) || *found == make_bytes(1000)));
        CHECK(store.find(old_key) == make_bytes(500));
      } else {
        CHECK((!found || *found == make_bytes(1000)));
      }
      const VerifyReport report = store.verify();
      CHECK(report.ok());
      CHECK(report.unfinished <= 1);
      store.put(key, make_bytes(2000));
      CHECK(Store(options_for(directory)).find(key) == make_bytes(2000));
    }
    CHECK(killed >= 5);
  }
}

TEST_CASE("a directory that others may write to is not used", "[cache][store][guard]") {
  const Key key = make_key("a");
  for (const unsigned mode : {0702u, 0720u, 0777u, 01777u}) {
    const TemporaryDirectory root;
    Store(options_for(root.path())).put(key, make_bytes(99));
    REQUIRE(::chmod(root.path().c_str(), mode) == 0);
    const auto before = files_below(root.path());
    check_refused(root.path(), "writable by others");
    CHECK(files_below(root.path()) == before);
    CHECK_THROWS_AS(Store(options_for(root.path())).clear(), EnvironmentError);
    CHECK(files_below(root.path()) == before);
    REQUIRE(::chmod(root.path().c_str(), 0700) == 0);
  }
  for (const fs::path& inner : {fs::path("v1"), fs::path("v1/binaries"),
                                fs::path("v1/binaries") / key.hex().substr(0, 2)}) {
    const TemporaryDirectory root;
    Store(options_for(root.path())).put(key, make_bytes(99));
    REQUIRE(::chmod((root.path() / inner).c_str(), 0777) == 0);
    Log log;
    Store store(options_for(root.path(), &log));
    CHECK_FALSE(store.find(key));
    CHECK(log.warnings().size() == 1);
  }
}

TEST_CASE("another user's directory is not used, by root neither", "[cache][store][guard]") {
  if (::geteuid() != 0) KILN_SKIP("only root may give a directory away");
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cache";
  Store(options_for(directory)).put(make_key("a"), make_bytes(99));
  REQUIRE(::chown(directory.c_str(), 65534, 65534) == 0);
  const auto before = files_below(directory);
  check_refused(directory, "belongs to uid 65534");
  CHECK(files_below(directory) == before);
}

TEST_CASE("another user's entry is not read, by root neither", "[cache][store][guard]") {
  if (::geteuid() != 0) KILN_SKIP("only root may give a file away");
  const TemporaryDirectory root;
  const Key key = make_key("a");
  Store(options_for(root.path())).put(key, make_bytes(10));
  REQUIRE(::chown(binary_path(root.path(), key).c_str(), 65534, 65534) == 0);
  Store store(options_for(root.path()));
  CHECK_FALSE(store.find(key));
  CHECK(store.stats().damaged == 1);
  store.put(key, make_bytes(77));
  CHECK(store.stats().repaired == 1);
  CHECK(Store(options_for(root.path())).find(key) == make_bytes(77));
}

TEST_CASE("what is no directory is not used", "[cache][store][guard]") {
  const TemporaryDirectory root;
  write_bytes(root.path() / "file", make_bytes(5));
  check_refused(root.path() / "file", "is not a directory");
  CHECK(read_bytes(root.path() / "file") == make_bytes(5));
  check_refused(root.path() / "file" / "below", "directory");
  REQUIRE(::mkfifo((root.path() / "fifo").c_str(), 0600) == 0);
  check_refused(root.path() / "fifo", "is not a directory");
  fs::create_directory(root.path() / "real");
  fs::create_directory_symlink(root.path() / "real", root.path() / "link");
  check_refused(root.path() / "link", "symbolic link");
  CHECK(fs::is_empty(root.path() / "real"));
  // A link further up is the user's own arrangement.
  Store store(options_for(root.path() / "link" / "cache"));
  store.put(make_key("a"), make_bytes(10));
  CHECK(Store(options_for(root.path() / "real" / "cache")).find(make_key("a")) == make_bytes(10));
}

TEST_CASE("a read-only directory is read, and written to in memory", "[cache][store][guard]") {
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cache";
  REQUIRE(::chmod(root.path().c_str(), 0777) == 0);
  const int code = in_child([&] {
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) return 1;
    const Key key = make_key("a"), shut = make_key("shut");
    Store(options_for(directory)).put(key, make_bytes(10));
    std::vector<fs::path> directories{directory};
    for (const auto& item : fs::recursive_directory_iterator(directory))
      if (item.is_directory()) directories.push_back(item.path());
    for (const auto& path : directories) ::chmod(path.c_str(), 0500);
    int result = 0;
    {
      Log log;
      Store store(options_for(directory, &log));
      if (store.find(key) != make_bytes(10)) result = 2;
      store.put(shut, make_bytes(20));
      store.put(key, make_bytes(20));
      if (store.find(shut) != make_bytes(20)) result = 3;
      if (log.warnings().size() != 1) result = 4;
      if (!store.stats().memory_only) result = 5;
      try {
        store.clear();
        result = 6;
      } catch (const EnvironmentError&) {
      }
    }
    for (const auto& path : directories) ::chmod(path.c_str(), 0700);
    return result;
  });
  CHECK(code == 0);
}
