// A store's entries, made by one process at a time.
#include <atomic>
#include <csignal>
#include <thread>

#include <nlohmann/json.hpp>

#include "cache/store.hpp"
#include "cache/work_lock.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Store;
using cache::WorkLock;
using std::chrono::milliseconds;
using Outcome = WorkLock::Outcome;

TEST_CASE("a store without a writable directory has no locks", "[cache][work_lock]") {
  StoreOptions options;
  options.disk = false;
  WorkLock lock;
  CHECK(Store(options).lock(EntryKind::binary, make_key("a"), lock) == Outcome::unusable);
  const TemporaryDirectory root;
  options.disk = true;
  options.directory = root.path();
  REQUIRE(::chmod(root.path().c_str(), 0777) == 0);
  CHECK(Store(options).lock(EntryKind::binary, make_key("a"), lock) == Outcome::unusable);
}

TEST_CASE("an entry made between look-up and lock is not made again", "[cache][work_lock]") {
  const TemporaryDirectory root;
  StoreOptions options;
  options.directory = root.path();
  Store store(options);
  const Key key = make_key("a");
  store.put(key, make_bytes(10));
  store.put_record(key, 1);
  WorkLock lock;
  CHECK(store.lock(EntryKind::binary, key, lock) == Outcome::ready);
  // A record may be there and yet unfinished: only a later one counts.
  CHECK(store.lock(EntryKind::record, key, lock) == Outcome::held);
  WorkLock second;
  CHECK(store.lock(EntryKind::record, key, second, [] { return true; }) == Outcome::given_up);
  std::atomic<bool> waits{false};
  std::thread other([&] {
    becomes([&] { return waits.load(); });
    Store(options).put_record(key, 2);
  });
  CHECK(store.lock(EntryKind::record, key, second, [&] {
    waits = true;
    return false;
  }) == Outcome::ready);
  other.join();
  CHECK(store.stats().waits == 1);

  fs::resize_file(binary_path(root.path(), key), 50);  // there, but damaged: it is to be made
  WorkLock repair;
  CHECK(store.lock(EntryKind::binary, make_key("b"), repair) == Outcome::held);
  lock = WorkLock();
  CHECK(store.lock(EntryKind::binary, key, lock) == Outcome::held);
}

TEST_CASE("an entry made while the lock is taken is not made again", "[cache][work_lock]") {
  for (const EntryKind kind : {EntryKind::binary, EntryKind::record}) {
    const TemporaryDirectory root;
    StoreOptions options;
    options.directory = root.path();
    auto system = std::make_shared<FaultyFileSystem>();
    Store store(options, system);
    const Key key = make_key("a");
    system->fault = [&](Call call, int) {
      if (call == Call::create)  // of the lock, which another process had until now
        kind == EntryKind::binary ? Store(options).put(key, make_bytes(10))
                                  : Store(options).put_record(key, 1);
      return 0;
    };
    WorkLock lock;
    CHECK(store.lock(kind, key, lock) == Outcome::ready);
    CHECK(files_below(root.path()).size() == 1);  // the lock is let go again
  }
}

TEST_CASE("a record that a process published before it died does not hide its death",
          "[cache][work_lock]") {
  const TemporaryDirectory root;
  const Key key = make_key("record");
  StoreOptions options;
  options.directory = root.path() / "cache";
  Child child([&] {
    Store store(options);
    WorkLock lock;
    if (store.lock(EntryKind::record, key, lock) != Outcome::held) return 2;
    write_text(root.path() / "held", "");
    becomes([&] { return fs::exists(root.path() / "waits"); });
    store.put_record(key, {{"a", 1}});
    ::raise(SIGKILL);
    return 3;
  });
  while (!fs::exists(root.path() / "held")) std::this_thread::sleep_for(milliseconds(1));
  Store store(options);
  WorkLock lock;
  CHECK(store.lock(EntryKind::record, key, lock, [&] {
    write_text(root.path() / "waits", "");
    return false;
  }) == Outcome::ready);
  CHECK_FALSE(lock.held());
  CHECK(child.wait() == -SIGKILL);
  // Either this call has found its lock, or the next one does.
  if (!lock.was_left()) {
    CHECK(store.lock(EntryKind::record, key, lock) == Outcome::held);
    CHECK(lock.was_left());
  }
}
