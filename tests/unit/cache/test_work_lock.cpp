// Which process makes an entry, among processes that die, stop and plant things.
#include <csignal>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>

#include "cache/store.hpp"
#include "cache/work_lock.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::DiskLevel;
using cache::LockTimes;
using cache::Store;
using cache::WorkLock;
using std::chrono::milliseconds;
using Outcome = WorkLock::Outcome;

namespace {

constexpr const char* kName = "abcd";
constexpr auto kNever = [] { return false; };

fs::path lock_path(const fs::path& root) { return root / "v1" / "locks" / "abcd.lock"; }

LockTimes times_of(int deadline_ms) {
  LockTimes times;
  times.beat = milliseconds(20);
  times.deadline = milliseconds(deadline_ms);
  return times;
}

/// A deadline that cannot be what ends a wait: the test itself would be given up before.
const LockTimes kPatient = times_of(600'000);

/// What forked processes count together.
struct Shared {
  std::atomic<int> holders{0}, crowds{0}, held{0}, made{0}, step{0};
};

class SharedMemory {
 public:
  SharedMemory()
      : shared_(new(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared) {}
  ~SharedMemory() { ::munmap(shared_, sizeof(Shared)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  Shared* operator->() const { return shared_; }

 private:
  Shared* shared_;
};

/// A child that takes the lock, says so, and keeps it until it is told or killed.
std::unique_ptr<Child> holder(const fs::path& root, SharedMemory& shared, const LockTimes& times) {
  shared->step = 0;
  auto child = std::make_unique<Child>([&root, &shared, times] {
    DiskLevel disk(root, std::make_shared<cache::FileSystem>());
    WorkLock lock;
    if (lock.acquire(disk, kName, times, kNever) != Outcome::held) return 1;
    shared->step = 1;
    while (shared->step != 2) std::this_thread::sleep_for(milliseconds(1));
    return 0;
  });
  while (shared->step != 1) std::this_thread::sleep_for(milliseconds(1));
  return child;
}

class Disk : public TemporaryDirectory {
 public:
  std::shared_ptr<FaultyFileSystem> system = std::make_shared<FaultyFileSystem>();
  DiskLevel level{path(), system};

  Outcome acquire(WorkLock& lock, const LockTimes& times,
                  const std::function<bool()>& ready = kNever) {
    return lock.acquire(level, kName, times, ready);
  }
};

/// `plant` puts something in a lock's place: it must be left there, and not be waited for.
void check_planted(const std::function<void(const fs::path&)>& plant) {
  Disk disk;
  {
    WorkLock lock;
    REQUIRE(disk.acquire(lock, kPatient) == Outcome::held);
  }
  plant(lock_path(disk.path()));
  WorkLock lock;
  CHECK(disk.acquire(lock, kPatient) == Outcome::unusable);
  CHECK_FALSE(lock.waited());
  CHECK(fs::exists(fs::symlink_status(lock_path(disk.path()))));
}

}  // namespace

TEST_CASE("a lock is a file while it is held", "[cache][work_lock]") {
  Disk disk;
  {
    WorkLock lock;
    CHECK(disk.acquire(lock, kPatient) == Outcome::held);
    CHECK_FALSE(lock.waited());
    CHECK_FALSE(lock.was_left());
    struct stat status{};
    REQUIRE(::lstat(lock_path(disk.path()).c_str(), &status) == 0);
    CHECK((status.st_mode & 07777) == 0600);
    WorkLock moved = std::move(lock);
    lock = WorkLock();
    CHECK(fs::exists(lock_path(disk.path())));
    const Buffer first = read_bytes(lock_path(disk.path()));
    while (read_bytes(lock_path(disk.path())) == first)  // it beats
      std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(files_below(disk.path()).empty());
}

TEST_CASE("a process that waits wakes up when the entry is there, or the holder ends",
          "[cache][work_lock]") {
  for (const bool made : {true, false}) {
    Disk disk;
    WorkLock mine;
    REQUIRE(disk.acquire(mine, kPatient) == Outcome::held);
    std::atomic<bool> ready{false}, asked{false};
    std::thread maker([&] {
      becomes([&] { return asked.load(); });
      std::this_thread::sleep_for(milliseconds(50));
      if (made) ready = true;
      mine = WorkLock();
    });
    WorkLock lock;
    const Outcome outcome = disk.acquire(lock, kPatient, [&] {
      asked = true;
      return ready.load();
    });
    maker.join();
    CHECK(outcome == (made ? Outcome::ready : Outcome::released));
    CHECK(lock.waited());
    CHECK(files_below(disk.path()).empty());
  }
}

TEST_CASE("a caller that gives up while it waits is told so, and gets no lock",
          "[cache][work_lock]") {
  constexpr auto kNow = [] { return true; };
  Disk disk;
  WorkLock mine, lock;
  REQUIRE(disk.acquire(mine, kPatient) == Outcome::held);
  int asked = 0;
  CHECK(lock.acquire(disk.level, kName, kPatient, kNever, [&] { return ++asked == 3; }) ==
        Outcome::given_up);
  CHECK(asked == 3);
  CHECK(lock.waited());
  CHECK_FALSE(lock.held());
  CHECK(mine.held());
  CHECK(fs::exists(lock_path(disk.path())));
  // An entry that is there is better than giving up, and a free lock costs no time.
  CHECK(lock.acquire(disk.level, kName, kPatient, kNow, kNow) == Outcome::ready);
  mine = WorkLock();
  CHECK(lock.acquire(disk.level, kName, kPatient, kNever, kNow) == Outcome::held);
}

TEST_CASE("without a deadline nobody waits", "[cache][work_lock]") {
  Disk disk;
  WorkLock mine, lock;
  REQUIRE(disk.acquire(mine, times_of(0)) == Outcome::held);
  CHECK(disk.acquire(lock, times_of(0)) == Outcome::unusable);
  CHECK_FALSE(lock.waited());
}

TEST_CASE("nobody waits longer than the longest, however lively the holder", "[cache][work_lock]") {
  Disk disk;
  WorkLock mine, lock;
  REQUIRE(disk.acquire(mine, kPatient) == Outcome::held);
  LockTimes times = kPatient;
  times.longest = milliseconds(100);
  CHECK(disk.acquire(lock, times) == Outcome::unusable);
  CHECK(fs::exists(lock_path(disk.path())));
}

TEST_CASE("32 processes: one holder at a time, and its entry wakes the others",
          "[cache][work_lock][race]") {
  for (const bool made : {true, false}) {
    const TemporaryDirectory root;
    SharedMemory shared;
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 32; ++i)
      children.push_back(std::make_unique<Child>([&] {
        DiskLevel disk(root.path(), std::make_shared<cache::FileSystem>());
        WorkLock lock;
        const Outcome outcome =
            lock.acquire(disk, kName, kPatient, [&] { return shared->made.load() > 0; });
        if (outcome == Outcome::held) {
          shared->crowds += ++shared->holders > 1;
          ++shared->held;
          std::this_thread::sleep_for(milliseconds(100));
          if (made) ++shared->made;
          --shared->holders;
          return 0;
        }
        // Without the entry those that waited may go on side by side, but without the lock.
        return outcome == (made ? Outcome::ready : Outcome::released) ? 0 : 1;
      }));
    for (auto& child : children) CHECK(child->wait() == 0);
    CHECK(shared->crowds == 0);
    CHECK(shared->held >= 1);
    if (made) CHECK(shared->made == shared->held);
    CHECK(files_below(root.path()).empty());
  }
}

TEST_CASE("32 processes that ask a store for one cold key make it once",
          "[cache][work_lock][race]") {
  const TemporaryDirectory root;
  SharedMemory shared;
  const Key key = make_key("cold");
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 32; ++i)
    children.push_back(std::make_unique<Child>([&] {
      StoreOptions options;
      options.directory = root.path() / "cache";
      options.lock_deadline = 600;
      Store store(options);
      for (;;) {
        if (const auto bytes = store.find(key)) return *bytes == make_bytes(5000) ? 0 : 1;
        WorkLock lock;
        const Outcome outcome = store.lock(EntryKind::binary, key, lock);
        if (outcome == Outcome::ready) continue;
        if (outcome != Outcome::held) return 2;
        ++shared->made;
        std::this_thread::sleep_for(milliseconds(50));
        store.put(key, make_bytes(5000));
      }
    }));
  for (auto& child : children) CHECK(child->wait() == 0);
  CHECK(shared->made == 1);
}

TEST_CASE("when a holder is killed the next one goes on at once", "[cache][work_lock]") {
  const TemporaryDirectory root;
  SharedMemory shared;
  auto killed = holder(root.path(), shared, kPatient);
  std::atomic<int> held{0}, other{0};
  std::vector<std::thread> threads;
  DiskLevel disk(root.path(), std::make_shared<cache::FileSystem>());
  std::atomic<bool> made{false};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      WorkLock lock;
      const Outcome outcome = lock.acquire(disk, kName, kPatient, [&] { return made.load(); });
      held += outcome == Outcome::held;
      other += outcome != Outcome::held && outcome != Outcome::ready;
      if (outcome == Outcome::held) made = true;
    });
  std::this_thread::sleep_for(milliseconds(50));
  killed->signal(SIGKILL);
  // It stays a zombie until the end: dead all the same.
  for (std::thread& thread : threads) thread.join();
  CHECK(held >= 1);
  CHECK(other == 0);
  CHECK(killed->wait() == -SIGKILL);
  CHECK(files_below(root.path()).empty());
}

TEST_CASE("a lock left behind by a dead process stops nobody, with no deadline either",
          "[cache][work_lock]") {
  for (const int deadline : {0, 600'000}) {
    const TemporaryDirectory root;
    SharedMemory shared;
    auto killed = holder(root.path(), shared, kPatient);
    killed->signal(SIGKILL);
    CHECK(killed->wait() == -SIGKILL);
    REQUIRE(fs::exists(lock_path(root.path())));
    DiskLevel disk(root.path(), std::make_shared<cache::FileSystem>());
    WorkLock lock;
    CHECK(lock.acquire(disk, kName, times_of(deadline), kNever) == Outcome::held);
    CHECK_FALSE(lock.waited());
    CHECK(lock.was_left());
  }
}

TEST_CASE("a stopped holder is given up after the deadline, and does no harm when it goes on",
          "[cache][work_lock]") {
  const TemporaryDirectory root;
  SharedMemory shared;
  auto stopped = holder(root.path(), shared, times_of(200));
  stopped->signal(SIGSTOP);
  DiskLevel disk(root.path(), std::make_shared<cache::FileSystem>());
  WorkLock lock;
  CHECK(lock.acquire(disk, kName, times_of(200), kNever) == Outcome::held);
  CHECK(lock.waited());
  const auto ours = [&] {
    struct stat status{};
    return ::lstat(lock_path(root.path()).c_str(), &status) == 0 ? status.st_ino : 0;
  };
  const ino_t before = ours();
  REQUIRE(before != 0);
  stopped->signal(SIGCONT);
  std::this_thread::sleep_for(milliseconds(100));  // it beats, in vain
  CHECK(ours() == before);
  shared->step = 2;
  CHECK(stopped->wait() == 0);  // it lets go
  CHECK(ours() == before);
  lock = WorkLock();
  CHECK(files_below(root.path()).empty());
}

TEST_CASE("a holder of another machine or container is judged by its beats alone",
          "[cache][work_lock]") {
  const std::string text =
      "kiln lock 1\nhost far\nboot 1-2\nnamespace pid:[1]\npid 999999999\nstart 5\nword 0\nbeat "
      "0\n";
  for (const std::string& content :
       {text, std::string(), std::string("kiln lock 2\npid 999999999\n"), std::string(3000, 'x')}) {
    INFO(content);
    Disk disk;
    {
      WorkLock lock;
      REQUIRE(disk.acquire(lock, kPatient) == Outcome::held);
    }
    const auto plant = [&](const std::string& planted) {
      write_bytes(lock_path(disk.path()), std::as_bytes(std::span(planted)));
      REQUIRE(::chmod(lock_path(disk.path()).c_str(), 0600) == 0);
    };
    plant(content);
    WorkLock lock;
    int asked = 0;
    const Outcome outcome = disk.acquire(lock, times_of(200), [&] {
      if (++asked < 14) plant(content + std::to_string(asked));  // beats, for longer than that
      return false;
    });
    CHECK(outcome == Outcome::held);
    CHECK(asked >= 14);  // as long as it beat it was waited for
  }
}

TEST_CASE("neither the machine's clock nor the file's matters", "[cache][work_lock]") {
  for (const long shift : {-36000L, 36000L}) {
    const TemporaryDirectory root;
    SharedMemory shared;
    LockTimes times = kPatient;
    times.beat = std::chrono::hours(1);
    auto lively = holder(root.path(), shared, times);
    const timespec stamps[2] = {{::time(nullptr) + shift, 0}, {::time(nullptr) + shift, 0}};
    REQUIRE(::utimensat(AT_FDCWD, lock_path(root.path()).c_str(), stamps, 0) == 0);
    DiskLevel disk(root.path(), std::make_shared<cache::FileSystem>());
    WorkLock lock;
    times.longest = milliseconds(300);
    CHECK(lock.acquire(disk, kName, times, kNever) == Outcome::unusable);  // however old it looks
    times.deadline = milliseconds(100);
    times.longest = std::chrono::hours(1);
    CHECK(lock.acquire(disk, kName, times, kNever) == Outcome::held);  // however new
    shared->step = 2;
    CHECK(lively->wait() == 0);
  }
}

TEST_CASE("what is planted as a lock is neither followed nor waited for", "[cache][work_lock]") {
  const TemporaryDirectory elsewhere;
  const fs::path victim = elsewhere.path() / "victim";
  write_bytes(victim, make_bytes(5));
  check_planted([&](const fs::path& path) { fs::create_symlink(victim, path); });
  check_planted(
      [&](const fs::path& path) { fs::create_symlink(elsewhere.path() / "nowhere", path); });
  check_planted([&](const fs::path& path) { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); });
  check_planted([&](const fs::path& path) { fs::create_directory(path); });
  check_planted([&](const fs::path& path) { write_bytes(path, make_bytes(5000)); });
  check_planted([&](const fs::path& path) {
    write_bytes(path, make_bytes(5));
    REQUIRE(::chmod(path.c_str(), 0622) == 0);
  });
  CHECK(read_bytes(victim) == make_bytes(5));
  CHECK_FALSE(fs::exists(elsewhere.path() / "nowhere"));

  const TemporaryDirectory root;
  fs::create_directories(root.path() / "v1");
  fs::permissions(root.path() / "v1", fs::perms(0700));
  fs::create_directory_symlink(elsewhere.path(), root.path() / "v1" / "locks");
  DiskLevel disk(root.path(), std::make_shared<cache::FileSystem>());
  WorkLock lock;
  CHECK(lock.acquire(disk, kName, kPatient, kNever) == Outcome::unusable);
  CHECK(files_below(elsewhere.path()).size() == 1);
}

TEST_CASE("another user's lock is not waited for, by root neither", "[cache][work_lock]") {
  if (::geteuid() != 0) KILN_SKIP("only root may give a file away");
  check_planted([&](const fs::path& path) {
    write_bytes(path, make_bytes(5));
    REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
  });
}

TEST_CASE("a disk that takes no lock makes nobody wait", "[cache][work_lock][faults]") {
  for (const Call call : {Call::make_directory, Call::create, Call::write}) {
    for (const int code : {ENOSPC, EDQUOT, EIO, EACCES, EMFILE}) {
      Disk disk;
      disk.system->fault = [&](Call made, int) { return made == call ? code : 0; };
      WorkLock lock;
      CHECK(disk.acquire(lock, kPatient) == Outcome::unusable);
      CHECK_FALSE(lock.waited());
      CHECK(files_below(disk.path()).empty());
      disk.system->fault = [](Call, int) { return 0; };
      CHECK(disk.acquire(lock, kPatient) == Outcome::held);
    }
  }
}

TEST_CASE("a lock that another took over meanwhile is not taken from it", "[cache][work_lock]") {
  Disk disk;
  {
    WorkLock lock;
    REQUIRE(disk.acquire(lock, kPatient) == Outcome::held);
  }
  const fs::path path = lock_path(disk.path());
  write_bytes(path, make_bytes(20, 1));  // from some other process
  REQUIRE(::chmod(path.c_str(), 0600) == 0);
  bool taken = false;
  disk.system->fault = [&](Call call, int) {
    if (call != Call::rename || taken) return 0;
    taken = true;  // just before it is renamed away
    write_bytes(path, make_bytes(20, 2));
    return 0;
  };
  WorkLock lock;
  CHECK(disk.acquire(lock, times_of(100), [&] { return taken; }) == Outcome::ready);
  CHECK(read_bytes(path) == make_bytes(20, 2));
}

TEST_CASE("a forked child does not let go of its parent's lock", "[cache][work_lock]") {
  Disk disk;
  WorkLock lock;
  REQUIRE(disk.acquire(lock, kPatient) == Outcome::held);
  CHECK(in_child([&] {
          lock = WorkLock();
          return 0;
        }) == 0);
  CHECK(fs::exists(lock_path(disk.path())));
}
