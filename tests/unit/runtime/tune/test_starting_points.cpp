#include <algorithm>
#include <cmath>

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

namespace {

/// A search that measured `seconds` of a=1, 2, 4 and saw a=8 fail, with record and key as it leaves
/// them.
void searched(const Past& past, std::int64_t n, std::vector<double> seconds,
              const DeviceInfo& device) {
  TuneResult result = empty_result(past.kernel, Values{n}, device);
  for (const std::int64_t a : {1, 2, 4, 8}) {
    Candidate& c = result.candidates.emplace_back();
    c.config = {a, 0};
    if (result.candidates.size() > seconds.size()) {
      c.status = CandidateStatus::compile_failed;
      c.reason = "too large";
      continue;
    }
    c.status = CandidateStatus::measured;
    c.seconds = seconds[result.candidates.size() - 1];
    c.samples = {c.seconds};
  }
  result.default_index = 1;
  result.winner_index = 1;
  past.bench.store->put_record(past.key(n, device), record_json(result, past.kernel, {}, device));
}

}  // namespace

TEST_CASE("what neighbours measured is evidence, the nearest first, but not one's own",
          "[runtime][starts][evidence]") {
  Past past;
  DeviceInfo twin = past.here;
  twin.fingerprint[0].value = "Fake 2000";
  searched(past, 100, {3, 2, 1}, past.here);   // the problem that is asked about
  searched(past, 100, {30, 20, 10}, twin);     // on another device
  searched(past, 1600, {7, 5, 6}, past.here);  // 16 times as large
  StartingPoints points(past.bench.store);
  const auto all =
      points.evidence(past.kernel, Values{100}, past.here, past.key(100, past.here), 5);
  REQUIRE(all.size() == 2);
  CHECK(all[0].distance == 1);
  CHECK(all[1].distance == Approx(4).margin(0.1));
  REQUIRE(all[0].results.size() == 4);
  CHECK(all[0].results[2].config == Values{4, 0});
  CHECK(all[0].results[2].seconds == 10);
  CHECK(std::isinf(all[0].results[3].seconds));
  CHECK(all[1].results[1].seconds == 5);
  CHECK(points.evidence(past.kernel, Values{100}, past.here, past.key(100, past.here), 1).size() ==
        1);
  CHECK(points.evidence(past.kernel, Values{100}, past.here, past.key(100, past.here), 0).empty());

  KernelDefinition other = past.kernel;
  other.space.parameter("c", {1, 2}, 1);  // the records do not know it
  CHECK(points.evidence(other, Values{100}, past.here, past.key(100, past.here), 5).empty());
  other.name = "another";
  CHECK(points.evidence(other, Values{100}, past.here, past.key(100, past.here), 5).empty());
}

TEST_CASE("what an older source measured of the same problem is evidence",
          "[runtime][starts][evidence]") {
  Past past;
  searched(past, 100, {3, 2, 1}, past.here);
  StartingPoints points(past.bench.store);
  const Key now = record_key(past.kernel, Values{100}, past.here, {sha256("edited")});
  const auto all = points.evidence(past.kernel, Values{100}, past.here, now, 5);
  REQUIRE(all.size() == 1);
  CHECK(all[0].distance == 0);
  CHECK(all[0].results[2].seconds == 1);
}

TEST_CASE("evidence is that of the record as it was added last", "[runtime][starts][evidence]") {
  Past past;
  StartingPoints points(past.bench.store);
  for (const double seconds : {1.0, 7.0}) {
    searched(past, 100, {seconds}, past.here);
    points.add(past.key(100, past.here),
               past.bench.store->find_record(past.key(100, past.here)).value());
    const auto all =
        points.evidence(past.kernel, Values{200}, past.here, past.key(200, past.here), 5);
    REQUIRE(all.size() == 1);
    CHECK(all[0].results[0].seconds == seconds);
  }
}

TEST_CASE("a long record is kept in mind in part, the fastest whole",
          "[runtime][starts][evidence]") {
  std::vector<std::int64_t> many(1000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i) + 1;
  Past past;
  past.kernel = doubling(many);
  TuneResult result = empty_result(past.kernel, Values{50}, past.here);
  for (const std::int64_t a : many) {
    Candidate& c = result.candidates.emplace_back();
    c.config = {a, 0};
    c.status = CandidateStatus::measured;
    c.seconds = 1 + static_cast<double>((a * 37) % 1000);
    c.samples = {c.seconds};
  }
  past.bench.store->put_record(past.key(50, past.here),
                               record_json(result, past.kernel, {}, past.here));
  StartingPoints points(past.bench.store);
  const auto all = points.evidence(past.kernel, Values{60}, past.here, past.key(60, past.here), 5);
  REQUIRE(all.size() == 1);
  std::vector<double> seconds;
  for (const auto& r : all[0].results) seconds.push_back(r.seconds);
  CHECK(seconds.size() < 200);
  REQUIRE(seconds.size() > 100);
  std::sort(seconds.begin(), seconds.end());
  for (std::size_t i = 0; i < 50; ++i) CHECK(seconds[i] == 1 + static_cast<double>(i));
  CHECK(seconds.back() > 900);  // what is slow tells something, too
}
