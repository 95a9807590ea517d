// The index of what is wanted: what comes later is seen, whatever the clocks say.
#include <ctime>

#include <fcntl.h>
#include <nlohmann/json.hpp>

#include "cache/key_index.hpp"
#include "cache/store.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Store;

namespace {

constexpr auto kEvery = [](const Key&) { return true; };

Key config_key(std::int64_t config, const std::string& compiler = "13.0",
               const char* kind = "binary") {
  return detail::KeyBuilder(kind, 2)
      .add("block", config)
      .made_with()
      .add("compiler", compiler)
      .finish();
}

/// Two keys whose entries share a directory.
std::pair<Key, Key> neighbours() {
  const Key first = config_key(0);
  std::int64_t number = 1;
  while (config_key(number).digest[0] != first.digest[0]) ++number;
  return {first, config_key(number)};
}

StoreOptions options_of(const fs::path& directory, std::vector<fs::path> roots = {}) {
  StoreOptions options = evicting_options(directory);
  options.roots = std::move(roots);
  return options;
}

void set_stamp(const fs::path& path, const timespec& stamp) {
  const timespec both[2] = {stamp, stamp};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), both, 0) == 0);
}

bool is_found(Store& store, const Key& key, Store::Where where = Store::Where::anywhere) {
  return store.find_portable(EntryKind::binary, key.portable, where, kEvery).has_value();
}

/// The file system of a server whose clock is off. Directories' stamps are up to the test.
class ServerFileSystem : public FaultyFileSystem {
 public:
  explicit ServerFileSystem(long offset) : offset_(offset) {}
  timespec now() const { return {::time(nullptr) + offset_, 0}; }
  int create(int directory, const char* name) override {
    const int fd = FaultyFileSystem::create(directory, name);
    const timespec both[2] = {now(), now()};
    if (fd >= 0 && ::futimens(fd, both) != 0) throw std::runtime_error("futimens");
    return fd;
  }

 private:
  const long offset_;
};

/// Makes the directory of locks.
void take_any_lock(Store& store) {
  cache::WorkLock lock;
  REQUIRE(store.lock(EntryKind::binary, make_key("any"), lock) == cache::WorkLock::Outcome::held);
}

}  // namespace

TEST_CASE("an entry written in the same instant as its neighbour is not overlooked",
          "[cache][key_index]") {
  const TemporaryDirectory root;
  Store store(options_of(root.path()));
  const auto [first, second] = neighbours();
  store.put(first, make_bytes(10));
  const fs::path shard = binary_path(root.path(), first).parent_path();
  struct stat status{};
  REQUIRE(::stat(shard.c_str(), &status) == 0);
  CHECK_FALSE(is_found(store, second));
  store.put(second, make_bytes(10));
  set_stamp(shard, status.st_mtim);  // a coarse clock's stamp
  CHECK(is_found(store, second));
}

TEST_CASE("nor is it where the file server's clock is behind", "[cache][key_index]") {
  enum class Asked { without_locks, with_locks, in_vain };
  for (const Asked asked : {Asked::without_locks, Asked::with_locks, Asked::in_vain}) {
    INFO(static_cast<int>(asked));
    const TemporaryDirectory root;
    const auto system = std::make_shared<ServerFileSystem>(-100);
    Store store(options_of(root.path()), system);
    if (asked != Asked::without_locks) take_any_lock(store);
    const auto [first, second] = neighbours();
    store.put(first, make_bytes(10));
    const fs::path shard = binary_path(root.path(), first).parent_path();
    const timespec stamp = system->now();
    set_stamp(shard, stamp);
    if (asked == Asked::in_vain)
      system->fault = [](Call call, int) { return call == Call::create ? EROFS : 0; };
    CHECK(is_found(store, first));
    CHECK_FALSE(is_found(store, second));
    system->fault = [](Call, int) { return 0; };
    store.put(second, make_bytes(10));
    set_stamp(shard, stamp);
    CHECK(is_found(store, second));
    CHECK(fs::exists(root.path() / "v1" / "locks") == (asked != Asked::without_locks));
    CHECK(files_below(root.path()).size() == 2);
  }
}

TEST_CASE("a directory that is old by the file server's clock is not listed again",
          "[cache][key_index]") {
  for (const long offset : {-3600L, 0L, 3600L}) {
    INFO(offset);
    const TemporaryDirectory root;
    const auto system = std::make_shared<ServerFileSystem>(offset);
    Store store(options_of(root.path()), system);
    take_any_lock(store);
    const auto [first, second] = neighbours();
    store.put(first, make_bytes(10));
    const fs::path shard = binary_path(root.path(), first).parent_path();
    timespec stamp = system->now();
    stamp.tv_sec -= 10;
    set_stamp(shard, stamp);
    cache::DiskLevel disk(root.path(), system);
    cache::KeyIndex index(disk);
    CHECK(index.find(EntryKind::binary, first.portable).size() == 1);
    store.put(second, make_bytes(10));
    set_stamp(shard, stamp);  // which no server would give it now
    CHECK_FALSE(index.refresh(EntryKind::binary));
    set_stamp(shard, system->now());
    CHECK(index.refresh(EntryKind::binary));
    CHECK(index.find(EntryKind::binary, second.portable).size() == 1);
  }
}

