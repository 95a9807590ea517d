// A program that compiles in processes until it is killed: prints their ids, then stays.
//   compile_parent [fork]   also forks; the fork keeps its descriptors, and its id is printed first
#include <cstdio>

#include <unistd.h>

#include "process_fixture.hpp"

int main(int argument_count, char**) {
  using namespace kiln::test;
  const ProcessBench bench({.processes = 2});
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { bench.compile("loop"); });
  within(60, [&] { return bench.processes().size() == 2; });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // they compile now
  if (argument_count > 1) {
    const pid_t fork = ::fork();
    if (fork == 0) ::sleep(60), ::_exit(0);
    std::printf("%d\n", static_cast<int>(fork));
  }
  for (const pid_t process : bench.processes()) std::printf("%d\n", static_cast<int>(process));
  std::puts("0");
  std::fflush(stdout);
  ::sleep(600);
}
