// cuBLASLt as an alternative, with a library that a script stands in for.
#include <thread>

#include "cublaslt_fixture.hpp"
#include "findings.hpp"
#include "kiln/communicators.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/allocations.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("cuBLASLt multiplies matrices however they lie", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto f = tuned(process.runtime(), process.choice());
  for (const int at : {0, 1})
    for (const int bt : {0, 1})
      for (const int gap : {0, 3})
        for (const int batch : {1, 3}) {
          CAPTURE(at, bt, gap, batch);
          const TuneResult result = f.tune({5, 6, 7, at, bt, gap, batch});
          CHECK(result.count(CandidateStatus::measured) == 3);
          CHECK(f.chosen({5, 6, 7, at, bt, gap, batch}).name == "cublaslt");
        }
}

TEST_CASE("the heuristic's first answer stays unless another is certainly faster",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  process.seconds[15] = GENERATE(0.999e-3, 0.5e-3);
  const bool faster = process.seconds[15] < 0.9e-3;
  const TuneResult result = tuned(process.runtime(), process.choice()).tune(kSmall);
  const auto tile = [&](const Candidate& c) { return result.describe(c); };
  CHECK(tile(result.default_candidate()).find("cublaslt.tile=20") != std::string::npos);
  CHECK(tile(result.winner()).find(faster ? "cublaslt.tile=15" : "cublaslt.tile=20") !=
        std::string::npos);
  // The next process takes it from the record.
  process.matmuls = 0;
  const auto again = tuned(process.runtime(), process.choice());
  CHECK(again.chosen(kSmall).text.find(faster ? "tile=15" : "tile=20") != std::string::npos);
  CHECK(process.matmuls == 0);
}

TEST_CASE("an algorithm on record that the library does not know is a miss", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  process.seconds[15] = 0.5e-3;
  const auto now = [&] { return tuned(process.runtime(), process.choice()).chosen(kSmall).text; };
  CHECK(now().find("tile=15") != std::string::npos);
  process.fake->algorithms = {{20, 0}, {18, 0}};
  process.seconds[18] = 0.7e-3;
  CHECK(now().find("tile=18") != std::string::npos);
  process.matmuls = 0;
  CHECK(now().find("tile=18") != std::string::npos);
  CHECK(process.matmuls == 0);
  process.fake->version = 130100;  // another library's measurements are its own
  process.seconds[18] = 3e-3;
  CHECK(now().find("tile=20") != std::string::npos);
  CHECK(process.matmuls > 0);
}

TEST_CASE("cuBLASLt that is absent, too old or refuses is a reason", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto why = [&] {
    const auto f = tuned(process.runtime(), process.choice());
    f.prepare(kSmall);
    CHECK(f.chosen(kSmall).name == "mine");
    const auto known = f.known(kSmall);
    REQUIRE(known);
    REQUIRE(known->left_out.size() == 1);
    CHECK(known->left_out[0].name == "cublaslt");
    CHECK(known->left_out[0].why == f.alternatives(kSmall)[0].why_not);
    return known->left_out[0].why;
  };
  {
    const EnvironmentVariable none("KILN_CUBLASLT", "/nowhere/libcublasLt.so");
    CHECK_THAT(why(), Catch::Contains("cannot be opened") && Catch::Contains("/nowhere"));
  }
  {
    const EnvironmentVariable other("KILN_CUBLASLT", NOT_CUBLASLT);
    CHECK_THAT(why(), Catch::Contains("has no cublasLtGetVersion, cublasLtCreate"));
  }
  process.fake->version = 110900;
  CHECK_THAT(why(), Catch::Contains("110900") && Catch::Contains("120000"));
  process.fake->version = 130000;
  process.fake->create_status = 3;
  CHECK_THAT(why(), Catch::Contains("cublasLtCreate failed with status 3"));
  process.fake->create_status = 0;
  process.fake->algorithms.clear();
  CHECK(why() == "cuBLASLt 130000 has no algorithm for m=5,n=6,k=7,at=0,bt=1,gap=0,batch=1");
  process.fake->algorithms = {{20, 0}};
  process.device->info().target = {Target::Kind::host, "generic"};
  CHECK(why() == "cuBLASLt runs on CUDA devices only");
  CHECK(process.fake->handles == 0);
  CHECK(process.fake->descriptors == 0);
}

TEST_CASE("cuBLASLt that could not be opened just now is opened later", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto f = tuned(process.runtime(), process.choice());
  process.fake->create_status = 3;
  CHECK(f.alternatives(kSmall)[0].why_not == "cublasLtCreate failed with status 3");
  f.prepare(kSmall);
  CHECK(f.chosen(kSmall).name == "mine");
  process.fake->create_status = 0;
  CHECK(f.alternatives(kSmall)[0].why_not.empty());
  if (GENERATE(true, false))
    f.tune(kSmall);
  else
    f.prepare(kSmall);
  CHECK(f.chosen(kSmall).name == "cublaslt");
}

