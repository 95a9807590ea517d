// Candidates that a budget cuts off: they are on record, not blamed, and in nobody's way.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/measure/bench.hpp"
#include "tuner_fixture.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using runtime::TrialCut;
using runtime::TrialFault;

namespace {

/// One process after the other, on one store. A config of theirs does not end.
struct Processes {
  Directory folder;
  std::string hangs = "k<4, 0>";
  int after = 0;             ///< launches of it that end
  bool finals_hang = false;  ///< every launch in the finals does, instead
  double seconds_of_8 = 2e-4;
  std::size_t shared_bytes = 0;       ///< of {4, 0}
  int cuts = 0;                       ///< in the last process
  std::vector<std::string> launched;  ///< in the last process: each entry once

  bool was_launched(const std::string& entry) const {
    return std::find(launched.begin(), launched.end(), entry) != launched.end();
  }

  /// @param budget in seconds; 0: none, so the candidate's own deadline ends it
  TuneResult tune(double budget, std::vector<std::int64_t> a = {1, 2, 4, 8}) {
    Process process(folder.path());
    process.of(4).seconds = 1e-4;
    process.of(8).seconds = seconds_of_8;
    launched.clear();
    cuts = 0;
    bool in_finals = false;
    process.device->on_launch = [&, left = after](const std::string& entry, void**) mutable {
      if (!was_launched(entry)) launched.push_back(entry);
      if (finals_hang ? !in_finals : entry != hangs || left-- > 0) return;
      ++cuts;
      if (budget > 0) throw TrialCut(budget, "the budget ended");
      throw TrialFault(CandidateStatus::hung, "it did not end");
    };
    TuneOptions options;
    options.strategy = "exhaustive";
    options.max_seconds = budget;
    options.progress = [&](const TuneProgress& p) {
      in_finals = p.phase == TuneProgress::Phase::finals;
    };
    KernelDefinition kernel = doubling(std::move(a));
    kernel.launch = [this, plain = kernel.launch](auto config, auto problem) {
      Launch launch = plain(config, problem, {});
      if (config[0] == 4) launch.shared_bytes = shared_bytes;
      return launch;
    };
    return process.runtime().tuned(kernel).tune({64}, options);
  }
};

}  // namespace

TEST_CASE("a candidate that a budget has cut off takes no budget twice", "[runtime][tune][cut]") {
  Processes processes;
  const TuneResult first = processes.tune(20);
  CHECK(test::find(first, {4, 0}).status == CandidateStatus::not_tried);
  CHECK(test::find(first, {4, 0}).cut_seconds == 20);
  CHECK(test::find(first, {4, 0}).reason == "the budget ended");
  CHECK(first.count(CandidateStatus::measured) == 3);
  CHECK(first.winner().config == Values{8, 0});
  CHECK_FALSE(first.complete);

  // Budgets that are meant to be the same need not be: what came before them took time.
  const TuneResult same = processes.tune(20.01);
  CHECK_FALSE(processes.was_launched(processes.hangs));
  CHECK(same.evaluated == 0);
  CHECK(test::find(same, {4, 0}).cut_seconds == 20);
  CHECK_FALSE(same.complete);

  // What is new comes first, whatever the order of the space.
  const TuneResult longer = processes.tune(31, {1, 2, 4, 8, 16});
  CHECK(processes.launched.back() == processes.hangs);
  CHECK(test::find(longer, {16, 0}).status == CandidateStatus::measured);
  CHECK(test::find(longer, {4, 0}).cut_seconds == 31);

  const TuneResult whole = processes.tune(0, {1, 2, 4, 8, 16});
  CHECK(processes.was_launched(processes.hangs));
  CHECK(test::find(whole, {4, 0}).status == CandidateStatus::hung);
  CHECK(test::find(whole, {4, 0}).cut_seconds == 0);
  CHECK(whole.complete);
}

