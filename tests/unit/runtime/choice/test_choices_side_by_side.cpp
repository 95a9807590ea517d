// What is asked of choices on a GPU (tests/gpu/test_choices.cpp), with a library that a script
// stands in for and times of a fake clock.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <spawn.h>
#include <sys/wait.h>

#include "choices_test.hpp"
#include "cublaslt_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Multiplied = TunedChoice<ProductProblem, Multiply>;

/// A process whose times depend on the problem and waver, from one launch to the next.
struct Wavering : Multiplier {
  explicit Wavering(const fs::path& directory) : Multiplier(directory) {
    fake->algorithms = {{20, 0}, {15, 64}, {18, 4096}};
    device->clock = [this](double passed) {
      state = state * 1664525u + 1013904223u;
      return passed * (1 + 0.002 * (state >> 8) / (1u << 24));
    };
  }
  void take(const std::array<int, 3>& shape) {
    const auto of = [&](int i) { return (shape[0] * 7 + shape[1] * 5 + shape[2] * 3) * i % 11; };
    seconds = {{20, 1e-3}, {15, 1e-3 * (0.9 + 0.02 * of(1))}, {18, 1e-3 * (0.9 + 0.02 * of(4))}};
    own_seconds = 1e-3 * (0.85 + 0.03 * of(7));
  }
  unsigned state = 1;
};

std::array<int, 3> shape_of(std::size_t i) {
  return {1 + static_cast<int>(i % 5), 1 + static_cast<int>(i % 3), 1 + static_cast<int>(i / 3)};
}
ProductProblem problem_of(const std::array<int, 3>& shape) {
  return {shape[0], shape[1], shape[2], 0, 1, 0, 1};
}

/// The folder of the store, and a seed of the noise.
constexpr const char *kStoreVariable = "KILN_TEST_CHOICES_IN", *kNoiseVariable = "KILN_TEST_NOISE";

/// Has a process of its own choose for `count` shapes. Its picks are in the store.
void choose_in_another_process(const fs::path& store, unsigned noise, std::size_t count) {
  const EnvironmentVariable in(kStoreVariable, store.string());
  const EnvironmentVariable seed(kNoiseVariable, std::to_string(noise));
  const EnvironmentVariable shapes("KILN_TEST_SHAPES", std::to_string(count));
  char program[] = "unit_choice", test[] = "a process of its own chooses";
  char* const arguments[] = {program, test, nullptr};
  pid_t pid = 0;
  REQUIRE(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0);
  int status = -1;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(status == 0);
}

}  // namespace

// Hidden: for choose_in_another_process().
TEST_CASE("a process of its own chooses", "[.]") {
  const char* const folder = std::getenv(kStoreVariable);
  REQUIRE(folder);
  Wavering process(folder);
  process.state = static_cast<unsigned>(std::stoul(std::getenv(kNoiseVariable)));
  const auto f = tuned(process.runtime(), process.choice());
  for (std::size_t i = 0; i < shapes_to_test(8); ++i) {
    process.take(shape_of(i));
    f.prepare(problem_of(shape_of(i)));
  }
}

TEST_CASE("picks are not certainly slower than the heuristic's first, and two processes agree",
          "[choice][cublaslt]") {
  const std::size_t count = shapes_to_test(8);
  const Directory one, two;
  choose_in_another_process(one.path(), 1, count);
  choose_in_another_process(two.path(), 2, count);
  Wavering process(one.path()), again(two.path());
  again.device = process.device;  // the library's script has one clock
  const auto f = tuned(process.runtime(), process.choice());
  const auto g = tuned(again.runtime(), again.choice());
  const auto first = tuned(process.runtime(), process.choice(), {.choose = "cublaslt"});
  SideBySide times(process.device);
  Matrices matrices;
  Comparison all;
  for (std::size_t i = 0; i < count; ++i) {
    const std::array shape = shape_of(i);
    const ProductProblem p = problem_of(shape);
    process.take(shape);
    again.take(shape);
    const auto work = [&](const Multiplied& choice) {
      return [&](Stream s, std::size_t) { matrices.launch(choice, p, s); };
    };
    REQUIRE(f.known(p));
    REQUIRE(g.known(p));
    const std::string text = f.chosen(p).text, other = g.chosen(p).text;
    CAPTURE(text, other);
    const runtime::Interval behind = times.behind(work(f), work(first), 1);
    const runtime::Interval apart = times.behind(work(f), work(g), 1);
    all.add(&behind, text == other ? nullptr : &apart);
  }
  std::puts(all.summary().c_str());
  CHECK(all.tried == count);
  CHECK(all.slower == 0);
  CHECK(all.agreed());
}

TEST_CASE("what is certainly slower, or apart, is counted", "[choice]") {
  Comparison all;
  const runtime::Interval slower{0.02, 0.01, 0.03}, unsure{0.02, 0.001, 0.03},
      faster{-0.02, -0.03, -0.01};
  all.add(&slower, &slower);
  all.add(&unsure, &unsure);
  all.add(&faster, &faster);
  all.add(nullptr, nullptr);
  CHECK(
      all.summary() ==
      "choices tried 4, certainly slower 1, agreed 2 of 4 (1 by the pick, 1 within the tie band)");
  CHECK_FALSE(all.agreed());
  const Directory directory;
  Process process(directory.path());
  double seconds = 1.05e-3;
  SideBySide times(process.device);
  const auto takes = [&](const double& s) {
    return [&](Stream, std::size_t) { process.device->pass(s); };
  };
  const double other = 1e-3;
  CHECK(times.behind(takes(seconds), takes(other), 1).low > 0.04);
  CHECK(times.behind(takes(other), takes(seconds), 1).high < -0.04);
}

TEST_CASE("shapes are the same ones each time, and of all sizes", "[choice]") {
  const auto all = gemm_shapes(200);
  CHECK(std::ranges::equal(gemm_shapes(50), std::span(all).first(50)));
  const auto tokens = [](const auto& a, const auto& b) { return a[0] < b[0]; };
  const auto [least, most] = std::ranges::minmax_element(std::span(all).first(20), tokens);
  CHECK((*least)[0] <= 8);
  CHECK((*most)[0] >= 2048);
  for (const auto& [m, n, k] : all) CHECK((m >= 1 && m <= 8192 && n % 64 == 0 && k % 64 == 0));
}

TEST_CASE("a record that names another library or an algorithm that none has is checked again",
          "[choice][cublaslt]") {
  const Directory directory;
  Multiplier process(directory.path());
  process.seconds[15] = 0.5e-3;
  const auto choose = [&] {
    const auto f = tuned(process.runtime(), process.choice());
    const bool known = f.known(kSmall).has_value();
    process.matmuls = 0;
    CHECK(f.chosen(kSmall).text.find("tile=15") != std::string::npos);
    CHECK((process.matmuls == 0) == known);
    return known;
  };
  CHECK_FALSE(choose());
  CHECK(choose());
  for (const char* parameter : {"alternative", "cublaslt.tile"}) {
    CAPTURE(parameter);
    CHECK(change_records(directory.path(), [&](auto& record) {
            return change_candidates(record, "multiply", "cublaslt", parameter, [](auto& value) {
              value = value.template get<std::int64_t>() + 1000;
            });
          }) == 1);
    CHECK_FALSE(choose());
    CHECK(choose());
  }
}
