#include <functional>

#include "kiln/region.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

std::string refusal(const std::function<void()>& launch) {
  try {
    launch();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kWrong =
    "kernel doubling: argument 2 (`int`) is 40, but the problem's n is 16";

}  // namespace

// Only handles make bound kernels.
static_assert(!std::is_constructible_v<Bound<float*>, std::shared_ptr<detail::HandleCore>,
                                       detail::Ready, Launch, ProblemValues>);
static_assert(!std::is_constructible_v<DynamicBound, std::shared_ptr<detail::HandleCore>,
                                       detail::Ready, Launch, ProblemValues>);

TEST_CASE("a launch is held to what its kernel declares", "[runtime][relations]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  Buffers b(40);
  float* y = b.y.data();
  float* x = b.x.data();
  KernelDefinition k = doubling();
  SECTION("not unless it does") {
    CHECK(refusal([&] { runtime.tuned(k)({}, {16}, y, x, 40); }).empty());
  }
  SECTION("described at run time") {
    k.relations = {{2, "n"}};
    const auto handle = runtime.tuned(k);
    CHECK(refusal([&] { handle({}, {16}, y, x, 40); }) == kWrong);
    CHECK(runtime.statistics().tuned == 0);  // no work is done for a launch that is refused
    CHECK(process.device->launches == 0);
    CHECK(refusal([&] { handle({}, {40}, y, x, 40); }).empty());
    CHECK(b.doubled());
    const auto bound = handle.at({16});
    CHECK(refusal([&] { bound({}, y, x, 40); }) == kWrong);
    CHECK(refusal([&] { bound({}, y, x, 16); }).empty());
    int n = 40;
    void* args[] = {&y, &x, &n};
    CHECK(refusal([&] { handle.launch({}, {16}, args); }) == kWrong);
    CHECK(refusal([&] { bound.launch({}, args); }) == kWrong);
    Region region;
    CHECK(refusal([&] { region(handle, {}, {16}, y, x, 40); }) == kWrong);
    CHECK(refusal([&] { region(handle, {}, {40}, y, x, 40); }).empty());
  }
  SECTION("the problem itself counts, not its bucket") {
    k.relations = {{2, "n"}};
    k.bucket = [](auto) { return Values{64}; };
    const auto handle = runtime.tuned(k);
    CHECK(refusal([&] { handle({}, {40}, y, x, 40); }).empty());
    CHECK(refusal([&] { handle({}, {40}, y, x, 64); }).find("is 64, but the problem's n is 40") !=
          std::string::npos);
  }
  SECTION("typed") {
    Typed typed = typed_doubling();
    typed.relations = {{2, "n"}};
    const auto handle = runtime.tuned(typed);
    CHECK(refusal([&] { handle({}, y, x, 40); }).empty());
    const auto bound = handle.at({16});
    CHECK(refusal([&] { bound({}, y, x, 40); }) == kWrong);
    CHECK(refusal([&] { bound({}, y, x, 16); }).empty());
    Region region;
    CHECK(refusal([&] { region(handle, {}, y, x, 40); }).empty());
  }
  SECTION("typed, with a `problem` that contradicts it") {
    Typed typed = typed_doubling();
    typed.relations = {{2, "n"}};
    typed.problem = [](float*, const float*, int) { return DoublingProblem{16}; };
    const auto handle = runtime.tuned(typed);
    CHECK(refusal([&] { handle({}, y, x, 40); }) == kWrong);
    Region region;
    CHECK(refusal([&] { region(handle, {}, y, x, 40); }) == kWrong);
  }
}

TEST_CASE("relations of integers of all kinds", "[runtime][relations]") {
  Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  const Runtime runtime = process.runtime();
  Buffers b(4);
  float* y = b.y.data();
  float* x = b.x.data();
  KernelDefinition k = doubling();
  process.device->compute = {};
  k.relations = {{2, "n"}};
  k.launch = [](auto, auto) { return Launch{{1}, {1}, 0}; };
  const auto check = [&](const char* type, auto right, auto wrong) {
    INFO(type);
    k.arguments[2] = type;
    const auto handle = runtime.tuned(k);
    const Values problem{static_cast<std::int64_t>(right)};
    CHECK(refusal([&] { handle({}, problem, y, x, right); }).empty());
    CHECK(refusal([&] { handle({}, problem, y, x, wrong); }).find("argument 2") !=
          std::string::npos);
  };
  check("bool", true, false);
  check("signed char", static_cast<signed char>(100), static_cast<signed char>(-100));
  check("unsigned char", static_cast<unsigned char>(200), static_cast<unsigned char>(100));
  check("short", short{300}, short{44});
  check("uint16_t", static_cast<unsigned short>(65535), static_cast<unsigned short>(1));
  check("int", 70000, 4464);
  check("unsigned", 3000000000u, 5u);
  check("long long", 1LL << 40, 0LL);
  check("size_t", std::size_t{1} << 33, std::size_t{0});

  for (const char* type : {"float", "float*", "Params", "half"}) {
    k.arguments[2] = type;
    CHECK(refusal([&] {
            runtime.tuned(k);
          }).find(std::string("`") + type + "` is not an integer") != std::string::npos);
  }
}

TEST_CASE("more signatures than are remembered", "[runtime][handle]") {
  Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  KernelDefinition k = doubling();
  k.arguments = {"const float*", "const float*", "const float*", "int"};
  process.device->compute = {};
  const auto handle = process.runtime().tuned(k);
  Buffers b(4);
  float* y = b.y.data();
  const float* x = b.x.data();
  const auto each = [&](auto use) {
    use(y);
    use(x);
  };
  for (int round = 0; round < 2; ++round)
    each([&](auto first) {
      each([&](auto second) {
        each([&](auto third) {
          CHECK(refusal([&] { handle({}, {4}, first, second, third, 4); }).empty());
          CHECK(refusal([&] { handle({}, {4}, first, second, third, 4L); }).find("argument 3") !=
                std::string::npos);
        });
      });
    });
}

TEST_CASE("problems of more fields than fit in place", "[runtime][handle]") {
  const Values nine{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const ProblemValues problem(nine);
  CHECK(problem.size() == 9);
  CHECK(problem[8] == 9);
  CHECK(Values(problem) == nine);
  const ProblemValues copy = problem;
  CHECK(copy == nine);
  CHECK(copy.data() != problem.data());
  CHECK_FALSE(ProblemValues{1, 2} == ProblemValues{1, 3});
  CHECK_FALSE(ProblemValues{1, 2} == ProblemValues{1, 2, 0});
  CHECK(ProblemValues{}.size() == 0);
}
