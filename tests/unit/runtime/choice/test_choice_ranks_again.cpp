// Choices of ranks that are tuned again, in another process, mode or part of the ranks.
#include "choice_ranks_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("what a kernel is launched with moves with its ranks' decision", "[choice][ranks]") {
  Job job(2);
  const Mode mode = GENERATE(Mode::tune_now, Mode::background, Mode::untuned);
  for (const int r : {0, 1}) job[r].options.mode = mode;
  const auto ran = job.run<std::string>([](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 3 * kMs);
    twice.bucket = to_64;
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    const Chosen f = tuned(process.runtime(), twice);
    f.tune({64});
    if (rank == 0) f.prepare({41});
    std::string all = launched(process, f, 64);
    kernel_takes(process, kMs);
    (*process.script)[typed_entry(8)].seconds = 0.5 * kMs;
    f.tune({64}, anew(process));
    for (const int n : {64, 41}) all += ", " + launched(process, f, n);
    return all;
  });
  CHECK(ran == std::vector<std::string>(
                   2, typed_entry(4) + ", " + typed_entry(8) + ", " + typed_entry(8)));
}

TEST_CASE("tuning a bucket again asks no more of a rank that launches more of it",
          "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    double seconds = 0.3 * kMs;
    Doubling twice = kernel_or_mine(process, 0);
    twice.bucket = to_64;
    twice.alternatives.back().call = [&](const auto&, Stream, float* y, const float* x, int n) {
      for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
      process.device->pass(seconds);
    };
    const Chosen f = tuned(process.runtime(), twice);
    f.prepare({64});
    if (rank == 0) f.prepare({41});
    seconds = 3 * kMs;
    f.tune({64}, anew(process));
    for (const int n : {64, 41}) findings.check(f.chosen({n}).name == "template");
    findings.check(f.tune({128}, anew(process)).agreed->why.empty());
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("ranks launch one config of a kernel, whatever each remembers", "[choice][ranks]") {
  Job job(2);
  const Make make = [](Process& process, int) { return kernel_or_mine(process, 3 * kMs); };
  const auto launch = [&] {
    return job.run<std::string>([&](Process& process, int rank) {
      const Chosen f = tuned(process.runtime(), make(process, rank));
      (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
      f.tune({40});
      return launched(process, f, 40);
    });
  };
  CHECK(launch() == std::vector<std::string>(2, typed_entry(4)));
  job.restart();
  // Rank 1's kernel is tuned by itself meanwhile, and finds something else.
  {
    Process& process = job[1];
    kernel_takes(process, kMs);
    (*process.script)[typed_entry(8)].seconds = 0.5 * kMs;
    TuneOptions options;
    options.ranks = alone();
    options.retune = true;
    CHECK(process.runtime().tuned(typed_doubling()).tune({40}, options).winner().config ==
          Values{8, 0});
    (*process.script)[typed_entry(8)].seconds = kMs;
  }
  CHECK(launch() == std::vector<std::string>(2, typed_entry(4)));
}

TEST_CASE("a choice is measured again where its kernel was", "[choice][ranks]") {
  Job job(2);
  const auto run = [&](double of_kernel) {
    return tune(job, [&](Process& process, int) {
      Doubling twice = kernel_or_mine(process, 0.5 * kMs);
      kernel_takes(process, of_kernel);
      return twice;
    });
  };
  check_chosen(run(0.3 * kMs), "template");
  job.restart();
  // Ranks remember the kernel differently, and the choice alike.
  TuneOptions options;
  options.ranks = alone();
  options.retune = true;
  (*job[1].script)[typed_entry(8)].seconds = 0.1 * kMs;
  job[1].runtime().tuned(typed_doubling()).tune({40}, options);
  check_chosen(run(kMs), "mine");
}

TEST_CASE("records that differ are no decision", "[choice][ranks]") {
  Job job(2);
  // Each rank by itself, and for it alone another alternative is the fastest.
  job.run<bool>([](Process& process, int rank) {
    TuneOptions options;
    options.ranks = alone();
    tuned(process.runtime(), kernel_or_mine(process, rank == 0 ? 0.3 * kMs : 3 * kMs))
        .tune({40}, options);
    return true;
  });
  job.restart();
  const Mode mode = GENERATE(Mode::tune_now, Mode::untuned, Mode::lookup_only);
  for (const int r : {0, 1}) job[r].options.mode = mode;
  const auto ran = job.run<std::string>([](Process& process, int) {
    const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs));
    return launched(process, f, 40);
  });
  CHECK(ran == std::vector<std::string>(2, mode == Mode::tune_now ? "mine" : typed_entry(2)));
}

