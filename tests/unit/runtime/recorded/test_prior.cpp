// Replays that know other spaces of the kernel.
#include "kiln/replay.hpp"
#include "kiln_test.hpp"
#include "t4_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// 12 x 10 configs around (dip, 4); `a` is spelt with `spelling` behind it, `unroll` has one value.
std::string space_with(int dip, const std::string& spelling = "", const std::string& more = "") {
  std::vector<std::string> entries;
  for (int a = 0; a < 12; ++a)
    for (int b = 0; b < 10; ++b)
      entries.push_back(
          t4_entry("{\"a\":" + std::to_string(1 << a) + spelling + ",\"b\":" + std::to_string(b) +
                       more + "}",
                   std::to_string(1 + 0.2 * (a - dip) * (a - dip) + 0.3 * (b - 4) * (b - 4))));
  return t4(entries);
}

double after(const SearchReplay& replay, std::vector<RecordedSpace> prior, std::size_t count,
             std::size_t of_each = 0) {
  ReplayOptions options;
  options.budget = count;
  options.repeats = 6;
  options.prior = std::move(prior);
  options.prior_evaluations = of_each;
  return replay.run(options).mean;
}

std::string refusal(const SearchReplay& replay, const RecordedSpace& prior) {
  try {
    after(replay, {prior}, 3);
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("a replay learns from other spaces of the kernel", "[runtime][recorded][prior]") {
  const T4Files files;
  const SearchReplay replay(files.read(space_with(7)));
  const RecordedSpace near = files.read(space_with(6)), far = files.read(space_with(8));
  CHECK(after(replay, {near, far}, 4) > 0.8);
  CHECK(after(replay, {near, far}, 4) > after(replay, {}, 4) + 0.15);
  CHECK(after(replay, {near, far}, 6, 40) > after(replay, {}, 6));
  // Values are what they are, however they are spelt.
  CHECK(after(replay, {files.read(space_with(6, ".0"))}, 4) == after(replay, {near}, 4));
}

TEST_CASE("a prior space may lack a parameter or have another one", "[runtime][recorded][prior]") {
  const T4Files files;
  const SearchReplay replay(files.read(space_with(7)));
  const RecordedSpace more = files.read(space_with(7, "", ",\"c\":3"));
  CHECK(after(replay, {more}, 2) == 1);  // it is the same space
  CHECK(after(SearchReplay(files.read(space_with(7, "", ",\"c\":3"))), {files.read(space_with(7))},
              2) == 1);
}

TEST_CASE("a prior space of another kernel is refused", "[runtime][recorded][prior]") {
  const T4Files files;
  const SearchReplay replay(files.read(space_with(7)));
  const std::string other = refusal(replay, files.read(bowl()));
  CHECK_THAT(other, Catch::Contains("cannot serve as a prior"));
  CHECK_THAT(other, Catch::Contains("lacks the parameters a, b"));
  // The same parameters, but no value in common.
  CHECK_THAT(refusal(replay, files.read(t4({t4_entry(R"({"a":3,"b":1})", "1"),
                                            t4_entry(R"({"a":5,"b":2})", "1")}))),
             Catch::Contains("tells nothing"));
  // What works there has values that are not known here; what is known failed.
  CHECK_THAT(refusal(replay, files.read(t4({t4_entry(R"({"a":2,"b":1})", "", "runtime"),
                                            t4_entry(R"({"a":5,"b":2})", "1")}))),
             Catch::Contains("tells nothing"));
}
