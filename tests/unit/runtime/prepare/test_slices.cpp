// How a budget is divided among problems: a pure function, tried with courses that the tests make
// up.
#include <cmath>
#include <numeric>

#include "kiln_test.hpp"
#include "runtime/prepare/slices.hpp"
#include "runtime/support/random.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

TuningCourse course(double weight, std::vector<double> bests, std::size_t kernel = 0) {
  TuningCourse c{kernel, weight, {}, false};
  for (const double best : bests) c.slices.push_back({1, best});
  return c;
}

std::size_t next(const std::vector<TuningCourse>& courses, double left = 100) {
  return next_slice(courses, left, 200).value().problem;
}

}  // namespace

TEST_CASE("there is no slice without time, or without a problem that is open",
          "[runtime][slices]") {
  std::vector<TuningCourse> courses{course(1, {}), course(1, {1})};
  CHECK_FALSE(next_slice({}, 10, 10));
  for (const double left : {0.0, -1.0, std::nan("")}) CHECK_FALSE(next_slice(courses, left, 10));
  for (TuningCourse& c : courses) c.done = true;
  CHECK_FALSE(next_slice(courses, 10, 10));
}

TEST_CASE("every problem has its first slice before any has a second one, kernels in turns",
          "[runtime][slices]") {
  // Kernel 1 has the heaviest problem of all.
  std::vector<TuningCourse> courses{course(2, {}, 0), course(1, {}, 1), course(3, {}, 0),
                                    course(9, {}, 1), course(0, {}, 2), course(2, {}, 0)};
  std::vector<std::size_t> order;
  double left = 60;
  while (order.size() < courses.size()) {
    const auto slice = next_slice(courses, left, 60).value();
    // Half of the budget for all alike, half by weight.
    CHECK(slice.seconds == Approx(5 + 30 * courses[slice.problem].weight / 17));
    left -= slice.seconds;
    courses[slice.problem].slices.push_back({slice.seconds, 1e-3});
    order.push_back(slice.problem);
  }
  CHECK(order == std::vector<std::size_t>{3, 2, 4, 0, 1, 5});
}

TEST_CASE("first slices spread over the problems of each kernel", "[runtime][slices]") {
  std::vector<TuningCourse> courses;
  for (std::size_t i = 0; i < 12; ++i) courses.push_back(course(0, {}, i < 8 ? 0 : 1));
  std::vector<std::size_t> order;
  while (order.size() < courses.size()) {
    order.push_back(next(courses));
    courses[order.back()].slices.push_back({1, 1});
  }
  CHECK(order == std::vector<std::size_t>{0, 8, 4, 2, 10, 6, 1, 9, 5, 3, 11, 7});
}

TEST_CASE("where problems have too little for a search, few of each kernel are searched",
          "[runtime][slices]") {
  std::vector<TuningCourse> courses;
  for (std::size_t i = 0; i < 100; ++i) courses.push_back(course(1, {}, i % 2));
  const bool may_look = GENERATE(true, false);
  double left = 30, searching = 0;
  std::size_t searched = 0, looked = 0;
  for (std::size_t turn = 0; turn < courses.size(); ++turn) {
    const auto slice = next_slice(courses, left, 30, may_look).value();
    (slice.look ? looked : searched) += 1;
    if (!slice.look) searching += slice.seconds;
    if (may_look) CHECK(slice.look == (turn >= 8));
    left -= slice.look ? slice.seconds / 2 : slice.seconds;
    courses[slice.problem].slices.push_back({slice.seconds, 1});
  }
  CHECK(searched == (may_look ? 8 : 100));
  CHECK(looked == (may_look ? 92 : 0));
  if (may_look) CHECK(searching == Approx(0.4 * 30));
  // What follows is searched.
  CHECK_FALSE(next_slice(courses, left, 30, may_look).value_or(NextSlice{}).look);
}

TEST_CASE("what has no record comes first, however light", "[runtime][slices]") {
  std::vector<TuningCourse> courses{course(9, {}, 0), course(1, {}, 1), course(5, {}, 0)};
  courses[0].known = courses[2].known = true;
  CHECK(next(courses) == 1);
  courses[1].known = true;
  CHECK(next(courses) == 0);
}

TEST_CASE("a rest that is too short for anything is left, but something is tried",
          "[runtime][slices]") {
  const std::vector<TuningCourse> fresh{course(1, {}), course(1, {})};
  CHECK(next_slice(fresh, 0.01, 0.01).value().seconds == 0.01);
  CHECK_FALSE(next_slice(std::vector{course(1, {1}), course(1, {})}, 0.01, 9));
  CHECK_FALSE(next_slice(std::vector{course(1, {1}), course(1, {1})}, 0.01, 9));
}

TEST_CASE("time goes where launches times seconds are saved", "[runtime][slices]") {
  // Equal courses: the weight decides, then how long a launch takes.
  CHECK(next({course(1, {1}), course(5, {1}), course(2, {1})}) == 1);
  CHECK(next({course(1, {1}), course(1, {4}), course(1, {2})}) == 1);
  CHECK(next({course(1, {9}), course(10, {1})}) == 1);
  // No weight is known: a share saved counts, however long a launch takes.
  CHECK(next({course(0, {1}), course(0, {1e6})}) == 0);
  // If any weight is known, a problem of weight 0 is never launched.
  CHECK(next({course(0, {1e6}), course(1e-9, {1e-6})}) == 1);
}