TEST_CASE("an entry that cannot be read for a while is found afterwards", "[cache][key_index]") {
  const TemporaryDirectory root;
  const auto system = std::make_shared<ServerFileSystem>(0);
  Store store(options_of(root.path()), system);
  take_any_lock(store);
  const Key key = config_key(0);
  store.put(key, make_bytes(10));
  timespec stamp = system->now();
  stamp.tv_sec -= 10;
  set_stamp(binary_path(root.path(), key).parent_path(), stamp);
  cache::DiskLevel disk(root.path(), system);
  cache::KeyIndex index(disk);
  system->fault = [](Call call, int) { return call == Call::read ? EIO : 0; };
  CHECK(index.find(EntryKind::binary, key.portable).empty());
  system->fault = [](Call, int) { return 0; };
  CHECK(index.refresh(EntryKind::binary));
  CHECK(index.find(EntryKind::binary, key.portable).size() == 1);
}

TEST_CASE("what comes to a directory root, and what goes, is seen", "[cache][key_index]") {
  const TemporaryDirectory own, root;
  constexpr auto kRoots = Store::Where::roots;
  Store writer(options_of(root.path()));
  take_any_lock(writer);
  const auto [first, second] = neighbours();
  writer.put(first, make_bytes(10));
  const fs::path shard = binary_path(root.path(), first).parent_path();
  const timespec stamp{::time(nullptr) - 100, 0};  // of a server whose clock is behind
  set_stamp(shard, stamp);
  Store store(options_of(own.path(), {root.path()}));
  CHECK(is_found(store, first, kRoots));
  CHECK_FALSE(is_found(store, second, kRoots));
  writer.put(second, make_bytes(10));
  set_stamp(shard, stamp);
  const auto locks = fs::last_write_time(root.path() / "v1" / "locks");
  CHECK(is_found(store, second, kRoots));
  CHECK(fs::last_write_time(root.path() / "v1" / "locks") == locks);  // roots are only read

  // What is refused is not found either, and what was wanted may have come since.
  const Key newer = config_key(0, "13.1");
  writer.put(newer, make_bytes(20));
  const auto found = store.find_portable(EntryKind::binary, first.portable, kRoots,
                                         [&](const Key& key) { return key == newer; });
  REQUIRE(found);
  CHECK(found->payload == make_bytes(20));
  writer.put(config_key(0, "13.2"), make_bytes(30));
  CHECK(store.portable_keys(EntryKind::binary, first.portable, kRoots).size() == 3);

  writer.drop(EntryKind::binary, second.digest);
  CHECK_FALSE(is_found(store, second, kRoots));

  const Key record = config_key(1, "13.0", "record");
  const auto find_record = [&] {
    return store.find_portable(EntryKind::record, record.portable, kRoots, kEvery).has_value();
  };
  CHECK_FALSE(find_record());
  writer.put_record(record, 1);
  CHECK(find_record());
}

TEST_CASE("a look-up that finds nothing ends, however much is written meanwhile",
          "[cache][key_index]") {
  const TemporaryDirectory own, root;
  constexpr auto kRoots = Store::Where::roots;
  const bool in_root = GENERATE(false, true);
  Store writer(options_of(in_root ? root.path() : own.path()));
  const Key refused = config_key(0);
  writer.put(refused, make_bytes(10));
  Store store(options_of(own.path(), {root.path()}));
  const Store::Where where = in_root ? kRoots : Store::Where::anywhere;
  // Another writer comes between each look and the next one.
  int looks = 0;
  const auto none = [&](const Key&) {
    if (++looks < 20) writer.put(config_key(looks), make_bytes(10));
    return false;
  };
  CHECK_FALSE(store.find_portable(EntryKind::binary, refused.portable, where, none));
  CHECK(looks <= 2);
  // What was refused is not looked at again.
  looks = 0;
  const auto refuse = [&](const cache::StoredEntry&) { return ++looks, false; };
  CHECK_FALSE(store.find_portable(
      EntryKind::binary, refused.portable, where, [](const Key&) { return true; }, refuse));
  CHECK(looks ==
        static_cast<int>(store.portable_keys(EntryKind::binary, refused.portable, where).size()));
  // One of the same half is what it may be looking for.
  looks = 0;
  const Key another = config_key(0, "13.1");
  const auto other = [&](const Key& key) {
    if (looks++ == 0) writer.put(another, make_bytes(20));
    return key == another;
  };
  CHECK(store.find_portable(EntryKind::binary, refused.portable, where, other));
}
