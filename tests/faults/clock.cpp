// Fault 14: the clock is not what it was when the files were written.
#include <atomic>
#include <ctime>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "program.hpp"

namespace {
/// Added to what the wall clock shows in this process, to Kiln as well. In seconds.
long clock_offset = 0;
}  // namespace

/// These functions replace the C library's. The kernel still stamps files by its own clock, as a
/// file server with another clock does.
extern "C" int clock_gettime(clockid_t clock, struct timespec* now) noexcept {
  const long result = ::syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += clock_offset;
  return static_cast<int>(result);
}
extern "C" time_t time(time_t* result) noexcept {
  struct timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

namespace kiln::faults {
namespace {

using nlohmann::json;
using test::FaultyFileSystem;

constexpr long kHour = 3600;

/// Moves every stamp below by `seconds`.
void move_stamps(const fs::path& directory, long seconds) {
  std::vector<fs::path> all{directory};
  for (const auto& item : fs::recursive_directory_iterator(directory)) all.push_back(item.path());
  for (const fs::path& path : all) {
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0) continue;
    status.st_atim.tv_sec += seconds;
    status.st_mtim.tv_sec += seconds;
    const struct timespec times[2] = {status.st_atim, status.st_mtim};
    ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }
}

void set_stamp(const fs::path& path, long seconds_ago) {
  struct timespec then{};
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &then);
  then.tv_sec -= seconds_ago;
  const struct timespec times[2] = {then, then};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

/// All of a store's life, with a clock that is off by `offset` against the files' stamps.
void live(Trial& trial, const fs::path& directory, const Bystanders& bystanders) {
  const Key record = test::make_key("wanted", "record");
  StoreOptions options = options_for(directory);
  options.lock_deadline = 600;
  Program program(options);
  program.runs(trial, 1);
  trial.right(program.compiles() == 0, "an entry is no hit any more");
  trial.right(program.store->find_record(record) == json(7), "a record is not found any more");
  program.runs(trial, 2);
  program.store->put_record(record, 7);
  (void)program.store->list();
  trial.right(program.store->verify().ok(), "an entry counts as damaged");
  program.store->trim(std::uint64_t{1} << 40);
  Program again(options);
  again.runs(trial, 2);
  trial.right(again.compiles() == 0, "it was not kept");
  bystanders.whole(trial);
}

}  // namespace

void clock_moved(Trial& trial) {
  const Key record = test::make_key("wanted", "record");
  for (const long offset : {-1 * kHour, 1 * kHour, -30 * kHour, 30 * kHour, -20L * 365 * 24 * kHour,
                            20L * 365 * 24 * kHour}) {
    const std::string by = std::to_string(offset / kHour) + " hours";
    for (const bool stamps : {false, true}) {
      trial.next((stamps ? "the files' stamps moved by " : "the clock moved by ") + by);
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache";
      const Bystanders bystanders(directory);
      Program program(options_for(directory));
      program.runs(trial, 1);
      program.store->put_record(record, 7);
      Processes::run(trial, [&] {
        if (stamps)
          move_stamps(directory, offset);
        else
          clock_offset = offset;
        live(trial, directory, bystanders);
      });
      // The clock goes back again, for what was written meanwhile.
      live(trial, directory, bystanders);
    }

    trial.next("the clock moves by " + by + " while a store is open");
    {
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache";
      const Bystanders bystanders(directory);
      Processes::run(trial, [&] {
        Program program(options_for(directory));
        program.runs(trial, 1);
        program.store->put_record(record, 7);
        clock_offset = offset;
        program.runs(trial, 1);
        trial.right(program.compiles() == 1, "an entry is no hit any more");
        live(trial, directory, bystanders);
      });
    }

    // The holder's clock and the waiters' differ: nobody waits for the dead, nobody waits for good.
    trial.next("a lock's holder is killed, the waiter's clock is off by " + by);
    {
      const TemporaryDirectory root;
      StoreOptions options = options_for(root.path() / "cache");
      options.lock_deadline = 600;
      Shared<std::atomic<bool>> compiling;
      Processes processes(trial);
      const pid_t holder = processes.start([&] {
        Program program(options);
        program.compiler->on_compile = [&] {
          *compiling = true;
          await([] { return false; });
        };
        program.output(1);
      });
      await([&] { return compiling->load(); });
      processes.kill(holder);
      processes.wait(processes.start([&] {
        clock_offset = offset;
        Program(options).runs(trial, 1);
      }));
    }
    trial.next("a lock's holder is stopped, the waiter's clock is off by " + by);
    {
      const TemporaryDirectory root;
      StoreOptions options = options_for(root.path() / "cache");
      options.lock_deadline = 0.3;
      Shared<std::atomic<int>> compiling, go;
      Processes processes(trial);
      const pid_t holder = processes.start([&] {
        Program program(options);
        program.compiler->on_compile = [&] {
          ++*compiling;
          await([&] { return *go > 0; });
        };
        program.runs(trial, 1);
      });
      await([&] { return *compiling == 1; });
      processes.stop(holder);
      processes.wait(processes.start([&] {
        clock_offset = offset;
        Program(options).runs(trial, 1);
      }));
      *go = 1;
      ::kill(holder, SIGCONT);
      processes.wait(holder);
    }
    trial.next("a lively holder is waited for, the waiter's clock is off by " + by);
    {
      const TemporaryDirectory root;
      StoreOptions options = options_for(root.path() / "cache");
      options.lock_deadline = 600;
      Shared<std::atomic<int>> compiling, asked;
      Processes processes(trial);
      for (int i = 0; i < 3; ++i)
        processes.start([&, i] {
          clock_offset = i * offset;
          Program program(options);
          program.compiler->on_compile = [&] {
            ++*compiling;
            await([&] { return *asked == 3; });
          };
          ++*asked;
          program.runs(trial, 1);
        });
      processes.wait_all();
      trial.right(*compiling == 1, "it was compiled " + std::to_string(*compiling) + " times");
    }
  }

  // What is evicted, and what counts as abandoned, goes by stamps of one clock: the file server's.
  for (const long offset : {-1 * kHour, 1 * kHour}) {
    trial.next("a writer at work is not swept away, the clock is off by " + std::to_string(offset));
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Bystanders bystanders(directory);
    const auto system = std::make_shared<FaultyFileSystem>();
    // Forked before the writer has a thread: a sanitizer's locks are no safer in a child than
    // others.
    constexpr int kSweeps = 2;
    Shared<std::atomic<int>> writing;
    Processes processes(trial);
    std::vector<pid_t> sweepers;
    for (int s = 0; s < kSweeps; ++s)
      sweepers.push_back(processes.start([&, s] {
        await([&] { return *writing > s; });
        clock_offset = offset;
        cache::Store other(options_for(directory));
        for (int i = 0; i < 20; ++i) other.put(test::make_key("o" + std::to_string(i)), Raw(10));
        other.trim(std::uint64_t{1} << 40);
      }));
    bool swept = false;
    system->fault = [&](test::Call call, int) {
      if (call != test::Call::rename || *writing == kSweeps) return 0;
      for (const fs::path& path : test::files_below(directory))
        if (path.extension() == ".tmp") set_stamp(path, 50 * 60);  // long, but not abandoned
      processes.wait(sweepers[static_cast<std::size_t>((*writing)++)]);
      swept = true;
      return 0;
    };
    Program program(options_for(directory), system);
    program.runs(trial, 1);
    trial.right(swept, "no sweep was tried");
    *writing = kSweeps;
    processes.wait_all();
    Program again(options_for(directory));
    again.runs(trial, 1);
    trial.kept(again.compiles() == 0, "what was being written was swept away");
    bystanders.whole(trial);
  }
  for (const long offset : {-1 * kHour, 1 * kHour}) {
    trial.next("the least recently used goes first, the clock is off by " + std::to_string(offset));
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    const Key old_key = test::make_key("old"), new_key = test::make_key("new");
    cache::Store store(options_for(directory));
    store.put(old_key, test::make_bytes(20'000, 1));
    store.put(new_key, test::make_bytes(20'000, 2));
    set_stamp(test::binary_path(directory, old_key), 5 * kHour);
    Processes::run(trial, [&] {
      clock_offset = offset;
      cache::Store(options_for(directory)).trim(25'000);
    });
    cache::Store later(options_for(directory));
    trial.kept(later.find(new_key).has_value(), "the newest was evicted");
    trial.right(!later.find(old_key), "the oldest was not evicted");
  }
}

}  // namespace kiln::faults