TEST_CASE("a candidate that was cut off and ends with more time is like any other",
          "[runtime][tune][cut]") {
  Processes processes;
  CHECK(processes.tune(20).winner().config == Values{8, 0});
  processes.hangs.clear();
  const TuneResult longer = processes.tune(31);
  CHECK(longer.evaluated == 1);
  CHECK(longer.winner().config == Values{4, 0});
  CHECK(longer.winner().cut_seconds == 0);
  CHECK(longer.complete);
}

TEST_CASE("the default, too, takes no budget twice", "[runtime][tune][cut]") {
  Processes processes;
  processes.hangs = "k<2, 0>";
  const TuneResult first = processes.tune(20);
  CHECK(first.default_candidate().status == CandidateStatus::not_tried);
  CHECK(first.winner().config == Values{4, 0});
  const TuneResult same = processes.tune(20);
  CHECK_FALSE(processes.was_launched(processes.hangs));
  CHECK(same.winner().config == Values{4, 0});
}

TEST_CASE("a candidate that is cut off once it has a time keeps that, and is left alone",
          "[runtime][tune][cut]") {
  Processes processes;
  processes.after = 40;
  const TuneResult first = processes.tune(20);
  const Candidate& cut = test::find(first, {4, 0});
  CHECK(cut.status == CandidateStatus::measured);
  CHECK(cut.cut_seconds == 20);
  processes.after = 0;
  const TuneResult same = processes.tune(20, {1, 2, 4, 8, 16});
  CHECK_FALSE(processes.was_launched(processes.hangs));
  CHECK(test::find(same, {16, 0}).status == CandidateStatus::measured);
  CHECK(test::find(same, {4, 0}).status == CandidateStatus::measured);
}

TEST_CASE("a candidate that was cut off is tried again once its launch is another",
          "[runtime][tune][cut]") {
  Processes processes;
  processes.tune(20);
  processes.tune(20);
  CHECK_FALSE(processes.was_launched(processes.hangs));
  processes.shared_bytes = 16;
  processes.tune(20);
  CHECK(processes.was_launched(processes.hangs));
}

TEST_CASE("what the finals' first launches cut off is on record", "[runtime][tune][cut]") {
  Processes processes;
  processes.finals_hang = true;
  const TuneResult first = processes.tune(20, {2, 4});
  CHECK(processes.cuts == 2);
  for (const Candidate& c : first.candidates) {
    CHECK(c.status == CandidateStatus::measured);
    CHECK(c.cut_seconds == 20);
  }
  // What may hang does not win, however fast it was.
  processes.seconds_of_8 = 1;
  const TuneResult same = processes.tune(20, {2, 4, 8});
  CHECK(processes.launched == std::vector<std::string>{"k<8, 0>"});
  CHECK(same.winner().config == Values{8, 0});
}

TEST_CASE("a candidate that ends in later finals is like any other", "[runtime][tune][cut]") {
  Processes processes;
  processes.seconds_of_8 = 1.2e-4;
  processes.hangs = "k<8, 0>";
  processes.after = 10;
  const TuneResult first = processes.tune(20);
  CHECK(first.winner().config == Values{4, 0});
  CHECK(test::find(first, {8, 0}).status == CandidateStatus::measured);
  CHECK(test::find(first, {8, 0}).cut_seconds == 20);
  processes.hangs.clear();
  const TuneResult longer = processes.tune(31, {1, 2, 4, 8, 16});
  CHECK(processes.was_launched("k<8, 0>"));
  CHECK(test::find(longer, {8, 0}).cut_seconds == 0);
}

TEST_CASE("a candidate that is cut off does not run beside the others", "[runtime][tune][cut]") {
  Processes processes;
  processes.after = 10;
  std::vector<std::int64_t> many;
  for (std::int64_t a = 1; a <= 64; ++a) many.push_back(a);
  const TuneResult result = processes.tune(20, many);
  CHECK(test::find(result, {4, 0}).status == CandidateStatus::measured);
  CHECK(test::find(result, {4, 0}).cut_seconds == 20);
  CHECK(processes.cuts == 1);
  CHECK(result.winner().config == Values{8, 0});
}
