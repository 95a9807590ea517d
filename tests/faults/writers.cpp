// Faults 3, 7, 17 and 18: a process that writes dies, or may not write on.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kiln/error.hpp"
#include "program.hpp"

namespace kiln::faults {
namespace {

using nlohmann::json;
using test::Call;
using test::FaultyFileSystem;

const Key kRecordKey = test::make_key("wanted", "record");

/// What every case of these faults runs: an instance, and a record of it.
void run_once(Trial& trial, Program& program, int number, int value) {
  program.runs(trial, number);
  program.store->put_record(kRecordKey, value);
}

/// Which calls one run makes that may fail, in order.
std::vector<Call> calls_of_a_run(Trial& trial, bool replacing) {
  const TemporaryDirectory root;
  if (replacing) {
    Program program(options_for(root.path() / "cache"));
    run_once(trial, program, 1, 0);
    test::write_bytes(test::binary_path(root.path() / "cache", program.key(1)), Raw(100));
  }
  std::vector<Call> calls;
  auto system = std::make_shared<FaultyFileSystem>();
  system->short_writes = true;
  system->fault = [&](Call call, int) {
    if (call != Call::read) calls.push_back(call);
    return 0;
  };
  Program program(options_for(root.path() / "cache"), system);
  run_once(trial, program, 1, 1);
  return calls;
}

std::string name(Call call) {
  switch (call) {
    case Call::make_directory:
      return "mkdir";
    case Call::create:
      return "create";
    case Call::write:
      return "write";
    case Call::sync:
      return "fsync";
    case Call::rename:
      return "rename";
    default:
      return "another call";
  }
}

/// Temporary files, by their names in cache/FORMAT.md.
int temporaries(const fs::path& directory) {
  int count = 0;
  for (const fs::path& path : test::files_below(directory)) count += path.extension() == ".tmp";
  return count;
}

void age(const fs::path& path, long seconds) {
  struct timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  now.tv_sec -= seconds;
  const struct timespec times[2] = {now, now};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

/// The next program finds or makes everything, and an hour later nothing is left lying about.
void check_recovers(Trial& trial, const fs::path& directory, int value) {
  StoreOptions options = options_for(directory);
  options.lock_deadline = 0.1;  // of one that died before its lock named it
  Program next(options);
  next.runs(trial, 1);
  const auto record = next.store->find_record(kRecordKey);
  trial.right(!record || *record == json(value) || *record == json(0), "a record never put");
  trial.right(next.store->verify().ok(), "something half written is under an entry's name");
  next.store->put_record(kRecordKey, 2);
  Program last(options);
  last.runs(trial, 1);
  trial.right(last.compiles() == 0, "an entry could not be put afterwards");
  trial.right(last.store->find_record(kRecordKey) == json(2),
              "a record could not be put afterwards");

  for (const fs::path& path : test::files_below(directory))
    if (path.extension() == ".tmp" || path.extension() == ".lock") age(path, 2 * 3600 + 10);
  last.store->trim(std::uint64_t{1} << 40);
  trial.right(temporaries(directory) == 0, "an abandoned temporary file is never removed");
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& item : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace

void writer_killed(Trial& trial) {
  for (const bool replacing : {false, true}) {
    trial.next("counting calls");
    const std::vector<Call> calls = calls_of_a_run(trial, replacing);
    trial.right(calls.size() >= 10, "too few calls were seen");
    for (std::size_t fatal = 0; fatal < calls.size(); ++fatal) {
      trial.next(std::string(replacing ? "replacing" : "writing") + ", killed before call " +
                 std::to_string(fatal) + ", " + name(calls[fatal]));
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache";
      const Bystanders bystanders(directory);
      if (replacing) {
        Program program(options_for(directory));
        run_once(trial, program, 1, 0);
        test::write_bytes(test::binary_path(directory, program.key(1)), Raw(100));
      }
      // Directories are there already, so that fewer calls are made than were counted.
      Shared<std::atomic<bool>> finished;
      Processes processes(trial);
      const pid_t writer = processes.start([&] {
        auto system = std::make_shared<FaultyFileSystem>();
        system->short_writes = true;  // so that some die between the parts of a file
        system->fault = [&](Call call, int nth) {
          if (call != Call::read && nth == static_cast<int>(fatal)) ::kill(::getpid(), SIGKILL);
          return 0;
        };
        Program program(options_for(directory), system);
        run_once(trial, program, 1, 1);
        *finished = true;
        ::kill(::getpid(), SIGKILL);
      });
      processes.wait(writer, SIGKILL);
      check_recovers(trial, directory, 1);
      bystanders.whole(trial);
      if (*finished) break;
    }
  }
}

void writes_fail(Trial& trial) {
  trial.next("counting calls");
  const std::vector<Call> calls = calls_of_a_run(trial, false);
  for (const int code : {ENOSPC, EDQUOT, EIO, EROFS})
    for (const bool for_good : {false, true}) {
      if (for_good ? code == EDQUOT || code == EIO : code == EROFS) continue;
      // A full disk still lets files be removed.
      const bool removes = code == ENOSPC || code == EDQUOT;
      for (std::size_t failing = 0; failing < calls.size(); ++failing) {
        trial.next("call " + std::to_string(failing) + ", " + name(calls[failing]) +
                   (for_good ? " and all after it" : "") + ", errno " + std::to_string(code));
        const TemporaryDirectory root;
        const fs::path directory = root.path() / "cache";
        const Bystanders bystanders(directory);
        auto system = std::make_shared<FaultyFileSystem>();
        bool over = false;
        system->fault = [&](Call call, int nth) {
          const auto n = static_cast<std::size_t>(nth);  // of a removal: beyond all
          if (over || call == Call::read || (removes && call == Call::remove)) return 0;
          return n == failing || (for_good && n > failing) ? code : 0;
        };
        {
          Program program(options_for(directory, 1 << 20), system);
          run_once(trial, program, 1, 1);
          program.runs(trial, 1);
          trial.right(program.compiles() == 1, "what could not be written was not kept in memory");
          trial.right(program.store->find_record(kRecordKey) == json(1),
                      "the record kept in memory");
          over = true;
          program.runs(trial, 2);
        }
        if (removes || !for_good)
          trial.right(temporaries(directory) == 0, "a temporary file was left");
        bystanders.whole(trial);
        check_recovers(trial, directory, 1);
      }
    }

  for (const int code : {EIO, ENOMEM, ESTALE, EBUSY}) {
    trial.next("reading fails, errno " + std::to_string(code));
    const TemporaryDirectory root;
    const Bystanders bystanders(root.path() / "cache");
    Program(options_for(root.path() / "cache")).runs(trial, 1);
    auto system = std::make_shared<FaultyFileSystem>();
    system->fault = [&](Call call, int) { return call == Call::read ? code : 0; };
    Program(options_for(root.path() / "cache"), system).runs(trial, 1);
    bystanders.whole(trial);
  }

  {
    trial.next("a file system that takes long for each call");
    const TemporaryDirectory root;
    auto system = std::make_shared<FaultyFileSystem>();
    std::atomic<int> looks = 0;
    system->fault = [&](Call, int) {
      ++looks;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return 0;
    };
    Program(options_for(root.path() / "cache"), system).runs(trial, 1);
    Program again(options_for(root.path() / "cache", 1 << 20), system);
    again.runs(trial, 1);
    trial.right(again.compiles() == 0, "what is in the store was compiled");
    const int before = looks;
    for (int i = 0; i < 100; ++i) again.runs(trial, 1);
    trial.right(looks == before, "what is known in the process was looked for on the disk");
  }

  // The real thing: a file may not grow beyond a limit, so that writes are cut short, then fail.
  for (const rlim_t limit : {0, 1, 64, 500, 900, 1000}) {
    trial.next("files may have " + std::to_string(limit) + " bytes");
    const TemporaryDirectory root;
    const Bystanders bystanders(root.path() / "cache");
    Processes::run(trial, [&] {
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limits{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &limits);
      Program program(options_for(root.path() / "cache"));
      run_once(trial, program, 1, 1);
      program.runs(trial, 2);
    });
    bystanders.whole(trial);
    trial.right(temporaries(root.path()) == 0, "a temporary file was left");
    check_recovers(trial, root.path() / "cache", 1);
  }

  trial.next("a full file system");
  Shared<std::atomic<bool>> mounted;
  Processes::run(trial, [&] {
    const TemporaryDirectory root;
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("kiln", root.path().c_str(), "tmpfs", 0, "size=128k") != 0)
      return;
    *mounted = true;
    {
      const fs::path directory = root.path() / "cache";
      const Bystanders bystanders(directory);
      Raw filler(1 << 20);
      const int fd = ::open((root.path() / "filler").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
      while (::write(fd, filler.data(), 4096) > 0) {
      }
      ::close(fd);
      Program program(options_for(directory, 1 << 20));
      program.compiler->code_bytes = 9000;
      for (int i = 0; i < 10; ++i) program.runs(trial, i);
      trial.right(program.store->stats().failed_writes > 0, "the disk was not full");
      bystanders.whole(trial);
      trial.right(temporaries(directory) == 0, "a temporary file was left");
      fs::remove(root.path() / "filler");
      check_recovers(trial, directory, 1);
    }
    ::umount2(root.path().c_str(), MNT_DETACH);
  });
  if (!*mounted) trial.without("a full file system: mounting one needs root");
}

void directory_removed(Trial& trial) {
  trial.next("counting calls");
  const std::vector<Call> calls = calls_of_a_run(trial, false);
  const TemporaryDirectory beside;
  const Bystanders bystanders(beside.path() / "cache");

  for (const char* part : {"", "v1", "v1/binaries"}) {
    trial.next(std::string("removed between calls: /") + part);
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    Program program(options_for(directory));
    for (int round = 0; round < 3; ++round) {
      run_once(trial, program, round, round);
      fs::remove_all(directory / part);
    }
    run_once(trial, program, 7, 1);
    Program again(options_for(directory));
    again.runs(trial, 7);
    trial.right(again.compiles() == 0, "it was not made anew");
  }

  for (std::size_t at = 0; at < calls.size(); ++at) {
    for (const bool moved : {false, true}) {
      trial.next((moved ? "moved before call " : "removed before call ") + std::to_string(at));
      const TemporaryDirectory root;
      const fs::path directory = root.path() / "cache", aside = root.path() / "aside";
      const Bystanders moving(directory);
      auto system = std::make_shared<FaultyFileSystem>();
      system->fault = [&](Call call, int nth) {
        if (call == Call::read || nth != static_cast<int>(at)) return 0;
        if (moved)
          fs::rename(directory, aside);
        else
          fs::remove_all(directory);
        return 0;
      };
      Program program(options_for(directory), system);
      run_once(trial, program, 1, 1);
      run_once(trial, program, 2, 1);
      if (moved && fs::exists(aside)) moving.whole_in(trial, options_for(aside));
      check_recovers(trial, directory, 1);
    }
  }

  trial.next("removed again and again");
  {
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    Shared<std::atomic<int>> running;
    Processes processes(trial);
    for (int worker = 0; worker < 4; ++worker) {
      ++*running;
      processes.start([&] {
        for (int round = 0; round < 100; ++round) {
          Program program(options_for(directory));
          run_once(trial, program, round % 5, 1);
          trial.progress();
        }
        --*running;
      });
    }
    while (*running > 0) {
      std::error_code ignored;
      fs::remove_all(directory, ignored);
      ::usleep(500);
    }
    processes.wait_all();
    check_recovers(trial, directory, 1);
  }

  trial.next("removed while others wait for the one that compiles");
  {
    const TemporaryDirectory root;
    const fs::path directory = root.path() / "cache";
    StoreOptions options = options_for(directory);
    options.lock_deadline = 600;
    Shared<std::atomic<int>> compiling, removed;
    Processes processes(trial);
    for (int i = 0; i < 3; ++i)
      processes.start([&] {
        Program program(options);
        program.compiler->on_compile = [&] {
          ++*compiling;
          await([&] { return *removed == 1; });
        };
        program.runs(trial, 1);
      });
    await([&] { return *compiling > 0; });
    ::usleep(50'000);  // the others have most likely come to wait
    fs::remove_all(directory);
    *removed = 1;
    processes.wait_all();
    check_recovers(trial, directory, 1);
  }

  trial.next("the current directory is gone");
  Processes::run(trial, [&] {
    const TemporaryDirectory root;
    fs::create_directory(root.path() / "here");
    fs::current_path(root.path() / "here");
    StoreOptions options = options_for("relative");
    Program early(options);
    fs::remove_all(root.path() / "here");
    early.runs(trial, 1);
    Program(options).runs(trial, 1);
    fs::current_path("/");
  });
  bystanders.whole(trial);
}

void no_descriptors(Trial& trial) {
  const TemporaryDirectory root;
  const fs::path directory = root.path() / "cache";
  trial.next("whole");
  const Bystanders bystanders(directory);
  Program(options_for(directory)).runs(trial, 1);

  for (const bool early : {false, true})
    for (rlim_t spare = 0; spare <= 12; ++spare) {
      trial.next(std::to_string(spare) + " descriptors left" +
                 (early ? ", store opened before" : ""));
      Processes::run(trial, [&] {
        const StoreOptions options = options_for(directory);
        Program before(options);
        if (early) before.runs(trial, 1);
        const int open = open_descriptors();
        // The lowest free numbers are taken first: no more than `spare` can be opened.
        const int lowest = ::dup(0);
        ::close(lowest);
        rlimit limits{};
        ::getrlimit(RLIMIT_NOFILE, &limits);
        const rlim_t old = limits.rlim_cur;
        limits.rlim_cur = static_cast<rlim_t>(lowest) + spare;
        ::setrlimit(RLIMIT_NOFILE, &limits);
        {
          Program inside(options);
          Program& program = early ? before : inside;
          program.runs(trial, 1);                             // there
          program.runs(trial, static_cast<int>(20 + spare));  // not there
          program.store->put_record(kRecordKey, 1);
          (void)program.store->find_record(kRecordKey);
          (void)program.store->stats();
          (void)program.store->verify();
          try {
            program.store->trim(std::uint64_t{1} << 40);
          } catch (const EnvironmentError&) {  // it says so where it cannot
          }
        }
        limits.rlim_cur = old;
        ::setrlimit(RLIMIT_NOFILE, &limits);
        if (!early) trial.right(open_descriptors() == open, "descriptors were leaked");
      });
      bystanders.whole(trial);
      trial.right(cache::Store(options_for(directory)).verify().ok(), "an entry is not whole");
      trial.right(temporaries(directory) == 0, "a temporary file was left");
    }
}

}  // namespace kiln::faults