TEST_CASE("what was tuned while cuBLASLt could not be opened is prepared anew",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto f = tuned(process.runtime(), process.choice());
  process.fake->create_status = 3;
  f.tune(kSmall);
  CHECK(f.chosen(kSmall).name == "mine");
  process.fake->create_status = 0;
  f.prepare(kSmall);
  CHECK(f.chosen(kSmall).name == "cublaslt");
}

TEST_CASE("of two answers with the same attributes the first is the one that is launched",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  process.fake->algorithms = {{20, 0, true, false, 1}, {20, 0, true, false, 2}, {15, 0}};
  process.seconds = {{20, 1e-3}, {15, 1.5e-3}};
  const auto f = tuned(process.runtime(), process.choice());
  CHECK(f.tune(kSmall).count(CandidateStatus::measured) == 3);  // with the own way
  Matrices matrices;
  matrices.launch(f, kSmall);
  CHECK(process.fake->launched_variant == 1);
}

TEST_CASE("an answer that its attributes do not restore is tried and launched as it is",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  process.fake->algorithms = {{20, 0, true}, {15, 0}};
  process.seconds = {{20, 1e-3}, {15, 1.5e-3}};
  const auto f = tuned(process.runtime(), process.choice());
  const TuneResult result = f.tune(kSmall);
  CHECK(result.describe(result.default_candidate()).find("cublaslt.tile=20") != std::string::npos);
  CHECK(result.default_candidate().status == CandidateStatus::measured);
  CHECK(f.chosen(kSmall).text.find("tile=20") != std::string::npos);
  CHECK(result.left_out.empty());
  Matrices matrices;
  matrices.launch(f, kSmall);
  // The next process is given the same answer, so that its record holds.
  process.matmuls = 0;
  CHECK(tuned(process.runtime(), process.choice()).chosen(kSmall).text.find("tile=20") !=
        std::string::npos);
  CHECK(process.matmuls == 0);
}

TEST_CASE("a first answer that cannot be tried is told of", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  std::string log;
  process.options.log = [&](LogLevel, std::string_view text) { log += std::string(text) + "\n"; };
  process.fake->algorithms = {{20, 0, false, true}, {15, 0}};
  const auto f = tuned(process.runtime(), process.choice());
  const TuneResult result = f.tune(kSmall);
  CHECK(result.describe(result.default_candidate()).find("cublaslt.tile=15") != std::string::npos);
  REQUIRE(result.left_out.size() == 1);
  CHECK(result.left_out[0].name == "cublaslt");
  CHECK_THAT(result.left_out[0].why, Catch::Contains("the first answer of cuBLASLt 130000") &&
                                         Catch::Contains("does not tell its public attributes"));
  CHECK(log.find(result.left_out[0].why) != std::string::npos);
  CHECK(f.alternatives(kSmall)[0].why_not.empty());
  // Others than the first may be dropped without a word.
  process.fake->algorithms = {{15, 0}, {20, 0, false, true}};
  CHECK(tuned(process.runtime(), process.choice()).tune(kSmall).left_out.empty());
}

TEST_CASE("an empty product is none of cuBLASLt's", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto f = tuned(process.runtime(), process.choice());
  f.prepare({5, 6, 0, 0, 1, 0, 1});
  CHECK(f.chosen({5, 6, 0, 0, 1, 0, 1}).name == "mine");
  CHECK(f.alternatives({5, 6, 0, 0, 1, 0, 1})[0].why_not == "the product is empty");
}

TEST_CASE("cuBLASLt's workspace is the choice's own, and as large as its limit allows",
          "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  process.seconds[15] = 1e-4;
  Multiplying choice = process.choice();
  SECTION("within the limit, one per stream") {
    const auto f = tuned(process.runtime(), choice);
    f.prepare(kSmall);
    int one = 0, two = 0;
    Matrices matrices;
    process.device->captured = &two;
    matrices.launch(f, kSmall, {&one});
    CHECK_THROWS_AS(matrices.launch(f, kSmall, {&two}), CaptureError);  // it would have to grow
    process.device->captured = nullptr;
    matrices.launch(f, kSmall, {&two});
    process.device->captured = &two;
    const std::size_t before = allocations();
    const std::size_t on_device = process.device->allocated;
    matrices.launch(f, kSmall, {&two});
    CHECK(allocations() == before);
    CHECK(process.device->allocated == on_device);
  }
  SECTION("beyond it") {
    choice.alternatives[0].cublaslt->workspace = 4095;
    const auto f = tuned(process.runtime(), choice);
    CHECK(f.chosen(kSmall).text.find("tile=20") != std::string::npos);
    CHECK(process.fake->largest_preference == 4095);
  }
}

