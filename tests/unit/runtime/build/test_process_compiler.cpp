// Compiling in other processes, by compilers that crash, exit, hang and lie.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "findings.hpp"
#include "process_fixture.hpp"
#include "tracer.hpp"
#include "unit/runtime/allocations.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::PoolOptions;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("what a process compiles is what a compiler here would give", "[runtime][processes]") {
  const ProcessBench bench;
  const codegen::Binary expected = binary_of("some text", kOddTarget);
  const auto result = bench.compile("some text");
  REQUIRE(std::holds_alternative<codegen::Binary>(result));
  const auto& binary = std::get<codegen::Binary>(result);
  CHECK(codegen::serialize(binary) == codegen::serialize(expected));
  CHECK(binary.log == "a warning");
  CHECK(bench.here->asked == 0);
  CHECK(bench.compiler->identity().build == "1");
  // One process is enough for one at a time.
  bench.compile("another");
  CHECK(bench.processes().size() == 1);
}

TEST_CASE("a request that there is no memory to send is compiled here", "[runtime][processes]") {
  const ProcessBench bench;
  const auto compiled_there = [&](const std::string& text) {
    return bench.outcome(text) == code_of(binary_of(text, kOddTarget));
  };
  CHECK(compiled_there("some text"));
  {
    const LittleForOthers little(std::size_t{1} << 19);
    CHECK(bench.outcome(std::string(std::size_t{1} << 20, 'x')) == "here");
  }
  CHECK(bench.here->asked == 1);
  CHECK(compiled_there("another"));
  CHECK(bench.processes().size() == 1);
}

TEST_CASE("a refusal comes through as it is", "[runtime][processes]") {
  const ProcessBench bench;
  const auto result = bench.compile("refuse no\nsuch\nthing");
  REQUIRE(std::holds_alternative<CompileFailure>(result));
  const auto& failure = std::get<CompileFailure>(result);
  CHECK(failure.log == "error: no");
  CHECK(failure.kernel == "k{a=refuse no\nsuch\nthing}");
  CHECK(failure.compiler == "odd 1");
  CHECK(failure.options == std::vector<std::string>{"-x", ""});
}

TEST_CASE("errors keep their type", "[runtime][processes]") {
  const ProcessBench bench;
  CHECK_THROWS_AS(bench.compile("user-error"), UserError);
  CHECK_THROWS_WITH(bench.compile("environment-error"), "the environment's");
  CHECK_THROWS_AS(bench.compile("environment-error"), EnvironmentError);
  CHECK_THROWS_AS(bench.compile("internal-error"), InternalError);
  CHECK_THROWS_AS(bench.compile("no-memory"), EnvironmentError);
  CHECK(bench.processes().size() == 1);
  CHECK(bench.outcome("goes on") == "goes on");
}

TEST_CASE("a compiler that ends its process is a failed candidate that says how",
          "[runtime][processes]") {
  const ProcessBench bench({.limit = 2});
  const struct {
    const char *text, *reason;
  } cases[] = {{"abort", "was ended by signal 6 (SIGABRT)"},
               {"exit 3", "ended with exit code 3"},
               {"exit 0", "ended with exit code 0"},
               {"crash", "was ended by signal 11 (SIGSEGV)"},
               {"loop", "it took more than 2 s, and the process that worked on it was ended"},
               {"garbage", "sent something that is not a message of Kiln, and was ended"},
               {"unasked", "sent what it was not asked for, and was ended"},
               {"truncated", "ended with exit code 0"},
               {"other-target", "a binary for another target"}};
  for (const auto& c : cases) {
    INFO(c.text);
    const auto result = bench.compile(c.text);
    REQUIRE(std::holds_alternative<CompileFailure>(result));
    const auto& failure = std::get<CompileFailure>(result);
    CHECK(has(failure.log, "the compiler did not finish"));
    CHECK(has(failure.log, c.reason));
    CHECK(failure.kernel == "k{a=" + std::string(c.text) + "}");
    CHECK(failure.compiler == "odd 1");
    CHECK(failure.options == std::vector<std::string>{"-O", "two words"});
    CHECK(bench.outcome("goes on") == "goes on");
  }
  CHECK(bench.here->asked == 0);
  SECTION("with its last words, however many there were") {
    CHECK(has(bench.outcome("say goodbye"), "...goodbye\n"));
  }
}

TEST_CASE("the end of a process whose channel another one keeps open is noticed at once",
          "[runtime][processes]") {
  const ProcessBench bench({.limit = 60});
  const auto file = bench.folder.path() / "while this is here";
  std::ofstream(file) << "it is";
  const auto begin = std::chrono::steady_clock::now();
  CHECK(has(bench.outcome("leave " + file.string()), "was ended by signal 6 (SIGABRT)"));
  CHECK(bench.outcome("goes on") == "goes on");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE(
    "a compiling process has the priority of the thread that asks for it, not of the first thread",
    "[runtime][processes]") {
  const int before = ::getpriority(PRIO_PROCESS, 0);
  const ProcessBench bench;
  const auto priority_here = [&] {
    return ::getpriority(PRIO_PROCESS, static_cast<id_t>(std::stoi(bench.outcome("id"))));
  };
  const auto priority_below = [&] {
    int found = 0;
    std::jthread([&] {
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), before + 3);
      found = priority_here();
    }).join();
    return found;
  };
  SECTION("one of low priority") {
    CHECK(priority_below() == before + 3);
    CHECK(priority_here() == before);
  }
  SECTION("one of usual priority") {
    CHECK(priority_here() == before);
    CHECK(priority_below() == before + 3);
  }
  CHECK(bench.here->asked == 0);
}