TEST_CASE("what a problem gained last tells what it gains next", "[runtime][slices]") {
  CHECK(next({course(1, {2, 2}), course(1, {4, 2})}) == 1);
  CHECK(next({course(1, {4, 2}), course(1, {2, 1.99})}) == 0);
  // It has gained a lot, but long ago.
  CHECK(next({course(1, {8, 1, 1, 1}), course(1, {1, .97})}) == 1);
  // A best that a final has put right is no loss of the budget's making.
  CHECK(next({course(1, {1.2, 1.2}), course(1, {1, 1.2})}) == 0);
  CHECK(next({course(1, {1, 1.2}), course(1, {1.2, 1.2})}) == 0);
}

TEST_CASE("problems of a kernel tell what others of it gain", "[runtime][slices]") {
  // Kernel 0's problems gained a half by their second slice, those of kernel 1 nothing.
  std::vector<TuningCourse> courses{course(1, {2, 1, 1, 1, 1}, 0), course(1, {1, 1, 1, 1, 1}, 1),
                                    course(1, {1}, 1), course(1, {1}, 0)};
  CHECK(next(courses) == 3);
  std::swap(courses[0].kernel, courses[1].kernel);
  CHECK(next(courses) == 2);
}

TEST_CASE("a problem that nothing is known of may be as slow as any", "[runtime][slices]") {
  CHECK(next({course(1, {1e-3}), course(1, {0}), course(1, {5e-3})}) == 1);
  CHECK(next({course(1, {0}), course(2, {0})}) == 1);
}

TEST_CASE("what is done gets no more", "[runtime][slices]") {
  std::vector<TuningCourse> courses{course(100, {4, 1}), course(1, {1})};
  REQUIRE(next(courses) == 0);
  courses[0].done = true;
  const auto last = next_slice(courses, 7, 200).value();
  CHECK(last.problem == 1);
  CHECK(last.seconds == 7);  // nothing else needs it
  courses[1].slices.clear();
  CHECK(next(courses) == 1);
}

TEST_CASE("slices are within what is left, whatever the courses are", "[runtime][slices]") {
  Random random(7);
  for (int turn = 0; turn < 3000; ++turn) {
    std::vector<TuningCourse> courses;
    const std::size_t count = 1 + random.below(12);
    for (std::size_t i = 0; i < count; ++i) {
      const double weights[] = {0, 1, 1e-300, 1e300, 3};
      TuningCourse& c = courses.emplace_back(course(weights[random.below(5)], {}, random.below(3)));
      for (std::size_t s = random.below(5); s-- > 0;)
        c.slices.push_back({random.chance(0.1) ? 0 : random.uniform() * 10,
                            random.chance(0.2) ? 0 : random.uniform()});
      c.done = random.chance(0.3);
    }
    const double total = std::pow(10, random.uniform() * 12 - 6);
    const double left = total * random.uniform();
    const bool begun =
        std::any_of(courses.begin(), courses.end(), [](auto& c) { return !c.slices.empty(); });
    const bool any = std::any_of(courses.begin(), courses.end(), [](auto& c) { return !c.done; });
    const auto slice = next_slice(courses, left, total);
    REQUIRE(slice.has_value() == (any && left > 0 && (!begun || left >= 0.05)));
    if (!slice) continue;
    REQUIRE(slice->problem < count);
    REQUIRE_FALSE(courses[slice->problem].done);
    REQUIRE(slice->seconds > 0);
    REQUIRE(slice->seconds <= left);
  }
}

TEST_CASE("a thousand problems and a tiny budget: the first get slices that are of use",
          "[runtime][slices]") {
  std::vector<TuningCourse> courses(1000, course(1, {}));
  double left = 1;
  std::size_t slices = 0;
  while (const auto slice = next_slice(courses, left, 1)) {
    courses[slice->problem].slices.push_back({slice->seconds, 1});
    left -= slice->seconds;
    ++slices;
  }
  CHECK(slices <= 20);
  CHECK(slices >= 15);
  CHECK(left == Approx(0).margin(1e-9));
}

TEST_CASE("a whole budget is spent, and no open problem is forgotten", "[runtime][slices]") {
  // Problems of a kernel improve by the same rate. Half of them have nothing to search for.
  std::vector<TuningCourse> courses(40, course(1, {}));
  for (std::size_t i = 0; i < courses.size(); ++i) courses[i].kernel = i % 4;
  double left = 60;
  int slices = 0;
  while (const auto slice = next_slice(courses, left, 60)) {
    TuningCourse& c = courses[slice->problem];
    left -= slice->seconds;
    const double spent = c.spent() + slice->seconds;
    const auto rate = static_cast<double>(slice->problem % 4);
    c.slices.push_back({slice->seconds, 1 + rate / (1 + spent)});
    if (slice->problem % 8 < 4) {
      c.done = true;
      left += slice->seconds;  // it took no time
    }
    REQUIRE(++slices < 1000);
  }
  CHECK(left == Approx(0).margin(1e-9));
  double flat = 0, steep = 0;
  for (std::size_t i = 0; i < courses.size(); ++i) {
    CHECK_FALSE(courses[i].slices.empty());
    if (i % 8 == 4) flat += courses[i].spent();
    if (i % 8 == 7) steep += courses[i].spent();
  }
  CHECK(steep > 1.5 * flat);
}
