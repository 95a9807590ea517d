#include <nlohmann/json.hpp>

#include "kiln_test.hpp"
#include "runtime/tune/record.hpp"
#include "runtime/tune/starting_points.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::Bench;
using kiln::test::doubling;

namespace {

struct Past {
  Bench bench;
  KernelDefinition kernel = doubling();
  DeviceInfo here = bench.device->info();

  Key key(std::int64_t n, const DeviceInfo& device) const {
    return record_key(kernel, Values{n}, device, {sha256("source")});
  }
  nlohmann::json record(std::int64_t n, std::int64_t a) const {
    return {{"kernel", kernel.name},
            {"types", kernel.types},
            {"problem", {{"n", n}}},
            {"winner", {{"a", a}, {"b", 0}}}};
  }
  void happened(std::int64_t n, std::int64_t a, const DeviceInfo& device) {
    bench.store->put_record(key(n, device), record(n, a));
  }
  std::vector<Values> nearest(std::int64_t n, std::size_t count = 3) {
    StartingPoints points(bench.store);
    return points.nearest(kernel, Values{n}, here, count);
  }
};

}  // namespace

TEST_CASE("the nearest problem's winner comes first", "[runtime][starts]") {
  Past past;
  past.happened(1000, 1, past.here);
  past.happened(100, 2, past.here);
  past.happened(10000, 4, past.here);
  past.happened(120, 2, past.here);
  CHECK(past.nearest(900) == std::vector<Values>{{1, 0}, {2, 0}, {4, 0}});
  CHECK(past.nearest(90) == std::vector<Values>{{2, 0}, {1, 0}, {4, 0}});
  CHECK(past.nearest(1 << 30, 1) == std::vector<Values>{{4, 0}});
  CHECK(past.nearest(0, 1) == std::vector<Values>{{2, 0}});
}

TEST_CASE("this device's winners come before other devices'", "[runtime][starts]") {
  Past past;
  DeviceInfo twin = past.here, gpu = past.here;
  twin.fingerprint[0].value = "Fake 2000";
  gpu.target = {Target::Kind::cuda, "sm_90a"};
  past.happened(100, 8, gpu);
  past.happened(100, 4, twin);
  past.happened(150, 2, past.here);
  CHECK(past.nearest(100) == std::vector<Values>{{2, 0}, {4, 0}, {8, 0}});
  // A far problem here says less than the same problem on a like device.
  past.happened(150, 1, past.here);
  CHECK(past.nearest(1000000, 1) == std::vector<Values>{{1, 0}});
  CHECK(past.nearest(30, 1) == std::vector<Values>{{1, 0}});
}

TEST_CASE("records that do not fit suggest nothing", "[runtime][starts]") {
  Past past;
  CHECK(past.nearest(100).empty());
  auto broken = past.record(100, 1);
  broken.erase("winner");
  past.bench.store->put_record(past.key(100, past.here), broken);
  auto other = past.record(100, 1);
  other["winner"] = {{"c", 1}, {"b", 0}};
  past.bench.store->put_record(past.key(101, past.here), other);
  auto more = past.record(100, 1);
  more["problem"]["m"] = 3;
  past.bench.store->put_record(past.key(102, past.here), more);
  auto foreign = past.record(100, 1);
  foreign["types"] = {"double"};
  past.bench.store->put_record(past.key(103, past.here), foreign);
  past.bench.store->put_record(past.key(104, past.here), nlohmann::json(7));
  CHECK(past.nearest(100).empty());
}

TEST_CASE("what this process adds is known at once", "[runtime][starts]") {
  Past past;
  StartingPoints points(past.bench.store);
  CHECK(points.nearest(past.kernel, Values{5}, past.here, 3).empty());
  points.add(past.key(6, past.here), past.record(6, 8));
  points.add(past.key(6, past.here), past.record(6, 4));
  CHECK(points.nearest(past.kernel, Values{5}, past.here, 3) == std::vector<Values>{{4, 0}});
}
