// How the end of a worker is told apart. The workers are scripts of the shell.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/worker/worker_process.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

using How = WorkerEnd::How;

struct Told {
  bool ended = false;
  How how = How::fault;
  std::string words;
  double seconds = 0;
};

/// Starts a script as a worker, which is to greet in time.
Told start(const std::string& script, double seconds = 20) {
  const test::TemporaryDirectory folder;
  const auto path = folder.path() / "worker";
  test::write_text(path, "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const auto begin = Clock::now();
  Told told;
  try {
    WorkerProcess worker(path, {}, -1, TimeLimit(seconds, begin));
  } catch (const WorkerEnd& end) {
    told = {true, end.how(), end.what()};
  }
  told.seconds = seconds_since(begin);
  return told;
}

}  // namespace

TEST_CASE("how a worker ended is known", "[runtime][worker]") {
  Told told = start("echo the last words >&2; exit 3");
  CHECK((told.ended && told.how == How::fault));
  CHECK(told.words == "ended with exit code 3; its last words: the last words");
  told = start("kill -SEGV $$");
  CHECK((told.ended && told.how == How::fault));
  CHECK(told.words == "was ended by signal 11 (SIGSEGV)");
  for (const char* signal : {"KILL", "TERM", "INT"}) {
    told = start(std::string("kill -") + signal + " $$");
    CHECK((told.ended && told.how == How::killed));
  }
  told = start("exec sleep 100", 0.5);
  CHECK((told.ended && told.how == How::late));
  CHECK(told.seconds < 20);
  told = start("kill -STOP $$", 2);
  CHECK((told.ended && told.how == How::stopped));
  CHECK(told.seconds < 20);
  told = start("echo this is no message >&0; exec sleep 100");
  CHECK((told.ended && told.how == How::fault));
  CHECK(told.words.find("sent something that is not a message") == 0);
  // The channel alone tells nothing of a process that goes on without it.
  told = start("exec 0>&-; exec sleep 100", 0.5);
  CHECK((told.ended && told.seconds < 20));
}

TEST_CASE("the end of a worker whose channel another process keeps open is noticed at once",
          "[runtime][worker]") {
  const test::TemporaryDirectory folder;
  const std::string note = (folder.path() / "id").string();
  // Outside of the worker's group, so that it lives on.
  const std::string keeps = "echo $$ >" + note + ".new; mv " + note + ".new " + note;
  const Told told =
      start("exec 3<&0; setsid sh -c '" + keeps + "; exec sleep 100' <&3 & while [ ! -e " + note +
                " ]; do sleep 0.01; done; kill -SEGV $$",
            60);
  pid_t keeper = 0;
  std::ifstream(note) >> keeper;
  REQUIRE(keeper > 0);
  CHECK(::kill(keeper, SIGKILL) == 0);
  CHECK((told.ended && told.how == How::fault));
  CHECK(told.words == "was ended by signal 11 (SIGSEGV)");
  CHECK(told.seconds < 30);
}

TEST_CASE("a worker that is not there is an error that names it", "[runtime][worker]") {
  CHECK_THROWS_AS(WorkerProcess("/nonexistent/worker", {}, -1, TimeLimit(1, Clock::now())),
                  EnvironmentError);
}
