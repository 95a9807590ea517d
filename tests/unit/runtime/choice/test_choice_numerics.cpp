// Whether candidates keep what their numerics class promises.
#include <algorithm>

#include "choice_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Element i of y is the sum of all of x from its element i on, around its end.
template <class Sum>
void sums(float* y, const float* x, int n, bool backwards) {
  for (int i = 0; i < n; ++i) {
    Sum sum = 0;
    for (int j = 0; j < n; ++j) sum += x[(i + (backwards ? n - 1 - j : j)) % n];
    y[i] = static_cast<float>(sum);
  }
}

struct Summing : Chooser {
  explicit Summing(const fs::path& directory) : Chooser(directory) {
    choice.name = "sums";
    choice.problem = [](float*, const float*, int n) { return DoublingProblem{n}; };
    choice.workload = [](const DoublingProblem& p, Workload& w) {
      const auto n = std::size_t(p.n);
      w.output<float>(n).input<float>(n).scalar<int>(p.n);
    };
    choice.reference = [](float* y, const float* x, int n) { sums<double>(y, x, n, false); };
    choice.tolerance = Tolerance{.relative = 1e-3, .absolute = 1e-3};
    choice.alternatives = {summing("forwards", 1e-3, false), summing("backwards", 1e-4, true),
                           summing("again", 5e-4, false)};
  }
  DoublingWay summing(std::string name, double seconds, bool backwards) {
    return {.name = std::move(name),
            .version = "1",
            .call =
                [this, seconds, backwards](const auto&, Stream, float* y, const float* x, int n) {
                  sums<float>(y, x, n, backwards);
                  device->pass(seconds);
                },
            .numerics = "in order"};
  }
  Doubling choice;
};

}  // namespace

TEST_CASE("a deterministic runtime holds candidates to their numerics class", "[choice]") {
  const Directory directory;
  Summing process(directory.path());
  process.device->has_digests = GENERATE(false, true);
  CHECK(tuned(process.runtime(), process.choice).chosen({40}).name == "backwards");

  process.options.deterministic = true;
  const TuneResult result = tuned(process.runtime(), process.choice).tune({40});
  CHECK(result.describe(result.winner()) == "alternative=again");
  REQUIRE(result.count(CandidateStatus::wrong_result) == 1);
  const auto wrong =
      std::ranges::find(result.candidates, CandidateStatus::wrong_result, &Candidate::status);
  CHECK(result.describe(*wrong) == "alternative=backwards");
  CHECK(wrong->reason ==
        "its results differ in bits from those of alternative=forwards, which states the same "
        "numerics class, in order");
  // Of another class it may have other bits, where that class is asked for.
  process.choice.alternatives[1].numerics = "from the end";
  const auto other = tuned(process.runtime(), process.choice, {.numerics = "from the end"});
  CHECK(other.chosen({40}).name == "backwards");
}
