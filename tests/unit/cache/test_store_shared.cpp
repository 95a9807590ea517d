// A store that is shared with a group, as on a volume that root has made for containers of any uid.
#include <functional>
#include <vector>

#include <fcntl.h>
#include <grp.h>
#include <nlohmann/json.hpp>

#include "cache/directory_guard.hpp"
#include "cache/store.hpp"
#include "cache/work_lock.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Store;

namespace {

constexpr gid_t kGroup = 51234, kOtherGroup = 51235;
constexpr uid_t kOne = 1000123, kOther = 1000456;

StoreOptions shared(const fs::path& directory, Log* log = nullptr) {
  StoreOptions options = options_for(directory, log);
  options.sharing = StoreSharing::group;
  options.memory_bytes = 0;  // what is found is on disk
  return options;
}

struct User {
  uid_t uid;
  gid_t gid;
  std::vector<gid_t> groups{};
};

/// The first check that fails in a process of that user; 0: none. Only for root.
int as(const User& user, mode_t mask, const std::function<int()>& body) {
  return in_child([&] {
    ::umask(mask);
    if (::setgroups(user.groups.size(), user.groups.data()) != 0 ||
        ::setresgid(user.gid, user.gid, user.gid) != 0 ||
        ::setresuid(user.uid, user.uid, user.uid) != 0)
      return 100;
    return body();
  });
}

/// A folder of root's that the group may write to, below one that anybody may pass.
struct Volume {
  TemporaryDirectory root;
  fs::path path = root.path() / "cache";

  explicit Volume(mode_t mode = 02775, gid_t group = kGroup) {
    REQUIRE(::chmod(root.path().c_str(), 0755) == 0);
    fs::create_directory(path);
    REQUIRE(::chown(path.c_str(), 0, group) == 0);
    REQUIRE(::chmod(path.c_str(), mode) == 0);
  }
};

#define NEEDS_ROOT() \
  if (::geteuid() != 0) KILN_SKIP("only root may give a directory away and become another user")

}  // namespace

TEST_CASE("a volume of root's is used by its group if that is asked for, else not",
          "[cache][store][shared]") {
  NEEDS_ROOT();
  const Volume volume;
  const Key a = make_key("a");
  const int strict = as({kOne, kGroup}, 022, [&] {
    Log log;
    Store store(options_for(volume.path, &log));
    store.put(a, make_bytes(10));
    store.put_record(a, 1);
    if (log.warnings().size() != 1) return 1;
    if (log.warnings()[0].find("KILN_CACHE_SHARED=group if you trust all members of group 51234") ==
        std::string::npos)
      return 2;
    return store.stats().memory_only && store.find(a) ? 0 : 3;
  });
  CHECK(strict == 0);
  CHECK(fs::is_empty(volume.path));

  const int one = as({kOne, kGroup}, 077, [&] {  // whatever the umask
    Log log;
    Store store(shared(volume.path, &log));
    if (log.at(LogLevel::info).size() != 1) return 1;
    store.put(a, make_bytes(10));
    store.put_record(a, 1);
    if (!log.warnings().empty()) return 2;
    if (store.stats().memory_only || store.stats().files != 2) return 3;
    Log again;
    return Store(shared(volume.path, &again)).find(a) == make_bytes(10) && again.warnings().empty()
               ? 0
               : 4;
  });
  CHECK(one == 0);
  for (const auto& item : fs::recursive_directory_iterator(volume.path)) {
    INFO(item.path());
    struct stat status{};
    REQUIRE(::lstat(item.path().c_str(), &status) == 0);
    CHECK(status.st_gid == kGroup);
    CHECK(status.st_uid == kOne);
    CHECK((status.st_mode & 07777) == (item.is_directory() ? 02770 : 0660));
  }

  // Another uid reads, replaces, locks, trims, and removes.
  const int other = as({kOther, kGroup}, 022, [&] {
    Log log;
    Store store(shared(volume.path, &log));
    if (store.find(a) != make_bytes(10)) return 1;
    if (store.find_record(a) != nlohmann::json(1)) return 2;
    store.put(a, make_bytes(20));
    if (store.find(a) != make_bytes(20)) return 3;
    store.put(make_key("b"), make_bytes(30));
    cache::WorkLock lock;
    if (store.lock(EntryKind::record, make_key("c"), lock) != cache::WorkLock::Outcome::held)
      return 4;
    lock = {};
    if (!store.identity()) return 5;
    if (store.trim(1 << 20, 1).left_files != 1) return 6;
    if (store.clear() == 0 || store.stats().files != 0) return 7;
    return log.warnings().empty() ? 0 : 8;
  });
  CHECK(other == 0);
}