TEST_CASE("a launch that may not tune tunes no kernel, either", "[choice][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].options.mode = Mode::untuned;
  const bool only = GENERATE(false, true);
  const auto ran = job.run<std::string>([&](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    if (only) twice.alternatives.pop_back();
    (*process.script)[typed_entry(4)].seconds = 0.1 * kMs;
    const Chosen f = tuned(process.runtime(), twice);
    return launched(process, f, 40);
  });
  CHECK(ran == std::vector<std::string>(2, typed_entry(2)));
  for (const int r : {0, 1}) {
    CHECK(measured(job[r]) == 0);
    CHECK(job[r].compiler->compiles == 1);
  }
}

TEST_CASE("ranks use what was shipped with the program", "[choice][ranks]") {
  Job job(2, true);
  const Make make = [](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 3 * kMs);
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    return twice;
  };
  tune(job, make);
  const fs::path shipped = job[0].options.store.directory;
  job.restart();
  Directory fresh;
  for (const int r : {0, 1}) {
    job[r].options.mode = Mode::frozen;
    job[r].options.store.roots = {shipped};
    job[r].options.store.directory = fresh.path();
  }
  const auto ran = job.run<std::string>([&](Process& process, int rank) {
    const Chosen f = tuned(process.runtime(), make(process, rank));
    return launched(process, f, 40) + " " + f.chosen({40}).name;
  });
  CHECK(ran == std::vector<std::string>(2, typed_entry(4) + " template"));
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
}

TEST_CASE("a sealed runtime launches what its ranks have decided", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  job.run<bool>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    Doubling twice = kernel_or_mine(process, 3 * kMs);
    twice.bucket = to_64;
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    const Chosen f = tuned(runtime, twice);
    f.prepare({40});
    runtime.seal();
    const int calls = ends[static_cast<std::size_t>(rank)]->calls;
    findings.check(launched(process, f, 40) == typed_entry(4));
    Buffers data(41);
    findings.check_throws<UnpreparedError>([&] { f({}, data.y.data(), data.x.data(), 41); });
    f.prepare({41});
    findings.check(launched(process, f, 41) == typed_entry(4));
    findings.check(ends[static_cast<std::size_t>(rank)]->calls == calls);
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("on a sealed runtime no launch makes ready what its ranks have decided",
          "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    double seconds = 0.3 * kMs;
    Doubling twice = of_callables({way(process, "first", kMs), way(process, "mine", 0)});
    twice.bucket = to_64;
    twice.alternatives[1].call = [&](const auto&, Stream, float* y, const float* x, int n) {
      for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
      process.device->pass(seconds);
    };
    bool refuse = false;
    int asked = 0;
    twice.alternatives[0].workspace = [&](Named, const DoublingProblem& p) -> std::size_t {
      asked += p.n == 41;
      if (refuse && p.n == 41) throw EnvironmentError("no memory just now");
      return 0;
    };
    const Runtime runtime = process.runtime();
    const Chosen f = tuned(runtime, twice);
    f.prepare({41});
    seconds = 3 * kMs;
    refuse = rank == 1;
    if (rank == 1)
      findings.check_throws<EnvironmentError>([&] { f.tune({64}, anew(process)); }, "no memory");
    else
      f.tune({64}, anew(process));
    refuse = false;
    runtime.seal();
    asked = 0;
    Buffers data(41);
    const auto launch = [&] { f({}, data.y.data(), data.x.data(), 41); };
    if (rank == 1)
      findings.check_throws<UnpreparedError>(launch, "was not prepared");
    else
      launch();
    findings.check(asked == 0);
    f.prepare({41});
    findings.check(launched(process, f, 41) == "first");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("in the background launches of a choice ask no rank", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  for (const int r : {0, 1}) job[r].options.mode = Mode::background;
  const Watched& end = job.watch(0);
  job.run<bool>([&](Process& process, int rank) {
    const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs));
    if (rank == 0) {
      Buffers data(40);
      findings.check_throws<UserError>([&] { f({}, data.y.data(), data.x.data(), 40); },
                                       "prepare or tune it on all ranks first");
      findings.check_throws<UserError>([&] { f.chosen({40}); }, "prepare or tune it");
      findings.check(end.calls == 0);
    }
    f.prepare({40});
    findings.check(launched(process, f, 40) == typed_entry(2));
    f.tune({40});
    findings.check(launched(process, f, 40) == "mine");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a choice is not complete as long as its kernel is not", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  std::vector<int> timed;
  for (int time = 0; time < 3; ++time) {
    job.run<bool>([&](Process& process, int) {
      const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs));
      TuneOptions options = process.options.tuning;
      if (time == 0) options.max_evaluations = 2;
      const TuneResult result = f.tune({40}, options);
      findings.check(result.complete == (time > 0));
      findings.check(f.known({40})->complete == (time > 0));
      return true;
    });
    timed.push_back(measured(job[0]));
    job.restart();
  }
  CHECK(findings.wrong() == "");
  CHECK(timed[1] > 0);
  CHECK(timed[2] == 0);
}