TEST_CASE("what is beside a candidate that ends the process is compiled", "[runtime][processes]") {
  const ProcessBench bench({.processes = 2, .limit = 4});
  Findings findings;
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 40; ++i)
      threads.emplace_back([&, i] {
        const std::string text = i % 10 == 3   ? "abort"
                                 : i % 10 == 7 ? "exit 1"
                                 : i == 20     ? "loop"
                                               : "sleep " + std::to_string(i);
        const std::string outcome = bench.outcome(text);
        if (has(outcome, "did not finish")) ++failed;
        findings.check((outcome == text) == text.starts_with("sleep"));
      });
  }
  CHECK(findings.wrong() == "");
  CHECK(failed == 9);
  CHECK(bench.here->asked == 0);
}

TEST_CASE("a killed process that stays holds nothing up", "[runtime][processes]") {
  const ProcessBench bench({.limit = 2});
  CHECK(bench.outcome("one") == "one");
  const pid_t stays = bench.processes().at(0);
  const Tracer tracer(stays);
  if (!tracer.traces()) KILN_SKIP("no process may be traced here");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(has(bench.outcome("loop"), "it took more than 2 s"));
  CHECK(bench.outcome("goes on") == "goes on");
  // It is looked at for ten seconds from when it was killed.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  const std::vector<pid_t> processes = bench.processes();
  CHECK(processes.size() == 2);
  CHECK(processes.at(0) == stays);
}