TEST_CASE("without the bit for groups, what is made still gets the volume's group",
          "[cache][store][shared]") {
  NEEDS_ROOT();
  const Volume volume(0775);
  const Key key = make_key("a");
  const int one = as({kOne, kOtherGroup, {kGroup}}, 022, [&] {
    Store(shared(volume.path)).put(key, make_bytes(10));
    return Store(shared(volume.path)).find(key) ? 0 : 1;
  });
  CHECK(one == 0);
  struct stat status{};
  REQUIRE(::lstat(binary_path(volume.path, key).c_str(), &status) == 0);
  CHECK(status.st_gid == kGroup);
  CHECK(as({kOther, kGroup}, 022, [&] {
          Store store(shared(volume.path));
          store.put(make_key("b"), make_bytes(10));
          return store.find(key) && Store(shared(volume.path)).find(make_key("b")) ? 0 : 1;
        }) == 0);
}

TEST_CASE("two processes of different users wait for each other's work", "[cache][store][shared]") {
  NEEDS_ROOT();
  const Volume volume;
  const Key key = make_key("a");
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  Child holder([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kGroup, kGroup, kGroup) != 0 ||
        ::setresuid(kOne, kOne, kOne) != 0)
      return 100;
    Store store(shared(volume.path));
    cache::WorkLock lock;
    const bool held = store.lock(EntryKind::binary, key, lock) == cache::WorkLock::Outcome::held;
    if (::write(ready[1], held ? "y" : "n", 1) != 1) return 101;
    ::usleep(300'000);
    store.put(key, make_bytes(10));
    return 0;
  });
  char held = 0;
  REQUIRE(::read(ready[0], &held, 1) == 1);
  REQUIRE(held == 'y');
  CHECK(as({kOther, kGroup}, 022, [&] {
          Store store(shared(volume.path));
          cache::WorkLock lock;
          const auto outcome = store.lock(EntryKind::binary, key, lock);
          return outcome == cache::WorkLock::Outcome::ready && lock.waited() && store.find(key) ? 0
                                                                                                : 1;
        }) == 0);
  CHECK(holder.wait() == 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("what others may write to, links, and other groups are refused all the same",
          "[cache][store][shared]") {
  NEEDS_ROOT();
  const Key key = make_key("a");
  const auto refusal = [&](const fs::path& path, const User& user, const std::string& why) {
    return as(user, 022, [&] {
      Log log;
      Store store(shared(path, &log));
      store.put(key, make_bytes(10));
      if (!store.stats().memory_only) return 1;
      if (log.warnings().size() != 1) return 2;
      return log.warnings()[0].find(why) == std::string::npos ? 3 : 0;
    });
  };
  const Volume open(02777), foreign(02775, kOtherGroup), linked;
  CHECK(refusal(open.path, {kOne, kGroup}, "writable by others") == 0);
  CHECK(refusal(foreign.path, {kOne, kGroup}, "this process is not in that group") == 0);
  CHECK(refusal(linked.path, {kOne, kOtherGroup}, "this process is not in that group") == 0);
  fs::create_directory_symlink(linked.path, linked.root.path() / "link");
  CHECK(refusal(linked.root.path() / "link", {kOne, kGroup}, "symbolic link") == 0);
  for (const Volume* volume : {&open, &foreign, &linked}) CHECK(fs::is_empty(volume->path));

  // Planted below: each is a miss.
  const Volume volume;
  const auto finds = [&] {
    return as({kOther, kGroup}, 022, [&] {
      Log log;
      Store store(shared(volume.path, &log));
      return store.find(key) == make_bytes(10) ? 0 : 1;
    });
  };
  REQUIRE(as({kOne, kGroup}, 022, [&] {
            Store(shared(volume.path)).put(key, make_bytes(10));
            return 0;
          }) == 0);
  const fs::path file = binary_path(volume.path, key), shard = file.parent_path();
  CHECK(finds() == 0);
  REQUIRE(::chmod(file.c_str(), 0666) == 0);
  CHECK(finds() == 1);
  REQUIRE(::chmod(file.c_str(), 0660) == 0);
  REQUIRE(::chown(file.c_str(), kOne, kOtherGroup) == 0);  // members of another group may write
  CHECK(finds() == 1);
  REQUIRE(::chown(file.c_str(), kOne, kGroup) == 0);
  CHECK(finds() == 0);
  REQUIRE(::chmod(shard.c_str(), 02777) == 0);
  CHECK(finds() == 1);
  REQUIRE(::chmod(shard.c_str(), 02770) == 0);
  fs::rename(file, volume.root.path() / "elsewhere");
  fs::create_symlink(volume.root.path() / "elsewhere", file);
  CHECK(finds() == 1);
}

TEST_CASE("one's own folder can be shared with one's own group", "[cache][store][shared]") {
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cache";
  const mode_t before = ::umask(077);
  Log log;
  Store(shared(directory, &log)).put(make_key("a"), make_bytes(10));
  ::umask(before);
  CHECK(log.warnings().empty());
  REQUIRE(log.at(LogLevel::info).size() == 1);
  CHECK(log.at(LogLevel::info)[0].find("every member can put code there") != std::string::npos);
  CHECK(mode_of(directory) == 02770);
  CHECK(mode_of(binary_path(directory, make_key("a"))) == 0660);
  // A store that was private until now remains usable, and its files as they are.
  const fs::path own = root.path() / "own";
  Store(options_for(own)).put(make_key("a"), make_bytes(10));
  CHECK(Store(shared(own)).find(make_key("a")) == make_bytes(10));
  CHECK(mode_of(own) == 0700);
  // The other way round it is refused, as any folder that a group may write to.
  Log strict;
  CHECK_FALSE(Store(options_for(directory, &strict)).find(make_key("a")));
  CHECK(strict.warnings().size() == 1);
}

TEST_CASE("folders above a shared store are ordinary ones", "[cache][store][shared]") {
  const TemporaryDirectory root;
  const auto make = [&](const char* name, mode_t mask) {
    const mode_t before = ::umask(mask);
    Store(shared(root.path() / name / "b" / "cache")).put(make_key("a"), make_bytes(10));
    ::umask(before);
    return root.path() / name;
  };
  const fs::path open = make("open", 022), closed = make("closed", 077);
  CHECK(mode_of(open) == 0755);
  CHECK(mode_of(open / "b") == 0755);
  CHECK(mode_of(open / "b" / "cache") == 02770);
  CHECK(mode_of(closed) == 0700);
  CHECK(mode_of(closed / "b" / "cache") == 02770);
}

namespace {

/// Looks at a lock's name before each step towards it.
class Watching final : public cache::FileSystem {
 public:
  Watching() : FileSystem(StoreSharing::group) {}
  fs::path lock;
  int looks = 0, seen = 0;

  int create(int directory, const char* name) override {
    const int fd = FileSystem::create(directory, name);
    look();
    return fd;
  }
  ssize_t write(int fd, const void* data, std::size_t size) override {
    const ssize_t written = FileSystem::write(fd, data, size);
    look();
    return written;
  }

 private:
  void look() {
    ++looks;
    seen += fs::exists(lock);
  }
};

}  // namespace

TEST_CASE("a shared lock is complete before others see it", "[cache][store][shared]") {
  const TemporaryDirectory root;
  const auto files = std::make_shared<Watching>();
  files->lock = root.path() / "cache" / "v1" / "locks" / "abcd.lock";
  cache::DiskLevel disk(root.path() / "cache", files, cache::Owner::group);
  cache::WorkLock lock;
  REQUIRE(lock.acquire(disk, "abcd", {}, [] { return false; }) == cache::WorkLock::Outcome::held);
  CHECK(files->looks >= 2);
  CHECK(files->seen == 0);
  CHECK(mode_of(files->lock) == 0660);
  CHECK(fs::file_size(files->lock) > 0);
  CHECK(files_below(root.path()).size() == 1);  // nothing temporary
}

TEST_CASE("sharing comes from the options, else from the environment", "[cache][store][shared]") {
  const TemporaryDirectory root;
  const auto mode = [&](const char* value, std::optional<StoreSharing> asked, Log& log) {
    const fs::path directory = root.path() / "cache";
    fs::remove_all(directory);
    value ? ::setenv("KILN_CACHE_SHARED", value, 1) : ::unsetenv("KILN_CACHE_SHARED");
    StoreOptions options = options_for(directory, &log);
    options.sharing = asked;
    Store(options).put(make_key("a"), make_bytes(10));
    ::unsetenv("KILN_CACHE_SHARED");
    return mode_of(directory);
  };
  Log log;
  CHECK(mode(nullptr, {}, log) == 0700);
  CHECK(mode("", {}, log) == 0700);
  CHECK(mode("user", {}, log) == 0700);
  CHECK(mode("group", {}, log) == 02770);
  CHECK(mode("group", StoreSharing::user, log) == 0700);
  CHECK(mode("user", StoreSharing::group, log) == 02770);
  CHECK(log.warnings().empty());
  CHECK(mode("everybody", {}, log) == 0700);
  REQUIRE(log.warnings().size() == 1);
  CHECK(log.warnings()[0].find("KILN_CACHE_SHARED is 'everybody', not user or group") !=
        std::string::npos);
}
