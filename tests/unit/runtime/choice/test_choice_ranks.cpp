// Choices of ranks: all of them use the same alternative, whichever of them has what.
#include "choice_ranks_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("ranks choose the alternative that is fastest on the slowest of them",
          "[choice][ranks]") {
  Job job(3);
  RankOptions settings = job.settings();
  settings.strategy = GENERATE(RankStrategy::replicate, RankStrategy::shard);
  job.set(settings);
  const double seconds = GENERATE(0.3 * kMs, 2 * kMs);
  const auto told = tune(job, [&](Process& process, int rank) {
    return kernel_or_mine(process, rank == 1 ? seconds : 0.3 * kMs);
  });
  check_chosen(told, seconds < kMs ? "mine" : "template");
}

TEST_CASE("a first launch is one agreement for its whole bucket, whatever wins",
          "[choice][ranks]") {
  Job job(2);
  const bool kernel_wins = GENERATE(false, true);
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, kernel_wins ? 3 * kMs : 0.3 * kMs);
    twice.bucket = to_64;
    const Chosen f = tuned(process.runtime(), twice);
    int before = 0;
    // Then each rank goes its own way.
    for (const int n : rank == 0 ? std::vector{40, 40, 41, 64} : std::vector{42, 40, 63}) {
      Buffers data(n);
      f({}, data.y.data(), data.x.data(), n);
      findings.check(data.doubled());
      findings.check(f.chosen({n}).name == (kernel_wins ? "template" : "mine"));
      const int now = ends[static_cast<std::size_t>(rank)]->calls;
      findings.check(before == 0 ? now > 0 : now == before);
      before = now;
    }
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("an alternative that one rank lacks takes no part on any", "[choice][ranks]") {
  Job job(3);
  SECTION("because it cannot do the problem there") {
    const auto told = tune(job, [](Process& process, int rank) {
      Doubling twice = kernel_or_mine(process, 0.3 * kMs);
      if (rank == 2)
        twice.alternatives.back().supports = [](const auto&, const DeviceInfo&) {
          return std::string("not here");
        };
      return twice;
    });
    check_chosen(told, "template");
    CHECK(told[0].result.left_out == std::vector<LeftOut>{{"mine", "rank 2 does not have it"}});
    CHECK(told[2].result.left_out == std::vector<LeftOut>{{"mine", "not here"}});
  }
  SECTION("because it is another version there") {
    const auto told = tune(job, [](Process& process, int rank) {
      Doubling twice = kernel_or_mine(process, 0.3 * kMs);
      if (rank == 1) twice.alternatives.back().version = "2";
      return twice;
    });
    check_chosen(told, "template");
    CHECK(told[0].result.left_out == std::vector<LeftOut>{{"mine", "rank 1 has another one"}});
    CHECK(told[1].result.left_out == std::vector<LeftOut>{{"mine", "ranks 0, 2 have another one"}});
  }
  SECTION("because its knobs are others there") {
    const auto told = tune(job, [](Process& process, int rank) {
      Doubling twice = kernel_or_mine(process, 0.3 * kMs);
      twice.alternatives.back().knobs.parameter("blocks", {1, rank == 0 ? 2 : 4}, 1);
      return twice;
    });
    check_chosen(told, "template");
  }
  SECTION("because it is switched off there") {
    const auto told = job.run<Told>([](Process& process, int rank) {
      ChoiceOptions options;
      if (rank == 1) options.backends = {"-mine"};
      const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs), options);
      TuneResult result = f.tune({40});
      return Told{std::move(result), f.chosen({40}).name};
    });
    check_chosen(told, "template");
  }
  SECTION("and the kernel, too") {
    const auto told = job.run<Told>([](Process& process, int rank) {
      ChoiceOptions options;
      if (rank == 0) options.backends = {"-template"};
      const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 3 * kMs), options);
      TuneResult result = f.tune({40});
      return Told{std::move(result), f.chosen({40}).name};
    });
    check_chosen(told, "mine");
  }
}

TEST_CASE("what is in common is on record, also where a rank has more", "[choice][ranks]") {
  Job job(2);
  const Make make = [](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    twice.alternatives.push_back(way(process, "other", 0.1 * kMs));
    if (rank == 1) twice.alternatives.back().version = "2";
    return twice;
  };
  check_chosen(tune(job, make), "mine");
  job.restart();
  const auto again = tune(job, make);
  check_chosen(again, "mine");
  for (const Told& t : again) CHECK(t.result.from_store);
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
}

TEST_CASE("ranks that hold the same record measure nothing, and a lost one is made good",
          "[choice][ranks]") {
  Job job(2);
  const Make make = [](Process& process, int) { return kernel_or_mine(process, 0.3 * kMs); };
  check_chosen(tune(job, make), "mine");
  job.restart();
  check_chosen(tune(job, make), "mine");
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);

  fs::remove_all(job.directory(1).path());
  fs::create_directories(job.directory(1).path());
  job.restart();
  check_chosen(tune(job, make), "mine");
  job.restart();
  check_chosen(tune(job, make), "mine");
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
}

TEST_CASE("ranks with nothing in common are told so, and can agree on something else",
          "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    ChoiceOptions options;
    options.backends = {rank == 0 ? "mine" : "template"};
    const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs), options);
    findings.check_throws<UserError>(
        [&] { f.tune({40}); },
        rank == 0 ? "mine: rank 1 does not have it" : "template: rank 0 does not have it");
    return true;
  });
  CHECK(findings.wrong() == "");
  const Make make = [](Process& process, int) { return kernel_or_mine(process, 0.3 * kMs); };
  check_chosen(tune(job, make), "mine");
}

TEST_CASE("ranks that ask for different things find out", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs));
    const int n = rank == 0 ? 40 : 64;
    findings.check_throws<UserError>([&] { f.tune({n}); },
                                     "rank 1 does not ask for the same as rank 0");
    findings.check(f.tune({50}).agreed->why.empty());
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("without measuring, ranks agree on what all have on record", "[choice][ranks]") {
  Job job(2);
  const Make make = [](Process& process, int) { return kernel_or_mine(process, 0.3 * kMs); };
  check_chosen(tune(job, make), "mine");
  job.restart();
  const bool lost = GENERATE(false, true);
  if (lost) {
    fs::remove_all(job.directory(1).path());
    fs::create_directories(job.directory(1).path());
    job.restart();
  }
  for (const int r : {0, 1}) job[r].options.mode = Mode::untuned;
  const auto chosen = job.run<std::string>([&](Process& process, int rank) {
    const Chosen f = tuned(process.runtime(), make(process, rank));
    Buffers data(40);
    f({}, data.y.data(), data.x.data(), 40);
    return f.chosen({40}).name;
  });
  CHECK(chosen == std::vector<std::string>(2, lost ? "template" : "mine"));
}