TEST_CASE("a process that is killed from outside costs a second try", "[runtime][processes]") {
  const ProcessBench bench({.processes = 2});
  const auto marker = bench.folder.path() / "marker";
  CHECK(bench.outcome("once " + marker.string()) == "once " + marker.string());
  CHECK(std::filesystem::exists(marker));

  // In the middle of four compilations, all of its two are done again.
  Findings findings;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, text = "sleep 40" + std::to_string(i)] {
      findings.check(bench.outcome(text) == text);
    });
  CHECK(within(20, [&] { return bench.processes().size() == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto before = bench.processes();
  ::kill(before[0], SIGKILL);
  threads.clear();
  CHECK(findings.wrong() == "");
  CHECK(bench.here->asked == 0);
  // One that is idle is replaced when there is work again.
  for (const pid_t process : bench.processes()) ::kill(process, SIGKILL);
  CHECK(within(20, [&] { return bench.processes().empty(); }));
  CHECK(bench.outcome("again") == "again");
}

TEST_CASE("processes that are killed each time say nothing of what they compile",
          "[runtime][processes]") {
  const ProcessBench bench({.processes = 2});
  const auto marker = bench.folder.path() / "marker";
  CHECK(bench.outcome("twice " + marker.string()) == "twice " + marker.string());
  for (const char* signal : {"9", "15"}) {
    INFO(signal);
    const std::string text = std::string("kill ") + signal;
    CHECK_THROWS_AS(bench.compile(text), EnvironmentError);
    CHECK_THROWS_WITH(bench.compile(text), Catch::Contains("k{a=" + text + "}") &&
                                               Catch::Contains("was ended by signal"));
    CHECK(bench.outcome("goes on") == "goes on");
  }
  // A signal that it sends to itself is its own fault.
  CHECK(has(bench.outcome("kill 6"), "was ended by signal 6 (SIGABRT)"));
  CHECK(bench.here->asked == 0);
}

TEST_CASE("many threads share a few processes", "[runtime][processes]") {
  const auto descriptors = open_descriptors();
  {
    const ProcessBench bench({.processes = 3});
    Findings findings;
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 32; ++t)
        threads.emplace_back([&, t] {
          for (int i = 0; i < 20; ++i) {
            const std::string text = std::to_string(t) + std::string(1000 * i, '-');
            findings.check(bench.outcome(text) == text);
          }
        });
    }
    CHECK(findings.wrong() == "");
    CHECK(bench.processes().size() == 3);
    CHECK(bench.outcome("descriptors") == "3");
    // Large ones do not get stuck halfway, in either direction.
    const std::string large(std::size_t{20} << 20, 'x');
    CHECK(bench.outcome(large) == large);
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("processes end when there is nothing to do", "[runtime][processes]") {
  const ProcessBench bench({.processes = 2, .idle = 0.05});
  CHECK(bench.outcome("one") == "one");
  CHECK(within(20, [&] { return bench.processes().empty(); }));
  CHECK(bench.outcome("two") == "two");
}

TEST_CASE("a process that holds much memory is replaced", "[runtime][processes]") {
  const ProcessBench bench({.resident_limit = 1});
  const std::string first = bench.outcome("id"), second = bench.outcome("id");
  CHECK(first != second);
  const ProcessBench other;
  const std::string one = other.outcome("id");
  CHECK(one == other.outcome("id"));
}

TEST_CASE("where the processes are of no use, kernels are compiled here", "[runtime][processes]") {
  for (const char* name :
       {"exits", "says-garbage", "says-nothing", "of-another-build", "cannot-open"}) {
    INFO(name);
    const ProcessBench bench({.start_limit = name == std::string("says-nothing") ? 0.5 : 60}, name);
    CHECK(bench.outcome("one") == "here");
    CHECK(bench.outcome("two") == "here");
    CHECK(bench.here->asked == 2);
    CHECK(within(20, [&] { return bench.processes().empty(); }));
  }
  ProcessBench bench;
  bench.compiler = std::make_unique<runtime::ProcessCompiler>(
      bench.here, runtime::CompilerPlace{}, PoolOptions{.executable = "/nonexistent"});
  CHECK(bench.outcome("one") == "here");
}

TEST_CASE("a process whose compiler reads other folders of headers is of no use",
          "[runtime][processes]") {
  class WithFolders final : public OddCompiler {
   public:
    std::vector<std::string> header_folders() const override { return {"/one", "/two"}; }
    codegen::CompileResult compile(const codegen::Source&, const Target& target) override {
      return binary_of("here", target);
    }
  };
  const auto here = std::make_shared<WithFolders>();
  CHECK(runtime::identity_of(*here) == runtime::identity_of(CompilerHere()) + ", /one, /two");
  ProcessBench bench;
  bench.compiler = std::make_unique<runtime::ProcessCompiler>(
      here, runtime::CompilerPlace{}, PoolOptions{.executable = beside("odd_compiler")});
  CHECK(runtime::identity_of(*bench.compiler) == runtime::identity_of(*here));
  CHECK(bench.outcome("one") == "here");
}

TEST_CASE("relative paths are of the folder that the program is in now", "[runtime][processes]") {
  const ProcessBench bench;
  const auto before = std::filesystem::current_path();
  CHECK(bench.outcome("folder") == before.string());
  std::filesystem::current_path(bench.folder.path());
  CHECK(bench.outcome("folder") == bench.folder.path().string());
  std::filesystem::current_path(before);
  CHECK(bench.outcome("folder") == before.string());
  CHECK(bench.processes().size() == 1);
}

TEST_CASE("a fork of the program compiles by itself, and leaves the processes alone",
          "[runtime][processes]") {
  auto bench = std::make_unique<ProcessBench>();
  CHECK(bench->outcome("one") == "one");
  const auto processes = bench->processes();
  const pid_t child = ::fork();
  if (child == 0) {
    const bool here = bench->outcome("two") == "here";
    bench->compiler.reset();
    ::_exit(here ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(bench->processes() == processes);
  CHECK(alive(processes.at(0)));
  CHECK(bench->outcome("three") == "three");
}

#ifndef __SANITIZE_THREAD__  // TSan ends a fork of many threads that starts one
TEST_CASE("a fork of the program keeps its own threads when it lets the compiler go",
          "[runtime][processes]") {
  auto bench = std::make_unique<ProcessBench>();
  CHECK(bench->outcome("one") == "one");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    // The system gives them what belonged to threads of the program that are not here.
    std::atomic<bool> over{false};
    std::vector<std::thread> own;
    for (int i = 0; i < 8; ++i)
      own.emplace_back([&] {
        while (!over) std::this_thread::yield();
      });
    bench->compiler.reset();
    over = true;
    for (std::thread& thread : own) thread.join();
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(bench->outcome("two") == "two");
}
#endif

TEST_CASE("a fork of the program lets processes go that are waited for in the program",
          "[runtime][processes]") {
  ProcessBench bench;
  std::string outcome;
  std::jthread waiting([&] { outcome = bench.outcome("sleep 1000"); });
  within(20, [&] { return bench.processes().size() == 1; });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits now
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const bool none = bench.processes().empty();
    bench.compiler.reset();
    ::_exit(none ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  waiting.join();
  CHECK(outcome == "sleep 1000");
}

TEST_CASE("a program that takes every child's end still learns of failures",
          "[runtime][processes]") {
  struct sigaction take{}, before{};
  SECTION("it ignores them") { take.sa_handler = SIG_IGN; }
  SECTION("it takes them in a handler") {
    take.sa_handler = [](int) {
      const int before_it = errno;
      while (::waitpid(-1, nullptr, WNOHANG) > 0) continue;
      errno = before_it;
    };
  }
  ::sigaction(SIGCHLD, &take, &before);
  {
    const ProcessBench bench;
    CHECK(has(bench.outcome("exit 3"), "did not finish"));
    CHECK(bench.outcome("goes on") == "goes on");
  }
  ::sigaction(SIGCHLD, &before, nullptr);
}
