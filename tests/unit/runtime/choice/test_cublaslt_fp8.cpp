// cuBLASLt's products of 8-bit floats with scales, and of operands and results of several types.
#include <algorithm>
#include <array>
#include <barrier>
#include <thread>

#include "cublaslt_fixture.hpp"
#include "findings.hpp"
#include "kiln/kernels/gemm_fp8_choice.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/allocations.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Type = CublasltGemm::Type;

template <class T>
struct TypeOf;
template <>
struct TypeOf<float> {
  static constexpr Type value = Type::float32;
  static constexpr int cuda = 0;
};
template <>
struct TypeOf<float16> {
  static constexpr Type value = Type::float16;
  static constexpr int cuda = 2;
};
template <>
struct TypeOf<bfloat16> {
  static constexpr Type value = Type::bfloat16;
  static constexpr int cuda = 14;
};
template <>
struct TypeOf<float8_e4m3> {
  static constexpr Type value = Type::float8_e4m3;
  static constexpr int cuda = 28;
};
template <>
struct TypeOf<float8_e5m2> {
  static constexpr Type value = Type::float8_e5m2;
  static constexpr int cuda = 29;
};

/// The scale of B is in front of that of A.
template <class A, class B, class C>
using ScaledMultiply = void(C*, const A*, const B*, const float*, const float*, int, int, int, int,
                            int, int, int);

/// Scaled products by cuBLASLt and by an own way.
template <class A, class B, class C>
Choice<ProductProblem, ScaledMultiply<A, B, C>> scaled_choice(Multiplier& process) {
  Choice<ProductProblem, ScaledMultiply<A, B, C>> made{
      .name = "scaled",
      .problem = [](C*, const A*, const B*, const float*, const float*, int m, int n, int k, int at,
                    int bt, int gap,
                    int batch) { return ProductProblem{m, n, k, at, bt, gap, batch}; }};
  CublasltGemm gemm{.type = TypeOf<A>::value,
                    .product = [](auto p) { return product_of(from_values<ProductProblem>(p)); },
                    .b_type = TypeOf<B>::value,
                    .c_type = TypeOf<C>::value,
                    .scale_a = 4,
                    .scale_b = 3};
  made.alternatives.push_back({.name = "cublaslt", .cublaslt = gemm});
  made.alternatives.push_back(
      {.name = "mine",
       .call = [&process](const AlternativeCall<ProductProblem>& how, Stream, C* c, const A* a,
                          const B* b, const float* scale_b, const float* scale_a, int, int, int,
                          int, int, int, int) {
         multiply(how.problem, c, a, b, *scale_a * *scale_b);
         process.device->pass(process.own_seconds);
       }});
  made.workload = [](const ProductProblem& p, Workload& w) {
    const MatrixProduct d = product_of(p);
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    w.output<C>(Rows{size(d.batch * d.m), size(d.n), size(d.ldc)});
    w.input<A>(size(d.batch * d.stride_a)).template input<B>(size(d.batch * d.stride_b));
    w.input<float>(1, Uniform{.low = 0.5, .high = 1});
    w.input<float>(1, Uniform{.low = 2, .high = 3});
    w.scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.at).scalar(p.bt).scalar(p.gap).scalar(p.batch);
  };
  made.reference = [](C* c, const A* a, const B* b, const float* scale_b, const float* scale_a,
                      int m, int n, int k, int at, int bt, int gap, int batch) {
    multiply({m, n, k, at, bt, gap, batch}, c, a, b, *scale_a * *scale_b);
  };
  return made;
}

constexpr ProductProblem kScaled{5, 16, 32, 0, 1, 0, 1};

/// Operands of one launch of kScaled, all of whose results are `scale_a * scale_b * 32`.
struct Ones {
  using Handle = TunedChoice<ProductProblem, ScaledMultiply<float8_e4m3, float8_e4m3, bfloat16>>;

  Ones(float of_a, float of_b) : scale_a(of_a), scale_b(of_b) {
    a.fill(float8_e4m3(1));
    b.fill(float8_e4m3(1));
  }
  void launch(const Handle& f) {
    c.fill({});
    const ProductProblem& p = kScaled;
    f({}, c.data(), a.data(), b.data(), &scale_b, &scale_a, p.m, p.n, p.k, p.at, p.bt, p.gap,
      p.batch);
  }
  bool right() const {
    return std::ranges::all_of(c, [&](bfloat16 x) { return x == scale_a * scale_b * 32; });
  }

