#include <csignal>

#include "cache/process_identity.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::ProcessIdentity;

TEST_CASE("a process is dead when it ended, a stopped or foreign one is not",
          "[cache][process_identity]") {
  const ProcessIdentity self = ProcessIdentity::of_this_process();
  REQUIRE_FALSE(self.boot.empty());
  REQUIRE_FALSE(self.pid_namespace.empty());
  REQUIRE(self.start != 0);
  CHECK_FALSE(is_dead(self, self));
  Child child([] {
    for (;;) ::pause();
    return 0;
  });
  ProcessIdentity other = self;
  other.pid = child.pid();
  CHECK(is_dead(other, self));  // of another start: that pid is another process's now
  other.start = 0;
  CHECK_FALSE(is_dead(other, self));
  child.signal(SIGSTOP);
  CHECK_FALSE(is_dead(other, self));
  child.signal(SIGKILL);
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child.pid()), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(is_dead(other, self));  // a zombie
  child.wait();
  CHECK(is_dead(other, self));
  other = self;
  other.pid = 1;
  other.start = self.start + 1;
  CHECK(is_dead(other, self));  // the pid is another process's now
  other.boot = "other";
  CHECK_FALSE(is_dead(other, self));
  other = self;
  other.pid = 999'999'999;  // above any pid
  CHECK(is_dead(other, self));
  other.pid_namespace = "pid:[1]";
  CHECK_FALSE(is_dead(other, self));
  other.pid_namespace.clear();
  CHECK_FALSE(is_dead(other, self));
  CHECK_FALSE(is_dead({}, self));
  CHECK_FALSE(cache::is_dead({}, {}));
}
