// Programs that are started, and how they end. The programs are scripts of the shell.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/processes/child_process.hpp"
#include "temporary_directory.hpp"
#include "tracer.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using runtime::ChildProcess;

namespace {

class Scripts {
 public:
  std::filesystem::path script(const std::string& text) {
    const auto path = folder_.path() / ("script" + std::to_string(count_++));
    test::write_text(path, "#!/bin/sh\n" + text + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

 private:
  const test::TemporaryDirectory folder_;
  int count_ = 0;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("how a process ended is said", "[processes][child]") {
  Scripts scripts;
  ChildProcess exits(scripts.script("echo last words >&2; exit 3"));
  CHECK(exits.end(ChildProcess::End::soon) == "ended with exit code 3");
  CHECK(exits.last_words() == "last words\n");
  CHECK(exits.channel() == -1);
  CHECK(exits.end(ChildProcess::End::now).empty());

  ChildProcess aborts(scripts.script("kill -ABRT $$"));
  CHECK(aborts.end(ChildProcess::End::soon) == "was ended by signal 6 (SIGABRT)");
  ChildProcess hangs(scripts.script("exec sleep 1000"));
  CHECK(hangs.end(ChildProcess::End::now) == "was ended by signal 9 (SIGKILL)");
  // The end of the channel is all that it has to see.
  ChildProcess reads(scripts.script("read line; exit 5"));
  CHECK(reads.end(ChildProcess::End::soon) == "ended with exit code 5");
  ChildProcess stopped(scripts.script("kill -STOP $$"));
  const auto start = std::chrono::steady_clock::now();
  CHECK(stopped.end(ChildProcess::End::soon) == "was ended by signal 9 (SIGKILL)");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("what is no program is an error that names it", "[processes][child]") {
  Scripts scripts;
  const auto not_executable = scripts.script("exit 0");
  std::filesystem::permissions(not_executable, std::filesystem::perms::owner_read);
  for (const std::filesystem::path& path :
       {std::filesystem::path("/nonexistent/program"), std::filesystem::path("/tmp")}) {
    try {
      ChildProcess process(path);
      FAIL("nothing was thrown");
    } catch (const EnvironmentError& error) {
      CHECK(contains(error.what(), "posix_spawn failed for " + path.string()));
    }
  }
}

TEST_CASE("a process has no descriptors of this one, and signals as at first",
          "[processes][child]") {
  Scripts scripts;
  const int open = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  REQUIRE(open >= 0);
  const int high = ::fcntl(open, F_DUPFD, 700);
  struct sigaction ignore{}, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  sigset_t all, mask;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &mask);
  ChildProcess process(
      scripts.script("ls /proc/self/fd >&2; grep -E '^Sig(Blk|Ign)' /proc/self/status >&2"));
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  ::sigaction(SIGPIPE, &before, nullptr);
  process.end(ChildProcess::End::soon);
  ::close(open);
  ::close(high);
  // `ls` itself has 3 open: the folder. Beyond 31 are glibc's own signals, and those in real time.
  unsigned long blocked = 1, ignored = 1;
  REQUIRE(std::sscanf(process.last_words().c_str(), "0 1 2 3 SigBlk: %lx SigIgn: %lx", &blocked,
                      &ignored) == 2);
  CHECK(blocked == 0);
  CHECK((ignored & 0x7fffffff) == 0);
}

TEST_CASE("a process in the background runs when nothing else does", "[processes][child]") {
  Scripts scripts;
  const auto path = scripts.script("read line");
  ChildProcess usual(path), background(path, -1, true);
  CHECK(::sched_getscheduler(usual.id()) == ::sched_getscheduler(0));
  CHECK(::sched_getscheduler(background.id()) == SCHED_IDLE);
  CHECK(background.end(ChildProcess::End::soon) == "ended with exit code 1");
}

TEST_CASE("only the last of what a process prints is kept, and it may print much",
          "[processes][child]") {
  Scripts scripts;
  ChildProcess process(
      scripts.script("i=0; while [ $i -lt 3000 ]; do echo "
                     "0123456789012345678901234567890123456789 >&2; "
                     "i=$((i+1)); done; echo the end >&2; read line"));
  while (!contains(process.last_words(), "the end"))
    process.read_errors(), std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(process.last_words().size() == 4096);
  process.end(ChildProcess::End::soon);
}

TEST_CASE("a program that takes every child's end does no harm", "[processes][child]") {
  Scripts scripts;
  SECTION("by waitpid") {
    ChildProcess process(scripts.script("exit 3"));
    CHECK(::waitpid(-1, nullptr, 0) == process.id());
    CHECK(contains(process.end(ChildProcess::End::soon), "waitpid of this program"));
  }
  SECTION("by ignoring SIGCHLD") {
    struct sigaction ignore{}, before{};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGCHLD, &ignore, &before);
    {
      ChildProcess process(scripts.script("exit 3"));
      CHECK(contains(process.end(ChildProcess::End::soon), "waitpid of this program"));
      ChildProcess hangs(scripts.script("exec sleep 1000"));
    }
    ::sigaction(SIGCHLD, &before, nullptr);
  }
  SECTION("and its own children are left alone") {
    const pid_t own = ::fork();
    if (own == 0) ::_exit(9);
    {
      ChildProcess process(scripts.script("exit 3"));
    }
    int status = 0;
    CHECK(::waitpid(own, &status, 0) == own);
    CHECK(WEXITSTATUS(status) == 9);
  }
}

TEST_CASE("a process that has ended leaves neither a descriptor nor a zombie",
          "[processes][child]") {
  Scripts scripts;
  const auto path = scripts.script("exit 0");
  const auto count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = count();
  for (int i = 0; i < 10; ++i) ChildProcess process(path);
  CHECK_THROWS_AS(ChildProcess("/nonexistent/program"), EnvironmentError);
  CHECK(count() == before);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("what a process has started ends with it", "[processes][child]") {
  Scripts scripts;
  const test::TemporaryDirectory folder;
  const auto note = folder.path() / "id";
  const std::string start = "sleep 1000 & echo $! >" + note.string() + ".new; mv " + note.string() +
                            ".new " + note.string() + "; ";
  std::optional<ChildProcess> process;
  SECTION("that is killed") { process.emplace(scripts.script(start + "wait")); }
  SECTION("that ends by itself") { process.emplace(scripts.script(start + "exit 3")); }
  REQUIRE(test::becomes([&] { return std::filesystem::exists(note); }));
  pid_t started = 0;
  std::ifstream(note) >> started;
  REQUIRE(started > 0);
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, started, 0));
  if (descriptor < 0) KILN_SKIP("there are no descriptors of processes here");
  pollfd ends{descriptor, POLLIN, 0};
  CHECK(::poll(&ends, 1, 0) == 0);
  process.reset();
  CHECK(::poll(&ends, 1, 20000) == 1);
  ::close(descriptor);
}

TEST_CASE("a look at a killed process that cannot be reaped yet does not wait for it",
          "[processes][child]") {
  Scripts scripts;
  ChildProcess process(scripts.script("exec sleep 1000"));
  auto tracer = std::make_unique<test::Tracer>(process.id());
  if (!tracer->traces()) KILN_SKIP("no process may be traced here");
  process.begin_end(ChildProcess::End::now);
  CHECK(process.killed());
  for (int i = 0; i < 20; ++i) {
    CHECK_FALSE(process.has_ended());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(process.how_ended().empty());
  // Its descriptor is readable for ever now, so it says nothing.
  CHECK(process.end_descriptor() == -1);
  CHECK(process.next_look().left() < 0.1);
  tracer.reset();
  CHECK(process.end(ChildProcess::End::now) == "was ended by signal 9 (SIGKILL)");
}

TEST_CASE("a killed process that stays is let go, and reaped later", "[processes][child][long]") {
  Scripts scripts;
  std::unique_ptr<test::Tracer> tracer;
  pid_t stays = 0;
  {
    ChildProcess process(scripts.script("exec sleep 1000"));
    stays = process.id();
    tracer = std::make_unique<test::Tracer>(stays);
    if (!tracer->traces()) KILN_SKIP("no process may be traced here");
    CHECK(process.end(ChildProcess::End::now) == "was killed, and has not ended within 10 s");
  }
  ChildProcess(scripts.script("exit 0")).end(ChildProcess::End::soon);
  CHECK(::kill(stays, 0) == 0);  // a zombie still
  tracer.reset();
  const ChildProcess next(scripts.script("exit 0"));
  CHECK(::kill(stays, 0) == -1);
}