  alignas(16) std::array<bfloat16, 5 * 16> c;
  alignas(16) std::array<float8_e4m3, 5 * 32> a;
  alignas(16) std::array<float8_e4m3, 16 * 32> b;
  float scale_a, scale_b;
};

template <class A, class B, class C>
void check_types() {
  Directory directory;
  Multiplier process(directory.path());
  const auto f = tuned(process.runtime(), scaled_choice<A, B, C>(process));
  for (const int gap : {0, 16})
    for (const int batch : {1, 3}) {
      CAPTURE(gap, batch);
      const ProductProblem p{5, 16, 32, 0, 1, gap, batch};
      CHECK(f.tune(p).count(CandidateStatus::measured) == 3);
      CHECK(f.chosen(p).name == "cublaslt");
      const FakeCublaslt& fake = *process.fake;
      for (const FakeProduct& told : {fake.asked, fake.restored, fake.checked, fake.launched}) {
        CHECK(told.a == TypeOf<B>::cuda);  // the library's A
        CHECK(told.b == TypeOf<A>::cuda);
        CHECK(told.d == TypeOf<C>::cuda);
        CHECK(told.fast == 0);
      }
      for (const FakeProduct& told : {fake.asked, fake.checked, fake.launched}) {
        CHECK(told.a_scale);
        CHECK(told.b_scale);
      }
    }
}

}  // namespace

TEST_CASE("cuBLASLt multiplies 8-bit floats of two types with scales", "[choice][cublaslt]") {
  SECTION("e4m3 and e4m3 in bfloat16") { check_types<float8_e4m3, float8_e4m3, bfloat16>(); }
  SECTION("e4m3 and e5m2 in float16") { check_types<float8_e4m3, float8_e5m2, float16>(); }
  SECTION("e5m2 and e4m3 in float") { check_types<float8_e5m2, float8_e4m3, float>(); }
}

TEST_CASE("cuBLASLt's result may have another type than operands of 16 bits",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  auto choice = scaled_choice<float16, float16, float>(process);
  CublasltGemm& gemm = *choice.alternatives[0].cublaslt;
  gemm.scale_a = gemm.scale_b = {};
  choice.reference = [](float* c, const float16* a, const float16* b, const float*, const float*,
                        int m, int n, int k, int at, int bt, int gap,
                        int batch) { multiply({m, n, k, at, bt, gap, batch}, c, a, b); };
  choice.alternatives.pop_back();
  const auto f = tuned(process.runtime(), choice);
  CHECK(f.tune({5, 6, 7, 1, 0, 3, 2}).count(CandidateStatus::measured) == 2);
  CHECK(process.fake->launched.a == TypeOf<float16>::cuda);
  CHECK(process.fake->launched.d == TypeOf<float>::cuda);
}

TEST_CASE("each launch of cuBLASLt has its own scales", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto f =
      tuned(process.runtime(), scaled_choice<float8_e4m3, float8_e4m3, bfloat16>(process));
  f.prepare(kScaled);
  REQUIRE(f.chosen(kScaled).name == "cublaslt");
  Ones one(2, 0.5F), two(0.25F, 8);
  process.fake->on_matmul = {};
  SECTION("one after the other") {
    for (Ones* const each : {&one, &two, &one}) {
      each->launch(f);
      CHECK(each->right());
      CHECK(process.fake->launched.a_scale == &each->scale_b);  // the library's A is B
      CHECK(process.fake->launched.b_scale == &each->scale_a);
    }
    const std::size_t before = allocations();
    two.launch(f);
    CHECK(allocations() == before);
    CHECK(two.right());
    const ProductProblem& p = kScaled;
    CHECK_THROWS_AS(f({}, one.c.data(), one.a.data(), one.b.data(), nullptr, &one.scale_a, p.m, p.n,
                      p.k, p.at, p.bt, p.gap, p.batch),
                    UserError);
  }
  SECTION("on two threads") {
    std::barrier both(2);  // both have said what they want before the library looks at it
    process.fake->before_matmul = [&] { both.arrive_and_wait(); };
    Findings findings;
    {
      std::vector<std::jthread> threads;
      for (Ones* const mine : {&one, &two})
        threads.emplace_back([&, mine] {
          for (int i = 0; i < 100; ++i) {
            mine->launch(f);
            findings.check(mine->right());
          }
        });
    }
    process.fake->before_matmul = {};
    CHECK(findings.wrong() == "");
  }
}