TEST_CASE("pointers that cuBLASLt's algorithms cannot take are refused", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto f = tuned(process.runtime(), process.choice());
  f.prepare(kSmall);
  Matrices matrices;
  matrices.launch(f, kSmall);
  CHECK_THROWS_WITH(matrices.launch(f, kSmall, {}, 1),
                    Catch::Contains("argument 1 is not aligned to 16 bytes"));
  matrices.launch(f, kSmall, {}, 4);
}

TEST_CASE("what a library lacks just now is no refusal of it", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const auto f = tuned(process.runtime(), process.choice());
  int FakeCublaslt::* const status =
      GENERATE(&FakeCublaslt::heuristic_status, &FakeCublaslt::check_status);
  constexpr int kNoMemory = 3, kNotSupported = 15;
  process.fake->*status = kNoMemory;
  CHECK_THROWS_AS(f.tune(kSmall), EnvironmentError);
  CHECK_THROWS_AS(f.prepare(kSmall), EnvironmentError);
  process.fake->*status = kNotSupported;
  CHECK(f.alternatives(kSmall)[0].why_not.find("no algorithm") != std::string::npos);
  process.fake->*status = 0;
  f.tune(kSmall);
  CHECK(f.alternatives(kSmall)[0].why_not.empty());
}

TEST_CASE("what a library multiplies wrongly is not used", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  Multiplying choice = process.choice();
  choice.alternatives[0].cublaslt->product = [](auto p) {
    MatrixProduct product = product_of(from_values<ProductProblem>(p));
    product.b_transposed = !product.b_transposed;
    return product;
  };
  const ProductProblem square{6, 6, 6, 0, 1, 0, 1};
  const auto f = tuned(process.runtime(), choice);
  CHECK(f.tune(square).count(CandidateStatus::wrong_result) == 2);
  CHECK(f.chosen(square).name == "mine");
}

TEST_CASE("products that differ have records of their own", "[choice][cublaslt]") {
  Directory directory;
  Multiplier process(directory.path());
  const ProductProblem square{6, 6, 6, 0, 1, 0, 1};
  const auto measured = [&](bool across) {
    Multiplying choice = process.choice();
    choice.alternatives.pop_back();
    const auto transposed = [across](ProductProblem p) {
      p.bt = across;
      return p;
    };
    choice.alternatives[0].cublaslt->product = [=](auto p) {
      return product_of(transposed(from_values<ProductProblem>(p)));
    };
    choice.reference = [=](float* c, const float* a, const float* b, int m, int n, int k, int at,
                           int bt, int gap, int batch) {
      multiply(transposed({m, n, k, at, bt, gap, batch}), c, a, b);
    };
    process.matmuls = 0;
    tuned(process.runtime(), choice).prepare(square);
    return process.matmuls;
  };
  CHECK(measured(true) > 0);
  CHECK(measured(false) > 0);
  CHECK(measured(true) == 0);
  CHECK(measured(false) == 0);
}

TEST_CASE("cuBLASLt takes no part where one rank lacks it", "[choice][cublaslt][ranks]") {
  Directory directories[2];
  Multiplier processes[] = {Multiplier(directories[0].path()), Multiplier(directories[1].path())};
  auto ends = thread_communicators(2);
  std::vector<TunedChoice<ProductProblem, Multiply>> ranks;
  for (const int r : {0, 1}) {
    processes[r].options.tuning.ranks = std::move(ends[static_cast<std::size_t>(r)]);
    ranks.push_back(tuned(processes[r].runtime(), processes[r].choice()));
  }
  ranks[0].alternatives(kSmall);  // opens the library
  const EnvironmentVariable none("KILN_CUBLASLT", NOT_CUBLASLT);
  Findings findings;
  {
    std::vector<std::jthread> threads;
    for (const int r : {0, 1})
      threads.emplace_back([&, r] {
        const auto& f = ranks[static_cast<std::size_t>(r)];
        const TuneResult result = f.tune(kSmall);
        findings.check(result.agreed && result.agreed->outcome == RankReport::Outcome::plan);
        findings.check(f.chosen(kSmall).name == "mine");
        const std::string why = f.alternatives(kSmall)[0].why_not;
        findings.check(why.find(r == 0 ? "rank 1 does not have it" : "has no cublasLt") !=
                       std::string::npos);
      });
  }
  CHECK(findings.wrong() == "");
}
