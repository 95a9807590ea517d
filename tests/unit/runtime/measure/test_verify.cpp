#include <cmath>
#include <cstring>
#include <limits>

#include "kiln_test.hpp"
#include "runtime/measure/verify.hpp"

using namespace kiln;
using runtime::Comparison;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
Comparison compare(std::vector<T> got, std::vector<T> want, Tolerance tolerance = {}) {
  Workload::Argument a;
  a.type = data_type<T>();
  a.direction = Direction::out;
  a.pointer = true;
  a.count = want.size();
  a.element_bytes = sizeof(T);
  return runtime::compare(a, std::as_bytes(std::span(got)), std::as_bytes(std::span(want)),
                          tolerance);
}

template <class T>
std::string described(std::vector<T> got, std::vector<T> want) {
  Workload::Argument a;
  a.type = data_type<T>();
  a.count = want.size();
  a.element_bytes = sizeof(T);
  const auto g = std::as_bytes(std::span(got)), w = std::as_bytes(std::span(want));
  return runtime::describe(runtime::compare(a, g, w, {}), 3, a, g, w);
}

}  // namespace

TEST_CASE("floats: what is equal and what is not", "[runtime][verify]") {
  CHECK(compare<float>({1, 2}, {1, 2}).max_error == 0);
  CHECK(compare<float>({-0.0f}, {0.0f}).passes());
  CHECK(compare<float>({kInf, -kInf}, {kInf, -kInf}).passes());
  CHECK_FALSE(compare<float>({-kInf}, {kInf}).passes());
  CHECK_FALSE(compare<float>({kInf}, {1}).passes());
  CHECK_FALSE(compare<float>({1}, {kInf}).passes());
  CHECK(compare<float>({kNan}, {kNan}).passes());
  CHECK_FALSE(compare<float>({kNan}, {1}).passes());
  CHECK_FALSE(compare<float>({1}, {kNan}).passes());
  CHECK_FALSE(compare<float>({kNan}, {kInf}).passes());
  CHECK_FALSE(compare<float>({kInf}, {kNan}).passes());
  for (auto [got, want] : {std::pair{1.0f, kInf}, {kInf, 1.0f}, {kNan, 1.0f}, {1.0f, kNan}})
    CHECK(std::isinf(compare<float>({got}, {want}).max_error));
  const double huge = std::numeric_limits<double>::max();
  CHECK_FALSE(compare<double>({huge}, {-huge}).passes());
}