TEST_CASE("8-bit floats that cuBLASLt cannot multiply are left out with the reason",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  auto choice = scaled_choice<float8_e4m3, float8_e4m3, bfloat16>(process);
  const auto why = [&](const ProductProblem& p) {
    const auto f = tuned(process.runtime(), choice);
    f.prepare(p);
    CHECK(f.chosen(p).name == "mine");
    const auto known = f.known(p);
    REQUIRE(known);
    REQUIRE(known->left_out.size() == 1);
    CHECK(known->left_out[0].name == "cublaslt");
    return known->left_out[0].why;
  };
  SECTION("sizes and leading dimensions") {
    CHECK(why({5, 16, 24, 0, 1, 0, 1}) == "of 8-bit floats k must be a multiple of 16; it is 24");
    CHECK(why({5, 20, 32, 0, 1, 0, 1}) == "of 8-bit floats n must be a multiple of 8; it is 20");
    CHECK(why({5, 16, 32, 0, 1, 8, 1}) == "of 8-bit floats lda must be a multiple of 16; it is 40");
  }
  SECTION("C's leading dimension, and strides") {
    choice.alternatives[0].cublaslt->product = [](auto p) {
      MatrixProduct product = product_of(from_values<ProductProblem>(p));
      product.ldc += 4;
      return product;
    };
    CHECK(why(kScaled) == "of 8-bit floats ldc must be a multiple of 8; it is 20");
    choice.alternatives[0].cublaslt->product = [](auto p) {
      MatrixProduct product = product_of(from_values<ProductProblem>(p));
      product.stride_b += 8;
      return product;
    };
    CHECK(why({5, 16, 32, 0, 1, 0, 2}) ==
          "of 8-bit floats stride_b must be a multiple of 16; it is 520");
    const auto f = tuned(process.runtime(), choice);
    CHECK(f.alternatives(kScaled)[0].why_not == "");  // of one batch
  }
  SECTION("transpositions") {
    const int at = GENERATE(0, 1);
    CHECK(why({16, 16, 32, at, at, 0, 1}) == "8-bit floats must be stored as [m][k] and [n][k]");
  }
  SECTION("e5m2 by e5m2") {
    auto& gemm = *choice.alternatives[0].cublaslt;
    gemm.type = Type::float8_e5m2;
    gemm.b_type.reset();
    CHECK(why(kScaled).starts_with("cuBLASLt 130000 has no algorithm for"));
  }
  SECTION("an older device") {
    process.device->info().target = {Target::Kind::cuda, "sm_86"};
    CHECK(why(kScaled) == "8-bit floats need a GPU of compute capability 8.9; this one has 8.6");
    process.device->info().target = {Target::Kind::cuda, "sm_89"};
    CHECK(tuned(process.runtime(), choice).alternatives(kScaled)[0].why_not == "");
  }
  SECTION("a library that does not know them") {
    process.fake->knows_8_bits = false;
    CHECK(why(kScaled) == "cuBLASLt 130000 does not know attribute 17 of a product");
    CHECK(process.fake->descriptors == 0);
    auto& gemm = *choice.alternatives[0].cublaslt;
    gemm.scale_a = gemm.scale_b = {};
    CHECK(why(kScaled).starts_with("cuBLASLt 130000 has no algorithm for"));
  }
}

TEST_CASE("a problem of 8-bit floats that cuBLASLt cannot multiply is launched another way",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  auto choice = scaled_choice<float8_e4m3, float8_e4m3, bfloat16>(process);
  choice.bucket = [](const ProductProblem& p) {
    ProductProblem bucket = p;
    bucket.k = (p.k + 31) / 32 * 32;
    return bucket;
  };
  const auto f = tuned(process.runtime(), choice);
  f.prepare(kScaled);
  CHECK(f.chosen(kScaled).name == "cublaslt");
  CHECK(f.chosen({5, 16, 24, 0, 1, 0, 1}).name == "mine");
}

TEST_CASE("fast accumulation reaches cuBLASLt, and has records of its own", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto measured = [&](bool fast) {
    auto choice = scaled_choice<float8_e4m3, float8_e4m3, bfloat16>(process);
    choice.alternatives[0].cublaslt->fast_accumulation = fast;
    process.matmuls = 0;
    const auto f = tuned(process.runtime(), choice);
    f.prepare(kScaled);
    Ones ones(1, 1);
    const int before = process.matmuls;
    ones.launch(f);
    for (const FakeProduct& told :
         {process.fake->asked, process.fake->checked, process.fake->launched})
      CHECK(told.fast == (fast ? 1 : 0));
    return before;
  };
  CHECK(measured(false) > 0);
  CHECK(measured(true) > 0);
  CHECK(measured(false) == 0);
  CHECK(measured(true) == 0);
}

