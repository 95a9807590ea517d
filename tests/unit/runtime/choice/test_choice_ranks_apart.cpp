// Choices of ranks that differ: in what they have, remember, launch before, or are asked.
#include "choice_ranks_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("an alternative in front that one rank does not list takes no part", "[choice][ranks]") {
  Job job(2);
  check_chosen(tune(job,
                    [](Process& process, int rank) {
                      Doubling twice = kernel_or_mine(process, 0.3 * kMs);
                      if (rank == 0)
                        twice.alternatives.insert(twice.alternatives.begin(),
                                                  way(process, "lib", 0.1 * kMs));
                      return twice;
                    }),
               "mine");
}

TEST_CASE("what one rank has alone is not launched for an exact problem, either",
          "[choice][ranks]") {
  Job job(2);
  const auto ran = job.run<std::string>([](Process& process, int rank) {
    std::vector<DoublingWay> ways{way(process, "first", kMs), way(process, "mine", 0.3 * kMs)};
    ways.back().supports = [](const DoublingProblem& p, const DeviceInfo&) {
      return std::string(p.n == 41 ? "not 41" : "");
    };
    if (rank == 0) {
      ways.insert(ways.begin(), way(process, "lib", 0.1 * kMs));
      ways.front().knobs.parameter("k", {1, 2}, 1);
    }
    Doubling twice = of_callables(std::move(ways));
    twice.bucket = to_64;
    const Chosen f = tuned(process.runtime(), twice);
    return launched(process, f, 40) + ", " + launched(process, f, 41);
  });
  CHECK(ran == std::vector<std::string>(2, "mine, first"));
}

TEST_CASE("a config means what it did when ranks decided on it", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice =
        of_callables({way(process, "lib", 0.1 * kMs), way(process, "mine", 0.3 * kMs)});
    twice.bucket = to_64;
    twice.alternatives[0].knobs.parameter("k", {1, 2}, 1);
    if (rank == 1) twice.alternatives[0].version = "2";
    twice.alternatives[1].knobs.parameter("blocks", {4, 8}, 8);
    std::set<std::int64_t> seen;
    twice.alternatives[1].call = [&seen, call = twice.alternatives[1].call](
                                     const auto& how, Stream s, float* y, const float* x, int n) {
      seen.insert(how.knobs["blocks"]);
      call(how, s, y, x, n);
    };
    const Chosen f = tuned(process.runtime(), twice);
    f.prepare({40});
    findings.check(f.chosen({40}).name == "mine");
    findings.check(f.alternatives({40})[0].why_not ==
                   (rank == 0 ? "rank 1 has another one" : "rank 0 has another one"));
    seen.clear();
    for (const int n : {41, 42}) {
      Buffers data(n);
      f({}, data.y.data(), data.x.data(), n);
      findings.check(f.chosen({n}).text.find("mine.blocks=8") != std::string::npos);
    }
    findings.check(seen == std::set<std::int64_t>{8});
    findings.check(f.known({40}).has_value());
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("ranks with other time limits agree all the same", "[choice][ranks]") {
  Job job(2);
  job[0].options.tuning.max_seconds = 20;
  const auto chosen = job.run<std::string>([&](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    twice.bucket = [](const DoublingProblem& p) { return p; };
    const Chosen f = tuned(process.runtime(), twice);
    f.prepare({40});
    f.prepare({41});
    return f.chosen({41}).name;
  });
  CHECK(chosen == std::vector<std::string>(2, "mine"));
}

TEST_CASE("threads of a rank that launch a bucket's problems first are one agreement",
          "[choice][ranks]") {
  Job job(2);
  const Watched& end = job.watch(0);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0);
    twice.bucket = to_64;
    twice.alternatives.back().call = [&process](const auto&, Stream, float* y, const float* x,
                                                int n) {
      for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
      process.device->pass(0.3 * kMs);
    };
    const Chosen f = tuned(process.runtime(), twice);
    f.prepare({100});
    const int calls = end.calls;
    {
      std::vector<std::jthread> threads;
      for (const int n : {40, 41, 42})
        threads.emplace_back([&, n] {
          f.prepare({n});
          findings.check(f.chosen({n}).name == "mine");
        });
    }
    findings.check(rank == 1 || end.calls == 2 * calls);
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a rank that no alternative suits tells the others", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = of_callables({way(process, "first", kMs), way(process, "second", kMs)});
    if (rank == 1)
      for (DoublingWay& w : twice.alternatives)
        w.supports = [](const auto&, const DeviceInfo&) { return std::string("not here"); };
    const Chosen f = tuned(process.runtime(), twice);
    Buffers data(40);
    // The second time each of them by itself.
    for (int time = 0; time < 2; ++time) {
      findings.check_throws<UserError>([&] { f({}, data.y.data(), data.x.data(), 40); },
                                       rank == 0 ? "first: rank 1 does not have it" : "not here");
      findings.check(ends[static_cast<std::size_t>(rank)]->calls == 1);
    }
    return true;
  });
  CHECK(findings.wrong() == "");
  check_chosen(tune(job, [](Process& process, int) { return kernel_or_mine(process, 0.3 * kMs); }),
               "mine");
}

