// Runtime::tune for problems that several handles of a kernel are asked for, on the fake device.
#include "kiln_test.hpp"
#include "unit/runtime/serve/modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a problem of several handles of a kernel is tuned once, with the weights of all",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.of(4).seconds = 0.5e-3;
  process.of(8).seconds = 0.1e-3;
  const Runtime runtime = process.runtime();
  const auto first = runtime.tuned(doubling()), second = runtime.tuned(doubling()),
             other = runtime.tuned(doubling({1, 2, 4}));
  const std::vector<TuneJob> jobs{
      {first, {50}, 2}, {first, {60}, 3}, {second, {50}, 2}, {second, {70}, 1}, {other, {50}, 1}};
  TuneOptions options{.max_seconds = 60};
  options.retune = GENERATE(false, true);
  std::vector<std::int64_t> order;
  options.progress = [&](const TuneProgress& now) {
    if (order.empty() || order.back() != now.problem[0]) order.push_back(now.problem[0]);
  };
  const auto results = runtime.tune(jobs, options);
  CHECK(runtime.statistics().tuned == 4);
  CHECK(order == std::vector<std::int64_t>{50, 60, 70, 50});  // heavy ones first
  for (const std::size_t job : {0, 1, 2, 3}) {
    CHECK(results[job].complete);
    CHECK(results[job].winner().config == Values{8, 0});
  }
  CHECK(results[4].winner().config == Values{4, 0});  // it searches among others
  const int timings = process.device->timings;
  for (const auto& handle : {first, second}) CHECK(handle.config({50}) == Values{8, 0});
  CHECK(first.config({60}) == Values{8, 0});
  CHECK(second.config({70}) == Values{8, 0});
  CHECK(other.config({50}) == Values{4, 0});
  CHECK(process.device->timings == timings);
}
