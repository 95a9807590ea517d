// When a program is killed, the processes that compile for it are gone.
#include <csignal>
#include <cstdio>

#include <sys/wait.h>
#include <unistd.h>

#include "process_fixture.hpp"

namespace {

struct Killed {
  std::vector<pid_t> processes;
  bool gone = false;
};

/// Starts compile_parent, kills it, and looks for the processes that it had.
Killed kill_parent(bool with_fork) {
  const std::string program = kiln::test::beside("compile_parent").string();
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::dup2(pipe[1], 1);
    ::close(pipe[0]);
    ::close(pipe[1]);
    ::execl(program.c_str(), program.c_str(), with_fork ? "fork" : nullptr, nullptr);
    ::_exit(127);
  }
  ::close(pipe[1]);
  Killed killed;
  std::FILE* const out = ::fdopen(pipe[0], "r");
  for (int id = 0; std::fscanf(out, "%d", &id) == 1 && id != 0;) killed.processes.push_back(id);
  std::fclose(out);
  for (const pid_t process : killed.processes) CHECK(kiln::test::alive(process));
  pid_t fork = 0;
  if (with_fork && !killed.processes.empty()) {
    fork = killed.processes.front();
    killed.processes.erase(killed.processes.begin());
  }
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  killed.gone = kiln::test::within(10, [&] {
    for (const pid_t process : killed.processes)
      if (kiln::test::alive(process)) return false;
    return true;
  });
  if (fork > 0) ::kill(fork, SIGKILL);
  return killed;
}

}  // namespace

TEST_CASE("processes go with the program that they compile for", "[runtime][processes]") {
  const Killed alone = kill_parent(false);
  CHECK(alone.processes.size() == 2);
  CHECK(alone.gone);
  // A fork has the channels open, so that they do not end.
  const Killed forked = kill_parent(true);
  CHECK(forked.processes.size() == 2);
  CHECK(forked.gone);
}
