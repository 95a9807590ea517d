// What a sealed handle serves from, and its notes, by themselves.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/serve/reserve.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/fake_kernel.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::ProblemNotes;
using runtime::Reserve;

TEST_CASE("notes keep each problem once, up to a bound, from any number of threads",
          "[runtime][seal][threads]") {
  ProblemNotes notes(2);
  const Values problem{1, 2}, other{2, 1};
  const std::size_t before = allocations();
  CHECK(notes.add(problem));
  CHECK_FALSE(notes.add(problem));
  CHECK(notes.add(other));
  const std::size_t allocated = allocations() - before;
  CHECK(allocated == 0);
  CHECK(notes.all() == std::map<Values, std::uint64_t>{{{1, 2}, 2}, {{2, 1}, 1}});

  std::atomic<std::size_t> fresh{2};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (std::int64_t i = 0; i < 600; ++i) {
          const std::int64_t values[] = {i + 100 * t, 7};
          fresh += notes.add(values) ? 1 : 0;
        }
      });
  }
  const auto noted = notes.all();
  CHECK(noted.size() == 2 + 900);
  std::uint64_t times = 0;
  for (const auto& [_, of_one] : noted) times += of_one;
  CHECK(times == 3 + 4 * 600);
  CHECK(fresh >= 2 + 900);  // two threads may both be told that it is new
  for (std::int64_t i = 0; i < 3000; ++i) {
    const std::int64_t values[] = {i, 8};
    notes.add(values);
  }
  CHECK(notes.all().size() <= ProblemNotes::kMost);
  CHECK(notes.all().size() > 902);

  ProblemNotes none(0);
  CHECK(none.add({}));
  CHECK_FALSE(none.add({}));
  CHECK(none.all() == std::map<Values, std::uint64_t>{{{}, 2}});
}

TEST_CASE("a reserve takes the default first, then the config with most problems",
          "[runtime][seal]") {
  const KernelDefinition kernel = doubling();
  FakeDevice device(std::make_shared<Script>());
  const DeviceLimits limits = device.info().limits;
  const auto module = device.load({}, {});
  Reserve reserve(kernel);
  const std::int64_t problem[] = {60};
  CHECK(reserve.find(problem, limits) == nullptr);
  std::vector<detail::Ready> loaded(5);
  const std::vector<Values> configs{{8, 0}, {1, 0}, {1, 0}, {4, 0}, {2, 0}};
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    detail::Launchable ready;
    ready.problem = {50 + static_cast<std::int64_t>(i)};
    ready.config = configs[i];
    ready.loaded = module.get();
    loaded[i] = std::make_shared<const detail::Launchable>(std::move(ready));
  }
  const auto first = [&](std::size_t count) {
    reserve.renew({loaded.data(), loaded.data() + count}, {}, {2, 0}, limits);
    return reserve.find(problem, limits)->config;
  };
  CHECK(first(1) == Values{8, 0});
  CHECK(first(4) == Values{1, 0});
  CHECK(first(5) == Values{2, 0});
  const std::size_t before = allocations();
  reserve.find(problem, limits);
  const std::size_t allocated = allocations() - before;
  CHECK(allocated == 0);

  reserve.distrust(problem, true);
  CHECK(reserve.find(problem, limits));  // until it is renewed
  reserve.renew({loaded[0]}, {}, {2, 0}, limits);
  CHECK(reserve.distrusted(problem));
  CHECK(reserve.find(problem, limits) == nullptr);
  reserve.distrust(problem, false);
  reserve.renew({loaded[0]}, {}, {2, 0}, limits);
  CHECK(reserve.find(problem, limits));
}

TEST_CASE("a reserve takes what the nearest known problem has", "[runtime][seal]") {
  KernelDefinition kernel = doubling();
  kernel.space.where("4 is for less than 70", [](auto config, auto problem, const DeviceLimits&) {
    return config[0] != 4 || problem[0] < 70;
  });
  FakeDevice device(std::make_shared<Script>());
  const DeviceLimits limits = device.info().limits;
  const auto module = device.load({}, {});
  Reserve reserve(kernel);
  const auto ready = [&](std::int64_t n, Values config, bool untuned = false) {
    detail::Launchable made;
    made.problem = {n};
    made.config = std::move(config);
    made.loaded = module.get();
    made.untuned = untuned;
    return std::make_shared<const detail::Launchable>(std::move(made));
  };
  const std::vector<detail::Ready> all{ready(16, {1, 0}), ready(64, {4, 0}), ready(1024, {8, 0}),
                                       ready(96, {2, 0}, true)};
  const auto found = [&](std::int64_t n) {
    const std::int64_t problem[] = {n};
    const detail::Ready served = reserve.find(problem, limits);
    return served ? served->config : Values{};
  };
  std::vector<detail::Ready> in_use = all;
  if (GENERATE(false, true)) std::ranges::reverse(in_use);
  reserve.renew(all, in_use, {2, 0}, limits);
  CHECK(found(1) == Values{1, 0});
  CHECK(found(50) == Values{4, 0});
  CHECK(found(69) == Values{4, 0});
  CHECK(found(90) == Values{1, 0});  // 64's is not for it, and nothing is known of 96
  CHECK(found(5000) == Values{8, 0});
  const std::size_t before = allocations();
  found(50);
  const std::int64_t problem[] = {50};
  reserve.find(problem, limits);
  CHECK(allocations() - before <= 2);  // of this test's Values
  reserve.renew(all, {all[3]}, {2, 0}, limits);
  CHECK(found(16) == Values{2, 0});  // the default, as nothing is known
  SECTION("of many problems some are compared") {
    std::vector<detail::Ready> many;
    for (std::int64_t n = 100; n < 1400; ++n) many.push_back(ready(n, {n < 1000 ? 1 : 8, 0}));
    reserve.renew(many, many, {2, 0}, limits);
    CHECK(found(5) == Values{1, 0});
    CHECK(found(9999) == Values{8, 0});
  }
}

TEST_CASE("a reserve that is renewed again and again keeps what is read alone",
          "[runtime][seal][threads]") {
  const KernelDefinition kernel = doubling();
  FakeDevice device(std::make_shared<Script>());
  const DeviceLimits limits = device.info().limits;
  const auto module = device.load({}, {});
  Reserve reserve(kernel);
  detail::Launchable made;
  made.problem = {50};
  made.config = {2, 0};
  made.loaded = module.get();
  const auto loaded = std::make_shared<const detail::Launchable>(made);
  const std::int64_t problem[] = {60};
  {
    std::atomic<bool> over{false};
    std::atomic<int> wrong{0};
    std::vector<std::jthread> readers;
    for (int i = 0; i < 4; ++i)
      readers.emplace_back([&] {
        while (!over) {
          const detail::Ready found = reserve.find(problem, limits);
          wrong += found && found != loaded;
        }
      });
    for (int i = 0; i < 1000; ++i) reserve.renew({loaded}, {loaded}, {2, 0}, limits);
    over = true;
    readers.clear();
    CHECK(wrong == 0);
  }
  reserve.renew({loaded}, {loaded}, {2, 0}, limits);
  CHECK(loaded.use_count() == 1 + 1);  // of the choices that may be read, one
}
