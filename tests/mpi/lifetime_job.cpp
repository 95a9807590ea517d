// One rank of a job that opens and destroys ends of MPI in some order: lifetime_job MODE.
// Prints `ok` where MPI was finalized when it was to be, and not before; else what was wrong.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

#include "kiln/communicators.hpp"
#include "kiln/error.hpp"

namespace {

using End = std::unique_ptr<kiln::Communicator>;

void require(bool good, const char* what) {
  if (good) return;
  std::printf("wrong: %s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}

End open() { return kiln::mpi_communicator(kiln::deadline_in(20)); }

bool finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

void check_alive(kiln::Communicator& end) {
  require(!finalized(), "MPI was finalized while an end lived");
  const int mine = end.rank();
  std::vector<int> all(static_cast<std::size_t>(end.size()), -1);
  const auto failure = end.gather(std::as_bytes(std::span(&mine, 1)),
                                  std::as_writable_bytes(std::span(all)), kiln::deadline_in(20));
  require(!failure && all.back() == end.size() - 1, "a living end cannot gather");
}

End part_of(kiln::Communicator& end) {
  End part;
  require(!end.split(0, part, kiln::deadline_in(20)), "no part");
  return part;
}

/// The first is destroyed first, and others are opened meanwhile.
void several() {
  End a = open(), b = open();
  a.reset();
  check_alive(*b);
  End c = open();
  b.reset();
  check_alive(*c);
  c.reset();
  require(finalized(), "nobody finalized MPI");
}

void parts() {
  End whole = open(), part = part_of(*whole), small = part_of(*part);
  whole.reset();
  check_alive(*part);
  part.reset();
  check_alive(*small);
  small.reset();
  require(finalized(), "nobody finalized MPI");
}

void again() {
  check_alive(*open());
  require(finalized(), "nobody finalized MPI");
  try {
    open();
  } catch (const kiln::EnvironmentError& error) {
    require(std::string(error.what()).find("MPI_Finalize has been called") != std::string::npos,
            error.what());
    return;
  }
  require(false, "MPI was started twice");
}

/// The part of the program that has started MPI shuts it down.
void foreign() {
  MPI_Init(nullptr, nullptr);
  End a = open();
  check_alive(*a);
  a.reset();
  End b = open();
  check_alive(*b);
  b.reset();
  require(!finalized(), "an MPI that is not Kiln's was finalized");
  MPI_Finalize();
}

/// A second thread asks the ranks, as that of Runtime::prepare_async does. Where MPI was started
/// for one thread, its calls fail, and say why.
void threads(bool one) {
  if (one) {
    int level = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    one = level < MPI_THREAD_SERIALIZED;  // MPI may give more than it is asked for
  }
  End end = open();
  std::thread([&] {
    if (!one) return check_alive(*end);
    float value = 0;
    const auto failure = end->reduce({&value, 1}, kiln::Reduction::max, kiln::deadline_in(20));
    require(failure && failure->text.find("for one thread") != std::string::npos,
            "a call on another thread was made");
  }).join();
  if (!one) check_alive(*end);
}

void broken() {
  End whole = open(), part = part_of(*whole);
  part->abort({kiln::RankFailure::Kind::lost, {}, "on purpose"});
  part.reset();
  check_alive(*whole);
  whole.reset();
  require(!finalized(), "MPI was finalized after a failure");
}

}  // namespace

int main(int, char** argv) try {
  const std::string mode = argv[1];
  if (mode == "several") several();
  if (mode == "parts") parts();
  if (mode == "again") again();
  if (mode == "foreign") foreign();
  if (mode == "broken") broken();
  if (mode == "threads") threads(false);
  if (mode == "one_thread") threads(true);
  std::puts("ok");
  std::fflush(stdout);
  if (mode == "broken" || mode == "one_thread") {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // a launcher ends all with the first
    std::_Exit(0);
  }
  return 0;
} catch (const kiln::Error& error) {
  require(false, error.what());
}