TEST_CASE("of many elements the first of the worst is named", "[runtime][verify]") {
  std::vector<float> want(300'000, 1.0f), got = want;
  for (const std::size_t i : {70'000, 150'001, 299'999}) got[i] = 3;
  got[200'000] = 2;
  const Comparison comparison = compare(got, want);
  CHECK(comparison.mismatches == 4);
  CHECK(comparison.worst == 70'000);
}

TEST_CASE("what is a little wrong everywhere is wrong by its norm", "[runtime][verify]") {
  std::vector<float> want(100'000), got(want.size());
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = i % 2 == 0 ? 3.0F : -4.0F;
  for (std::size_t i = 0; i < want.size(); ++i) got[i] = want[i] * 1.02F;
  Tolerance t{.relative = 0.05, .absolute = 0, .norm = 0.021};
  CHECK(compare(got, want, t).norm_error == Approx(0.02).epsilon(1e-4));
  CHECK(compare(got, want, t).passes());
  t.norm = 0.019;
  CHECK(compare(got, want, t).mismatches == 0);
  CHECK_FALSE(compare(got, want, t).passes());
  t.absolute = 0.01;  // for each element: 0.01 of the root mean square of 3.54
  CHECK(compare(got, want, t).passes());
  t.norm = 0;
  CHECK(compare(got, want, t).passes());

  // One element may be as far off as elements may be, and many together less.
  t = {.relative = 0.05, .absolute = 0, .norm = 0.01};
  CHECK(compare<float>({1.04F}, {1}, t).passes());
  CHECK_FALSE(compare<float>({1.04F, 1.04F, 1.04F, 1.04F}, {1, 1, 1, 1}, t).passes());

  // A few that are far off count for little; what is not finite on both sides counts for nothing.
  got = want;
  got[6] = 30;
  CHECK(compare(got, want).norm_error == Approx(27 / std::sqrt(12.5 * 1e5)));
  CHECK(compare<float>({kNan, kInf, 2}, {kNan, kInf, 2}).norm_error == 0);
  CHECK(std::isinf(compare<float>({kNan, 1}, {1, 1}).norm_error));
  CHECK(std::isinf(compare<float>({1}, {kInf}).norm_error));
  CHECK(std::isinf(compare<float>({1e-9F}, {0}).norm_error));
  CHECK(compare<float>({1e-9F}, {0}, {.absolute = 1e-6, .norm = 1e-3}).passes());
  CHECK(compare<int>({5}, {4}, {.absolute = 2, .norm = 1e-3}).norm_error == 0);
  CHECK(described<float>({1, 2}, {1, 3}).find("norm") == std::string::npos);
}

TEST_CASE("the tolerance's edges", "[runtime][verify]") {
  const Tolerance t{0.25, 0.5};  // exact in binary: 4 allows 1.5
  CHECK(compare<float>({5.5f}, {4}, t).passes());
  CHECK(compare<float>({5.5f}, {4}, t).max_error == 1);
  CHECK(compare<float>({2.5f}, {4}, t).passes());
  CHECK_FALSE(compare<float>({std::nextafter(5.5f, 6.0f)}, {4}, t).passes());
  CHECK_FALSE(compare<float>({std::nextafter(2.5f, 2.0f)}, {4}, t).passes());
  CHECK(compare<float>({-5.5f}, {-4}, t).passes());  // relative to the magnitude
  CHECK(compare<float>({0.5f}, {0}, t).passes());
  CHECK_FALSE(compare<float>({0.51f}, {0}, t).passes());

  const Tolerance exact{0, 0};
  CHECK(compare<float>({1}, {1}, exact).passes());
  CHECK_FALSE(compare<float>({std::nextafter(1.0f, 2.0f)}, {1}, exact).passes());
  CHECK(compare<float>({0.0f}, {-0.0f}, exact).passes());
}

TEMPLATE_TEST_CASE("integers are not nearly right", "[runtime][verify]", std::int8_t, std::uint8_t,
                   std::int16_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t,
                   std::uint64_t) {
  using Limits = std::numeric_limits<TestType>;
  const TestType top = Limits::max(), low = Limits::min();
  CHECK(compare<TestType>({top, low}, {top, low}).passes());
  CHECK_FALSE(compare<TestType>({static_cast<TestType>(top - 1)}, {top}).passes());
  CHECK_FALSE(compare<TestType>({top}, {static_cast<TestType>(top - 1)}).passes());
  CHECK_FALSE(compare<TestType>({top}, {low}).passes());
  CHECK_FALSE(compare<TestType>({low}, {top}).passes());
  CHECK(compare<TestType>({5}, {6}, {0, 1}).passes());
  CHECK_FALSE(compare<TestType>({5}, {7}, {0, 1}).passes());
  CHECK_FALSE(compare<TestType>({100}, {101}, {1.0, 0}).passes());
}

TEST_CASE("16-bit floats, bools and structs", "[runtime][verify]") {
  CHECK(compare<float16>({float16(1.5f)}, {float16(1.5f)}).passes());
  CHECK_FALSE(compare<float16>({float16(1.5f)}, {float16(1.501f)}).passes());
  CHECK(compare<float16>({float16(1.5f)}, {float16(1.501f)}, {1e-3, 0}).passes());
  CHECK(compare<bfloat16>({bfloat16(2)}, {bfloat16(2)}).passes());
  CHECK_FALSE(compare<bfloat16>({bfloat16(2)}, {bfloat16(2.02f)}).passes());
  CHECK_FALSE(compare<bfloat16>({bfloat16(kNan)}, {bfloat16(2)}).passes());

  Workload::Argument b;
  b.type = DataType::boolean;
  b.count = 2;
  const std::vector<std::byte> yes{std::byte{1}, std::byte{0}}, no{std::byte{1}, std::byte{1}};
  CHECK(runtime::compare(b, yes, yes, {}).passes());
  CHECK(runtime::compare(b, yes, no, {}).mismatches == 1);

  struct Rgb {
    unsigned char r, g, b;
  };
  CHECK(compare<Rgb>({{1, 2, 3}}, {{1, 2, 3}}, {1, 1}).passes());
  // No tolerance for bytes of unknown meaning.
  const Comparison c = compare<Rgb>({{1, 2, 3}, {4, 5, 6}}, {{1, 2, 3}, {4, 5, 7}}, {1, 100});
  CHECK(c.mismatches == 1);
  CHECK(c.worst == 5);
}

TEST_CASE("the worst element is named", "[runtime][verify]") {
  std::vector<float> want(1024, 2.0f), got = want;
  got[3] = 2.1f;
  got[17] = 1.5f;
  got[1000] = 2.2f;
  CHECK(described(got, want) == "element 17 of argument 3 is 1.5, expected 2 (3 of 1024 differ)");
  CHECK(described<std::uint8_t>({7, 65}, {7, 66}) ==
        "element 1 of argument 3 is 65, expected 66 (1 of 2 differ)");
  // Beyond 2^53.
  CHECK(described<std::int64_t>({(std::int64_t{1} << 60) + 1}, {std::int64_t{1} << 60}) ==
        "element 0 of argument 3 is 1152921504606846977, expected 1152921504606846976 "
        "(1 of 1 differ)");
  CHECK(described<bfloat16>({bfloat16(1)}, {bfloat16(3)}) ==
        "element 0 of argument 3 is 1, expected 3 (1 of 1 differ)");
}

TEST_CASE("nothing to compare passes", "[runtime][verify]") {
  CHECK(compare<float>({}, {}).passes());
}

TEST_CASE("which element types fit which argument", "[runtime][verify]") {
  const auto check = [](const std::string& type, auto make) {
    KernelDefinition k;
    k.name = std::string("k");
    k.arguments = {"float*", type};
    Workload w;
    w.output<float>(1);
    make(w);
    try {
      runtime::check_workload(k, w);
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  const auto in = []<class T>(T) { return [](Workload& w) { w.input<T>(2, {0, 3}); }; };
  CHECK(check("const int*", in(int{})));
  CHECK(check("const int *", in(int{})));
  CHECK(check("int*", in(int{})));
  CHECK_FALSE(check("const int*", in(unsigned{})));
  CHECK_FALSE(check("const int*", in(float{})));
  CHECK(check("const unsigned*", in(unsigned{})));
  CHECK(check("const unsigned int*", in(unsigned{})));
  CHECK(check("const size_t*", in(std::size_t{})));
  CHECK(check("const __half*", in(float16{})));
  CHECK_FALSE(check("const __half*", in(bfloat16{})));
  CHECK(check("const __nv_bfloat16*", in(bfloat16{})));
  CHECK(check("const void*", in(int{})));
  CHECK(check("const MyType*", in(int{})));  // not ours to know
  CHECK(check("MyParams", [](Workload& w) { w.scalar(std::pair<int, float>{}); }));
  CHECK_FALSE(check("int", [](Workload& w) { w.scalar(1.0); }));
  CHECK_FALSE(check("int", in(int{})));
}