TEST_CASE("products with other types or scales have records of their own", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto measured = [&](void (*change)(CublasltGemm&)) {
    auto choice = scaled_choice<float8_e4m3, float8_e4m3, bfloat16>(process);
    choice.alternatives.pop_back();
    change(*choice.alternatives[0].cublaslt);
    process.matmuls = 0;
    const auto f = tuned(process.runtime(), choice);
    try {
      f.tune(kScaled);
    } catch (const TuningFailedError&) {  // it is not this product that the reference is of
    }
    return process.matmuls;
  };
  CHECK(measured([](CublasltGemm&) {}) > 0);
  CHECK(measured([](CublasltGemm&) {}) == 0);
  CHECK(measured([](CublasltGemm& gemm) { gemm.b_type = Type::float8_e5m2; }) > 0);
  CHECK(measured([](CublasltGemm& gemm) { gemm.c_type = Type::float16; }) > 0);
  CHECK(measured([](CublasltGemm& gemm) { gemm.scale_a.reset(); }) > 0);
  CHECK(measured([](CublasltGemm& gemm) { gemm.scale_b.reset(); }) > 0);
  CHECK(measured([](CublasltGemm&) {}) == 0);
}

TEST_CASE("types and scales that no product of cuBLASLt has are a mistake", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto choice = scaled_choice<float8_e4m3, float8_e4m3, bfloat16>(process);
  const auto change = [&](auto of) {
    auto changed = choice;
    of(*changed.alternatives[0].cublaslt);
    return changed.description();
  };
  CHECK_NOTHROW(change([](CublasltGemm&) {}));
  CHECK_THROWS_WITH(change([](CublasltGemm& gemm) { gemm.scale_b = 12; }),
                    Catch::Contains("there is no argument 12"));
  CHECK_THROWS_WITH(change([](CublasltGemm& gemm) { gemm.c_type.reset(); }),
                    Catch::Contains("C cannot be of 8-bit floats"));
  const char* const not_theirs = "scales and `fast_accumulation` are those of 8-bit operands";
  CHECK_THROWS_WITH(change([](CublasltGemm& gemm) { gemm.type = Type::float16; }),
                    Catch::Contains(not_theirs));
  CHECK_THROWS_WITH(
      change([](CublasltGemm& gemm) {
        gemm = {.type = Type::float16, .product = gemm.product, .fast_accumulation = true};
      }),
      Catch::Contains(not_theirs));
}

TEMPLATE_TEST_CASE_SIG("what cuBLASLt is told of the shipped GEMM of 8-bit floats is its equation",
                       "[choice][cublaslt]", ((templates::Fp8Sums sums), sums),
                       templates::Fp8Sums::exact, templates::Fp8Sums::fast) {
  Directory directory;
  Multiplier process(directory.path());
  auto choice = templates::gemm_fp8_choice<sums>();
  // The kernel's own adds on several threads, which the thread sanitizer does not see through.
  choice.reference = [](bfloat16* c, const float8_e4m3* a, const float8_e4m3* b, int m, int n,
                        int k, const float* scale_a, const float* scale_b) {
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        float sum = 0;
        for (int l = 0; l < k; ++l) sum += float(a[i * k + l]) * float(b[j * k + l]);
        c[i * n + j] = bfloat16(*scale_a * *scale_b * sum);
      }
  };
  choice.tolerance = {.relative = 1.6e-2, .absolute = 4e-3, .norm = 8e-3};  // a rounding of C
  const auto f = tuned(process.runtime(), choice, {.backends = {"cublaslt"}});
  const templates::GemmProblem p{5, 24, 48};
  const TuneResult result = f.tune(p);
  CHECK(result.count(CandidateStatus::measured) == 2);
  CHECK(process.fake->launched.fast == (sums == templates::Fp8Sums::fast ? 1 : 0));
  CHECK(process.fake->launched.d == TypeOf<bfloat16>::cuda);
  // The kernel tells the rates of what cuBLASLt does, too.
  CHECK(result.flops == 2.0 * 8 * p.n * p.k);  // m of its bucket
  CHECK(result.bytes > 0);
}
