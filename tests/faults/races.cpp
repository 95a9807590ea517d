// Faults 4, 5 and 6: many at once, and processes that hold others up.
#include <algorithm>
#include <cstdio>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/entry.hpp"
#include "kiln/error.hpp"
#include "program.hpp"

namespace kiln::faults {
namespace {

using test::Call;
using test::FaultyFileSystem;
using test::make_key;

/// What the processes of one race tell each other.
struct Race {
  std::atomic<int> arrived{0}, compiling{0}, compiles{0}, go{0}, done{0}, stop{0};
};

/// A binary that proves itself: whose it is, its number, and bytes that follow from both.
Raw proven(unsigned key, unsigned seed) {
  Raw bytes = test::make_bytes(2000 + 37 * (seed % 50), 1000 * key + seed);
  for (unsigned i = 0; i < 4; ++i) {
    bytes[i] = static_cast<std::byte>(key >> (8 * i));
    bytes[4 + i] = static_cast<std::byte>(seed >> (8 * i));
  }
  return bytes;
}

bool proves_itself(unsigned key, const detail::Bytes& bytes) {
  if (bytes.size() < 8) return false;
  unsigned seed = 0;
  for (unsigned i = 0; i < 4; ++i)
    seed |= std::to_integer<unsigned>(bytes.data()[4 + i]) << (8 * i);
  return raw(bytes) == proven(key, seed);
}

void set_used(const fs::path& path, long hours_ago) {
  struct timespec then{};
  ::clock_gettime(CLOCK_REALTIME, &then);
  then.tv_sec -= hours_ago * 3600;
  const struct timespec times[2] = {then, then};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

/// Two kinds of entries. Rewritten ones are made to look the oldest of all just before each is
/// replaced, so that the evictor has chosen them. Fillers are old from the moment they appear and
/// are never used again: enough to evict, so that nothing else need go.
class Arena {
 public:
  static constexpr unsigned kRewritten = 8, kFillers = 24;

  explicit Arena(const fs::path& directory) : directory_(directory) {
    for (unsigned i = 0; i < kRewritten; ++i)
      rewritten_.push_back(make_key("r" + std::to_string(i)));
  }

  const Key& rewritten(unsigned i) const { return rewritten_[i]; }

  /// Adds more fillers, under keys of `seed`.
  void fill(unsigned seed) const {
    for (unsigned i = 0; i < kFillers; ++i) {
      const Key key = make_key("f" + std::to_string(seed) + "." + std::to_string(i));
      const fs::path path = test::binary_path(directory_, key);
      const fs::path aside = directory_ / ("filler" + std::to_string(seed % 1000));
      ::mkdir(path.parent_path().c_str(), 0700);
      test::write_bytes(aside, cache::encode_entry(key, proven(100 + i, seed)));
      ::chmod(aside.c_str(), 0600);
      set_used(aside, 30);
      fs::rename(aside, path);
    }
  }
  void look_oldest(unsigned i) const {
    set_used(test::binary_path(directory_, rewritten_[i]), 100);
  }
  /// Puts an entry and checks that it is there: nothing evicts the newest entry.
  void rewrite(Trial& trial, unsigned i, unsigned seed) const {
    cache::Store store(options_for(directory_), std::make_shared<FaultyFileSystem>());
    look_oldest(i);
    store.put(rewritten_[i], proven(i, seed));
    for (int again = 0; again < 1000; ++again) {
      // An evictor may hold it aside for a moment, to see whether it is what it wanted.
      if (const auto found = store.find(rewritten_[i])) {
        trial.right(raw(*found) == proven(i, seed), "what was just put is not what is found");
        return;
      }
      ::usleep(1000);
    }
    trial.kept(false, "the evictor took what had just been put");
  }
  /// Every entry that is found must be right.
  void read(Trial& trial, cache::Store& store) const {
    for (unsigned i = 0; i < kRewritten; ++i)
      if (const auto found = store.find(rewritten_[i]))
        trial.right(proves_itself(i, *found), "a torn entry was read");
    trial.right(store.stats().damaged == 0, "a reader saw a damaged entry");
  }
  /// The same for the fillers, without using them, which would make them young.
  void read_fillers(Trial& trial, unsigned seed) const {
    for (unsigned i = 0; i < kFillers; ++i) {
      const Key key = make_key("f" + std::to_string(seed) + "." + std::to_string(i));
      const Raw file = test::read_bytes(test::binary_path(directory_, key));
      if (file.empty()) continue;
      const cache::DecodedEntry entry = cache::decode_entry(file);
      trial.right(entry.status == cache::DecodeStatus::valid &&
                      proves_itself(100 + i, detail::Bytes(file).part(entry.payload_offset,
                                                                      entry.payload_size)),
                  "a torn entry was read");
    }
  }
  /// Room for what is young, and some of what is old.
  static std::uint64_t room() { return 2 * kRewritten * 4500; }

 private:
  const fs::path directory_;
  std::vector<Key> rewritten_;
};

/// One program that wants instance 1 in a race; its compiler stands still until told to go.
void want(Trial& trial, const StoreOptions& options, Race& race) {
  Program program(options);
  program.compiler->on_compile = [&] {
    ++race.compiles;
    ++race.compiling;
    await([&] { return race.go > 0; });
  };
  ++race.arrived;
  program.runs(trial, 1);
  ++race.done;
}

fs::path lock_path(const fs::path& directory, const Key& key) {
  return directory / "v1" / "locks" / (key.hex() + ".lock");
}

}  // namespace

void many_on_one_cold_key(Trial& trial) {
  constexpr int kProcesses = 32;
  for (int round = 0; round < 12; ++round) {
    const bool slow = round < 4;  // otherwise some would ask just as it is published
    trial.next(
        std::to_string(kProcesses) + " processes, " + (slow ? "slow" : "quick") + " compiler",
        milliseconds(30'000));
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Bystanders bystanders(directory);
    StoreOptions options = options_for(directory);
    options.lock_deadline = 600;
    Shared<Race> race;
    {
      Processes processes(trial);
      for (int i = 0; i < kProcesses; ++i)
        processes.start([&] {
          Program program(options);
          program.compiler->code_bytes = 50'000;
          program.compiler->on_compile = [&] {
            ++race->compiles;
            if (slow) await([&] { return race->arrived == kProcesses; });
          };
          ++race->arrived;
          if (!slow) await([&] { return race->arrived == kProcesses; });
          program.runs(trial, 1);
          trial.right(program.store->stats().damaged == 0, "a damaged entry was seen");
        });
      processes.wait_all();
    }
    trial.right(race->compiles == 1,
                "it was compiled " + std::to_string(race->compiles) + " times");
    Program program(options);
    program.compiler->code_bytes = 50'000;
    program.runs(trial, 1);
    trial.right(program.compiles() == 0, "it was not kept");
    trial.right(program.store->verify().ok(), "something is damaged");
    bystanders.whole(trial);
  }

  trial.next("8 threads of each of 4 processes", milliseconds(30'000));
  {
    const TemporaryDirectory root;
    const StoreOptions options = options_for(root.path() / "cache");
    Shared<Race> race;
    Processes processes(trial);
    for (int i = 0; i < 4; ++i)
      processes.start([&] {
        Program program(options);
        program.compiler->on_compile = [&] {
          ++race->compiles;
          await([&] { return race->arrived == 32; });
        };
        std::vector<std::thread> threads;
        for (int t = 0; t < 8; ++t)
          threads.emplace_back([&] {
            ++race->arrived;
            program.runs(trial, 1);
          });
        for (std::thread& thread : threads) thread.join();
      });
    processes.wait_all();
    trial.right(race->compiles == 1,
                "it was compiled " + std::to_string(race->compiles) + " times");
  }

  trial.next("a hit does not wait for another key's compile");
  {
    const TemporaryDirectory root;
    const StoreOptions options = options_for(root.path() / "cache");
    Program(options).runs(trial, 2);
    Shared<Race> race;
    Processes processes(trial);
    processes.start([&] { want(trial, options, *race); });
    await([&] { return race->compiling > 0; });
    Program hit(options);
    hit.runs(trial, 2);
    trial.right(hit.compiles() == 0, "it was no hit");
    Program(options).runs(trial, 3);  // nor does a miss of a third one
    race->go = 1;
    processes.wait_all();
  }
}

void lock_holder_gone(Trial& trial) {
  for (const int waiters : {1, 3, 12}) {
    trial.next("killed, with " + std::to_string(waiters) + " waiting");
    const TemporaryDirectory root;
    const Bystanders bystanders(root.path() / "cache");
    StoreOptions options = options_for(root.path() / "cache");
    options.lock_deadline = 600;  // on one machine it is known at once
    Shared<Race> race;
    Processes processes(trial);
    const pid_t holder = processes.start([&] { want(trial, options, *race); });
    await([&] { return race->compiling == 1; });
    for (int i = 0; i < waiters; ++i) processes.start([&] { want(trial, options, *race); });
    await([&] { return race->arrived == 1 + waiters; });
    ::usleep(20'000);
    processes.kill(holder);
    await([&] { return race->compiling > 1; });
    race->go = 1;
    processes.wait_all();
    trial.right(race->compiles == 2,
                "it was compiled " + std::to_string(race->compiles) + " times");
    Program(options).runs(trial, 1);
    bystanders.whole(trial);
  }

  trial.next("killed just as it is looked at");
  {
    const TemporaryDirectory root;
    cache::DiskLevel disk(root.path() / "cache", std::make_shared<FaultyFileSystem>());
    const std::string hex(64, 'a');
    cache::LockTimes times;
    times.deadline = std::chrono::minutes(10);
    const auto never = [] { return false; };
    Shared<std::atomic<int>> held;
    for (int round = 1; round <= 300; ++round) {
      Processes processes(trial);
      const pid_t holder = processes.start([&] {
        cache::WorkLock lock;
        lock.acquire(disk, hex, times, never);
        *held = round;
        ::usleep(static_cast<useconds_t>(37 * (round % 50)));
        ::_exit(0);  // without letting go
      });
      await([&] { return *held == round; });
      cache::WorkLock lock;
      trial.right(lock.acquire(disk, hex, times, never) == cache::WorkLock::Outcome::held,
                  "a dead one's lock was not taken over");
      processes.wait(holder);
      trial.progress();
    }
  }

  for (const double deadline : {0.0, 0.3, 1.0})
    for (const int waiters : {1, 4}) {
      trial.next("stopped, deadline " + std::to_string(deadline) + " s, " +
                 std::to_string(waiters) + " waiting");
      const TemporaryDirectory root;
      const Bystanders bystanders(root.path() / "cache");
      StoreOptions options = options_for(root.path() / "cache");
      options.lock_deadline = deadline;
      Shared<Race> race;
      Processes processes(trial);
      const pid_t holder = processes.start([&] { want(trial, options, *race); });
      await([&] { return race->compiling == 1; });
      processes.stop(holder);
      race->go = 1;
      for (int i = 0; i < waiters; ++i) processes.start([&] { want(trial, options, *race); });
      await([&] { return race->done == waiters; });
      ::kill(holder, SIGCONT);  // and publishes the same once more
      processes.wait_all();
      Program last(options);
      last.runs(trial, 1);
      trial.right(last.compiles() == 0, "it was not kept");
      trial.right(!fs::exists(lock_path(root.path() / "cache", last.key(1))), "its lock stays");
      bystanders.whole(trial);
    }

  trial.next("its compile fails");
  {
    const TemporaryDirectory root;
    StoreOptions options = options_for(root.path() / "cache");
    options.lock_deadline = 600;
    Shared<Race> race;
    Processes processes(trial);
    processes.start([&] {
      Program program(options);
      program.compiler->on_compile = [&] {
        ++race->compiling;
        await([&] { return race->arrived == 3; });
        throw EnvironmentError("the compiler cannot run");
      };
      try {
        program.output(1);
        trial.right(false, "nothing was thrown");
      } catch (const EnvironmentError&) {
      }
    });
    await([&] { return race->compiling == 1; });
    race->go = 1;
    for (int i = 0; i < 3; ++i) processes.start([&] { want(trial, options, *race); });
    processes.wait_all();
  }

  // Locks that no process holds: it does not matter what is in them, nor what wrote them.
  const Key key = Program(options_for("/nonexistent/kiln")).key(1);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const std::string here = host;
  for (const std::string& text : std::vector<std::string>{
           "", "x", std::string(1 << 20, 'k'), std::string(100, '\0'), here + "\n1\n0\n0\n",
           here + " 1 0123456789abcdef 0\n", "host " + here + "\npid 1\nword 0\nbeat 0\n",
           here + " -1 0 0\n", here + " 99999999999999999999 0 0\n", "elsewhere 1 0 0\n"})
    for (const long hours : {-1000L, -1L, 0L, 1L, 1000L}) {
      trial.next("a lock of " + std::to_string(text.size()) + " bytes, " + std::to_string(hours) +
                 " hours old");
      const TemporaryDirectory root;
      StoreOptions options = options_for(root.path() / "cache");
      options.lock_deadline = 0.1;
      Program(options).runs(trial, 2);
      const fs::path path = lock_path(root.path() / "cache", key);
      fs::create_directories(path.parent_path());
      fs::permissions(path.parent_path(), fs::perms::owner_all);
      test::write_bytes(path, raw(text));
      fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
      set_used(path, hours);
      Program program(options);
      program.runs(trial, 1);
      trial.right(Program(options).runs(trial, 1), "the second time");
    }
}

void evictor_against_others(Trial& trial) {
  // The first part does so at every step of the evictor, one at a time.
  const auto arena_with = [](const fs::path& directory) {
    Arena arena(directory);
    cache::Store store(options_for(directory), std::make_shared<FaultyFileSystem>());
    for (unsigned i = 0; i < Arena::kRewritten; ++i) {
      store.put(arena.rewritten(i), proven(i, 1));
      arena.look_oldest(i);
    }
    arena.fill(1);
    return arena;
  };
  int steps = 1;
  for (int step = 0; step < steps; ++step) {
    trial.next("all rewritten before step " + std::to_string(step) + " of the evictor");
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Arena arena = arena_with(directory);
    const Bystanders bystanders(directory);
    auto system = std::make_shared<FaultyFileSystem>();
    int seen = 0;
    bool rewritten = false;
    system->fault = [&](Call call, int) {
      if (call == Call::read || seen++ != step) return 0;
      cache::Store store(options_for(directory), std::make_shared<FaultyFileSystem>());
      for (unsigned i = 0; i < Arena::kRewritten; ++i) store.put(arena.rewritten(i), proven(i, 2));
      rewritten = true;
      return 0;
    };
    cache::Store evictor(options_for(directory), system);
    const TrimReport report = evictor.trim(Arena::room());
    trial.right(report.entries > 0, "nothing was evicted");
    steps = std::min(seen, 60);
    cache::Store store(options_for(directory));
    for (unsigned i = 0; rewritten && i < Arena::kRewritten; ++i) {
      const auto found = store.find(arena.rewritten(i));
      trial.kept(found && raw(*found) == proven(i, 2), "what was put while the evictor was at it");
    }
    arena.read(trial, store);
    bystanders.whole(trial);
  }

  const auto duration = milliseconds(static_cast<std::int64_t>(1000 * trial.seconds()));
  trial.next("evictors, rewriters and readers", duration + milliseconds(20'000));
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cache";
  const Arena arena = arena_with(directory);
  const Bystanders bystanders(directory);
  Shared<Race> race;
  Processes processes(trial);
  for (int evictor = 0; evictor < 2; ++evictor)
    processes.start([&] {
      cache::Store store(options_for(directory), std::make_shared<FaultyFileSystem>());
      while (race->stop == 0) {
        store.trim(Arena::room());
        ++race->done;
      }
    });
  for (unsigned rewriter = 0; rewriter < 2; ++rewriter)
    processes.start([&, rewriter] {
      for (unsigned seed = 2; race->stop == 0; ++seed) {
        arena.rewrite(trial, 2 * (seed % (Arena::kRewritten / 2)) + rewriter, seed);
        ++race->arrived;
      }
    });
  processes.start([&] {
    for (unsigned seed = 2; race->stop == 0; ++seed) {
      arena.fill(seed);
      arena.read_fillers(trial, seed);
      // As fast as they are evicted, no faster.
      const int evictions = race->done;
      await([&] { return race->done > evictions || race->stop == 1; });
    }
  });
  for (int reader = 0; reader < 2; ++reader)
    processes.start([&] {
      cache::Store store(options_for(directory));
      while (race->stop == 0) {
        arena.read(trial, store);
        ++race->compiling;
      }
    });
  std::this_thread::sleep_for(duration);
  race->stop = 1;
  processes.wait_all();
  trial.right(race->done > 0 && race->arrived > 0 && race->compiling > 0, "somebody did nothing");
  bystanders.whole(trial);
  cache::Store store(options_for(directory));
  arena.read(trial, store);
  trial.right(store.verify().ok(), "something is damaged");
  std::printf("  fault 6: %d evictions, %d rewrites, %d readings of all\n", race->done.load(),
              race->arrived.load(), race->compiling.load());
}

}  // namespace kiln::faults
