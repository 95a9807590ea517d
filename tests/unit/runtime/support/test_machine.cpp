// How much memory and how many cores are there, by files as Linux writes them.
#include <algorithm>
#include <filesystem>
#include <thread>

#include <sched.h>

#include "kiln_test.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/device_workload.hpp"
#include "runtime/support/machine.hpp"
#include "temporary_directory.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

constexpr std::int64_t kMegabyte = 1 << 20;

class Machine {
 public:
  void file(const std::string& name, const std::string& text) const {
    const auto path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    test::write_text(path, text);
  }
  std::optional<std::int64_t> available() const { return available_memory(directory_.path()); }
  unsigned cores() const { return usable_cores(directory_.path()); }
  unsigned jobs(unsigned most, std::int64_t bytes) const {
    return jobs_that_fit(most, bytes, directory_.path());
  }

 private:
  const test::TemporaryDirectory directory_;
};

const std::string kMemory =
    "MemTotal:       8388608 kB\nMemFree:        1024 kB\nMemAvailable:   4194304 kB\n";

}  // namespace

TEST_CASE("what the machine has, or less where a group says so", "[runtime][memory]") {
  const Machine machine;
  CHECK_FALSE(machine.available());
  machine.file("proc/meminfo", kMemory);
  CHECK(machine.available() == 4096 * kMegabyte);

  SECTION("second version: the narrowest of the groups around") {
    machine.file("proc/self/cgroup", "0::/jobs/one\n");
    machine.file("sys/fs/cgroup/jobs/one/memory.max", "max\n");
    machine.file("sys/fs/cgroup/jobs/one/memory.current", "1048576\n");
    CHECK(machine.available() == 4096 * kMegabyte);
    machine.file("sys/fs/cgroup/jobs/memory.max", std::to_string(100 * kMegabyte));
    machine.file("sys/fs/cgroup/jobs/memory.current", std::to_string(60 * kMegabyte));
    CHECK(machine.available() == 40 * kMegabyte);
    // Files that were read and are used no more make room.
    machine.file("sys/fs/cgroup/jobs/memory.stat",
                 "anon 9\ninactive_file_x 7\ninactive_file " + std::to_string(20 * kMegabyte));
    CHECK(machine.available() == 60 * kMegabyte);
    machine.file("sys/fs/cgroup/jobs/one/memory.max", std::to_string(2 * kMegabyte));
    CHECK(machine.available() == 1 * kMegabyte);
    machine.file("sys/fs/cgroup/jobs/one/memory.max", "1000");  // lowered below what is used
    CHECK(machine.available() == 0);
  }
  SECTION("second version: a threshold beyond which processes are slowed down") {
    machine.file("proc/self/cgroup", "0::/jobs/one\n");
    machine.file("sys/fs/cgroup/jobs/one/memory.current", std::to_string(10 * kMegabyte));
    machine.file("sys/fs/cgroup/jobs/one/memory.high", std::to_string(90 * kMegabyte));
    CHECK(machine.available() == 80 * kMegabyte);
    machine.file("sys/fs/cgroup/jobs/one/memory.max", std::to_string(100 * kMegabyte));
    CHECK(machine.available() == 80 * kMegabyte);
    machine.file("sys/fs/cgroup/jobs/one/memory.max", std::to_string(70 * kMegabyte));
    CHECK(machine.available() == 60 * kMegabyte);
    machine.file("sys/fs/cgroup/jobs/one/memory.high", "max\n");
    machine.file("sys/fs/cgroup/jobs/one/memory.max", "max\n");
    CHECK(machine.available() == 4096 * kMegabyte);
  }
  SECTION("second version, in a container: the group's own path is not there") {
    machine.file("proc/self/cgroup", "0::/kubepods/pod7\n");
    machine.file("sys/fs/cgroup/memory.max", std::to_string(10 * kMegabyte));
    machine.file("sys/fs/cgroup/memory.current", std::to_string(3 * kMegabyte));
    CHECK(machine.available() == 7 * kMegabyte);
  }
  SECTION("first version") {
    machine.file("proc/self/cgroup", "11:cpu,cpuacct:/x\n5:memory:/job\n0::/\n");
    machine.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(50 * kMegabyte));
    machine.file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(20 * kMegabyte));
    machine.file("sys/fs/cgroup/memory/job/memory.stat",
                 "total_inactive_file " + std::to_string(5 * kMegabyte) + "\n");
    CHECK(machine.available() == 35 * kMegabyte);
    // No limit is a number that no machine has.
    machine.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(machine.available() == 4096 * kMegabyte);
  }
  SECTION("damaged files") {
    machine.file("proc/meminfo", "MemAvailable: much\n");
    CHECK_FALSE(machine.available());
    machine.file("proc/self/cgroup", "0\n:\n\n");
    CHECK_FALSE(machine.available());
  }
}