TEST_CASE("ranks with one store save one complete record", "[choice][ranks]") {
  for (int time = 0; time < 4; ++time) {
    Job job(2, true);
    const Make make = [](Process& process, int) { return kernel_or_mine(process, 0.3 * kMs); };
    for (const Told& t : tune(job, make)) CHECK(t.result.complete);
    job.restart();
    check_chosen(tune(job, make), "mine");
    for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
  }
}

TEST_CASE("a rank may tune a choice by itself, and asks the others no more", "[choice][ranks]") {
  Job job(2);
  const int how = GENERATE(0, 1, 2);
  const Watched& end = job.watch(0);
  Process& process = job[0];
  Doubling twice = kernel_or_mine(process, 3 * kMs);
  twice.bucket = to_64;
  (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
  ChoiceOptions options;
  TuneOptions by_itself;
  by_itself.ranks = alone();
  if (how == 1) options.choose = "template";
  if (how == 2) options.tuning = by_itself;
  const Chosen f = tuned(process.runtime(), twice, options);
  if (how == 2)
    f.prepare({40});
  else
    CHECK(f.tune({40}, by_itself).winner().config.size() == 1);
  for (const int n : {40, 41}) CHECK(launched(process, f, n) == typed_entry(4));
  CHECK(end.calls == 0);
}

TEST_CASE("one rank is none: what is wrong is not launched", "[choice][ranks]") {
  Directory directory;
  Process process(directory.path());
  process.options.tuning.ranks = alone();
  DoublingWay wrong = way(process, "wrong", kMs);
  wrong.call = [](const auto&, Stream, float* y, const float*, int n) { std::fill_n(y, n, 7.0f); };
  const Chosen f = tuned(process.runtime(), of_callables({wrong}));
  Buffers data(40);
  CHECK_THROWS_AS(f({}, data.y.data(), data.x.data(), 40), TuningFailedError);
  CHECK_THROWS_AS(f.tune({40}), TuningFailedError);
}

TEST_CASE("what a part of the ranks finds no alternative for, all ranks may", "[choice][ranks]") {
  Job job(3);
  auto pair = thread_communicators(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = of_callables({way(process, "first", kMs), way(process, "second", 0.3 * kMs)});
    bool fails = true;
    for (DoublingWay& w : twice.alternatives)
      w.call = [&, call = w.call](const auto& how, Stream s, float* y, const float* x, int n) {
        if (fails) throw std::runtime_error("not today");
        call(how, s, y, x, n);
      };
    const Chosen f = tuned(process.runtime(), twice);
    if (rank < 2) {
      TuneOptions part = process.options.tuning;
      part.ranks = std::move(pair[static_cast<std::size_t>(rank)]);
      findings.check_throws<TuningFailedError>([&] { f.tune({40}, part); });
    }
    fails = false;
    findings.check(launched(process, f, 40) == "second");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("ranks may be given to a choice of a runtime without any", "[choice][ranks]") {
  Job job(2);
  const auto ran = job.run<std::string>([](Process& process, int) {
    const TuneOptions together = process.options.tuning;
    process.options.tuning = {};
    Doubling twice = kernel_or_mine(process, 3 * kMs);
    twice.bucket = to_64;
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    const Chosen f = tuned(process.runtime(), twice);
    f.tune({40}, together);
    return launched(process, f, 40) + launched(process, f, 41);
  });
  CHECK(ran == std::vector<std::string>(2, typed_entry(4) + typed_entry(4)));
}

TEST_CASE("in the background one rank asks no other, and launches", "[choice][ranks]") {
  Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::background;
  process.options.tuning.ranks = alone();
  const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs));
  CHECK(launched(process, f, 40) == typed_entry(2));
}

TEST_CASE("a winner on record that a rank cannot launch any more is warned of", "[choice][ranks]") {
  Job job(2);
  const Make make = [](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 2 * kMs);
    twice.bucket = exactly;
    return twice;
  };
  check_chosen(tune(job, make), "template");
  job.restart();
  for (const int r : {0, 1}) job[r].options.mode = Mode::lookup_only;
  const auto told = tune(job, [&](Process& process, int rank) {
    Doubling twice = make(process, rank);
    Typed kernel = typed_doubling();
    if (rank == 1)
      kernel.bucket = [](const DoublingProblem&) -> DoublingProblem { throw UserError("not now"); };
    twice.alternatives.front() = alternative(kernel);
    return twice;
  });
  for (const Told& t : told) {
    CHECK(t.chosen == "mine");
    CHECK(std::ranges::any_of(t.result.warnings, [](const std::string& w) {
      return w.find("has failed on a rank") != std::string::npos;
    }));
  }
}