TEST_CASE("what no rank can do changes no record: ranks and a process alone share it",
          "[choice][ranks]") {
  Job job(2);
  const Make make = [](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    twice.alternatives.push_back(way(process, "other", 2 * kMs));
    twice.alternatives[1].supports = [](const auto&, const DeviceInfo&) {
      return std::string("not for this problem");
    };
    return twice;
  };
  check_chosen(tune(job, make), "template");
  job.restart();
  for (const int r : {0, 1}) {
    job[r].options.tuning.ranks = nullptr;
    const Chosen alone = tuned(job[r].runtime(), make(job[r], r));
    CHECK(alone.known({40}));
    CHECK(alone.tune({40}).from_store);
  }
}

TEST_CASE("ranks that list their alternatives in another order are told so", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = of_callables({way(process, "first", kMs), way(process, "second", 0.3 * kMs)});
    if (rank == 1) std::swap(twice.alternatives[0], twice.alternatives[1]);
    const Chosen f = tuned(process.runtime(), twice);
    findings.check_throws<UserError>([&] { f.tune({40}); },
                                     "rank 1 lists its alternatives in another order than rank 0");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("ranks on unlike devices agree on a choice as on its kernel", "[choice][ranks]") {
  Job job(2);
  check_chosen(tune(job,
                    [](Process& process, int rank) {
                      if (rank == 1) process.device->info().fingerprint = {{"model", "Fake 2000"}};
                      return kernel_or_mine(process, 3 * kMs);
                    }),
               "template");
}

TEST_CASE("ranks come to the same where a config is not for an exact problem", "[choice][ranks]") {
  Job job(2);
  const auto divides = [](std::span<const std::int64_t> c, std::span<const std::int64_t> p,
                          const DeviceLimits&) { return p[0] % c[0] == 0; };
  const bool of_kernel = GENERATE(false, true);
  const auto ran = job.run<std::string>([&](Process& process, int rank) {
    kernel_takes(process, kMs);
    (*process.script)[typed_entry(8)].seconds = 0.1 * kMs;
    Typed kernel = typed_doubling();
    kernel.bucket = exactly;
    kernel.space =
        kernel.space.where("a divides n", [](const DoublingConfig& c, const DoublingProblem& p,
                                             const DeviceLimits&) { return p.n % c.a == 0; });
    Doubling twice = of_callables({way(process, "first", kMs), way(process, "mine", 0.3 * kMs)});
    twice.bucket = to_64;
    twice.alternatives[1].knobs.parameter("k", {8}, 8);
    twice.alternatives[1].knobs.where("k divides n", divides);
    if (of_kernel) twice.alternatives.push_back(alternative(kernel));
    const Chosen f = tuned(process.runtime(), twice);
    const std::string first = launched(process, f, rank == 0 ? 40 : 48);
    return first + ", " + launched(process, f, 41) + ", " + launched(process, f, 43);
  });
  CHECK(ran == std::vector<std::string>(
                   2, (of_kernel ? typed_entry(8) : std::string("mine")) + ", first, first"));
}

TEST_CASE("an alternative that is forced is agreed on, too", "[choice][ranks]") {
  Job job(2);
  const bool of_both = GENERATE(false, true);
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.1 * kMs);
    twice.bucket = to_64;
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    ChoiceOptions options;
    if (rank == 0 || of_both) options.choose = "template";
    const Chosen f = tuned(process.runtime(), twice, options);
    if (!of_both) {
      findings.check_throws<UserError>([&] { f.prepare({40}); }, "does not ask for the same");
      return true;
    }
    findings.check(launched(process, f, 40) == typed_entry(4));
    const int calls = ends[static_cast<std::size_t>(rank)]->calls;
    findings.check(launched(process, f, 41) == typed_entry(4));
    findings.check(ends[static_cast<std::size_t>(rank)]->calls == calls);
    const TuneResult result = f.tune({40});
    findings.check(result.winner().status == CandidateStatus::measured);
    findings.check(f.chosen({40}).forced);
    findings.check(!f.known({40}));
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("deterministic ranks launch the kernel's untuned config", "[choice][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].options.deterministic = true;
  const auto ran = job.run<std::string>([](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 0.1 * kMs);
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    ChoiceOptions options;
    options.choose = "template";
    return launched(process, tuned(process.runtime(), twice, options), 40);
  });
  CHECK(ran == std::vector<std::string>(2, typed_entry(2)));
}

TEST_CASE("an empty problem of a kernel is nothing to tune", "[choice][ranks]") {
  Job job(2);
  const auto ran = job.run<std::string>([](Process& process, int) {
    kernel_takes(process, kMs);
    const Chosen f = tuned(process.runtime(), choice(typed_doubling(), "twice"));
    const std::string first = launched(process, f, 0);
    return first + ", " + launched(process, f, 40);
  });
  CHECK(ran == std::vector<std::string>(2, "template, " + typed_entry(2)));
}

TEST_CASE("ranks that ask for a choice and for a kernel say so at once", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
    const Runtime runtime = process.runtime();
    if (rank == 0) return runtime.tuned(typed_doubling()).tune({40});
    const Chosen twice = tuned(runtime, kernel_or_mine(process, 0.3 * kMs));
    findings.check_throws<EnvironmentError>([&] { twice.tune({40}); },
                                            "rank 0 differs: it asks for the config of one");
    return {};
  });
  CHECK(findings.wrong() == "");
  CHECK_THAT(results[0].agreed->why, Catch::Contains("it asks for a choice among alternatives"));
  CHECK(results[0].wall_seconds < 10);  // ranks wait for 30
}