TEST_CASE("this machine has some memory, and no petabyte", "[runtime][memory]") {
  const auto here = available_memory();
  REQUIRE(here);
  CHECK(*here > 0);
  CHECK_NOTHROW(require_memory("a little", 1));
  try {
    require_memory("a petabyte", std::uint64_t{1} << 50);
    FAIL("nothing was thrown");
  } catch (const UserError& error) {
    const std::string text = error.what();
    CHECK(text.find("a petabyte: 1125899906842624 bytes of memory are needed, ") == 0);
    CHECK(text.find(" are available") != std::string::npos);
  }
}

TEST_CASE("a problem that is larger than memory is refused before it is made",
          "[runtime][memory]") {
  Workload workload;
  CHECK_THROWS_AS(workload.output<float>(std::size_t{1} << 48), UserError);
  CHECK_THROWS_AS(workload.input<float>(std::size_t{1} << 48), UserError);
  CHECK(workload.arguments().empty());

  test::Bench bench;
  const KernelDefinition kernel = test::doubling();
  const Values problem{kMegabyte};  // two arrays of 4 MB
  bench.device->free_memory = 8 * kMegabyte;
  try {
    const DeviceWorkload refused(kernel, problem, bench.device, 1);
    FAIL("nothing was thrown");
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    CHECK(text.find("doubling for n=1048576") != std::string::npos);
    CHECK(text.find("8388608 are free") != std::string::npos);
  }
  CHECK(bench.device->live_allocations == 0);
}

TEST_CASE("jobs at once are as many as their memory allows", "[runtime][memory]") {
  const Machine machine;
  CHECK(machine.jobs(7, kMegabyte) == 7);  // unknown
  machine.file("proc/meminfo", kMemory);
  CHECK(machine.jobs(7, 512 * kMegabyte) == 7);
  CHECK(machine.jobs(100, 512 * kMegabyte) == 8);
  CHECK(machine.jobs(100, 512 * kMegabyte + 1) == 7);
  CHECK(machine.jobs(100, 8192 * kMegabyte) == 1);
  CHECK(machine.jobs(0, kMegabyte) == 0);
  // 2 GB for all, of a machine with 4.
  machine.file("proc/self/cgroup", "0::/pod/container\n");
  machine.file("sys/fs/cgroup/pod/memory.max", std::to_string(2048 * kMegabyte));
  machine.file("sys/fs/cgroup/pod/memory.current", "0\n");
  CHECK(machine.jobs(100, 512 * kMegabyte) == 4);
  machine.file("sys/fs/cgroup/pod/memory.max", "0\n");
  CHECK(machine.jobs(100, 512 * kMegabyte) == 1);
}

TEST_CASE("the cores that this thread may run on, or fewer where a group says so",
          "[runtime][cores]") {
  const Machine machine;
  const unsigned all = machine.cores();
  CHECK(all >= 1);
  CHECK(all <= std::thread::hardware_concurrency());
  SECTION("a limit of control groups, version 2") {
    machine.file("proc/self/cgroup", "0::/job/step\n");
    machine.file("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
    CHECK(machine.cores() == 1);
    machine.file("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
    CHECK(machine.cores() == 1);
    machine.file("sys/fs/cgroup/job/cpu.max", "99900000 100000\n");
    CHECK(machine.cores() == all);
    machine.file("sys/fs/cgroup/job/cpu.max", "110000 100000\n");
    CHECK(machine.cores() == std::min(2U, all));
  }
  SECTION("a limit of control groups, version 1") {
    machine.file("proc/self/cgroup", "4:cpu,cpuacct:/job\n3:memory:/job\n");
    machine.file("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    machine.file("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    CHECK(machine.cores() == all);
    machine.file("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
    CHECK(machine.cores() == 1);
  }
  SECTION("version 1 whose controllers are mounted together") {
    machine.file("proc/self/cgroup", "4:cpu,cpuacct:/job/step\n");
    machine.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "150000\n");
    machine.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    CHECK(machine.cores() == std::min(2U, all));
    machine.file("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_quota_us", "25000\n");
    machine.file("sys/fs/cgroup/cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n");
    CHECK(machine.cores() == 1);
  }
  SECTION("damaged files") {
    machine.file("proc/self/cgroup", "0::/\n");
    for (const char* text : {"", "many", "0 0", "-5 100000", "1", "100000 0"}) {
      machine.file("sys/fs/cgroup/cpu.max", text);
      CHECK(machine.cores() == all);
    }
  }
  SECTION("a thread that may run on one core") {
    cpu_set_t before, one;
    REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
    int core = 0;
    while (!CPU_ISSET(core, &before)) ++core;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK(machine.cores() == 1);
    ::sched_setaffinity(0, sizeof before, &before);
    CHECK(machine.cores() == all);
  }
}
