// Choices of ranks of which one fails, gives up, or does not come.
#include <array>
#include <atomic>
#include <set>

#include "choice_ranks_fixture.hpp"
#include "kiln_test.hpp"
#include "runtime/together/measuring_together.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("what fails on one rank is chosen on none", "[choice][ranks]") {
  Job job(2);
  const int how = GENERATE(0, 1, 2, 3);
  const auto told = tune(job, [&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    if (rank == 1)
      twice.alternatives.back().call = [&process, how](const auto&, Stream, float* y,
                                                       const float* x, int n) {
        if (how == 0) throw std::runtime_error("not today");
        if (how == 3) throw 7;
        for (int i = 0; i < n; ++i) y[i] = how == 1 ? 0 : 2 * x[i];
        if (how == 2) const_cast<float*>(x)[0] += 1;
        process.device->pass(0.1 * kMs);
      };
    return twice;
  });
  check_chosen(told, "template");
}

TEST_CASE("what was wrong on one rank is launched on none, whatever the problem",
          "[choice][ranks]") {
  Job job(2);
  const auto ran = job.run<std::string>([](Process& process, int rank) {
    Doubling twice = not_for_41(process, 0.1 * kMs);
    twice.alternatives.insert(twice.alternatives.begin(), way(process, "wrong", 0.3 * kMs));
    if (rank == 1)
      twice.alternatives.front().call = [](const auto&, Stream, float* y, const float*, int n) {
        std::fill_n(y, n, 7.0F);
      };
    const Chosen f = tuned(process.runtime(), twice);
    return launched(process, f, 40) + ", " + launched(process, f, 41);
  });
  CHECK(ran == std::vector<std::string>(2, "mine, " + typed_entry(2)));
}

TEST_CASE("a rank that does not come is named in time, and what was decided holds",
          "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs));
    f.prepare({40});
    findings.check(f.chosen({40}).name == "mine");
    if (rank == 1) return true;
    TuneOptions impatient = process.options.tuning;
    impatient.together.first_seconds = 0.5;
    findings.check_throws<EnvironmentError>([&] { f.tune({40}, impatient); }, "rank 1");
    findings.check(launched(process, f, 40) == "mine");
    // This rank's end is broken.
    findings.check_throws<EnvironmentError>([&] { f.prepare({50}); }, "choice twice for n=50");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a rank that is not told what has failed elsewhere launches the winner alone",
          "[choice][ranks]") {
  int last = -1;  // of the reductions
  for (const bool is_cut : {false, true}) {
    Job job(2);
    wait_at_most(job, is_cut ? patient(1) : 30);
    Watched& end = job.watch(1);
    if (is_cut)
      end.after_reduce = [&](int nth) {
        if (nth == last) throw std::runtime_error("cut off");
      };
    const auto ran = job.run<std::string>([&](Process& process, int rank) {
      Doubling twice = not_for_41(process, 0.1 * kMs);
      twice.alternatives.insert(twice.alternatives.begin(), way(process, "wrong", 0.3 * kMs));
      if (rank == 0)
        twice.alternatives.front().call = [](const auto&, Stream, float* y, const float*, int n) {
          std::fill_n(y, n, 7.0F);
        };
      const Chosen f = tuned(process.runtime(), twice);
      return launched(process, f, 40) + ", " + launched(process, f, 41);
    });
    last = end.reductions - 1;
    CHECK(ran[0] == "mine, " + typed_entry(2));
    if (is_cut)
      CHECK_THAT(ran[1], Catch::StartsWith("mine, ") && Catch::Contains("no candidate"));
    else
      CHECK(ran[1] == ran[0]);
  }
}

TEST_CASE("whenever a rank is cut off, no two ranks launch different things", "[choice][ranks]") {
  const bool kernel_wins = GENERATE(false, true), default_is_wrong = GENERATE(false, true);
  int last = 0;  // call of a communicator
  for (int cut = -1; cut <= last; ++cut) {
    CAPTURE(kernel_wins, default_is_wrong, cut);
    Job job(2);
    wait_at_most(job, cut < 0 ? 30 : patient(1));
    Watched& end = job.watch(1);
    end.before = [cut](int nth) {
      if (nth == cut) throw std::runtime_error("cut off");
    };
    using Launched = std::vector<std::string>;
    const auto ran = job.run<Launched>([&](Process& process, int rank) {
      Doubling twice = not_for_41(process, kernel_wins ? 3 * kMs : 0.3 * kMs);
      (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
      if (default_is_wrong && rank == 1) (*process.script)[typed_entry(2)].run = [](void**) {};
      const Chosen f = tuned(process.runtime(), twice);
      Launched all;
      for (const int n : {40, 41, 40}) all.push_back(launched(process, f, n));
      return all;
    });
    if (cut < 0) {
      last = end.calls - 1;
      const std::string first = kernel_wins ? typed_entry(4) : "mine";
      CHECK(ran == std::vector<Launched>(2, {first, typed_entry(4), first}));
    }
    for (std::size_t i = 0; i < ran[0].size(); ++i) {
      std::set<std::string> names;  // errors are none
      for (const Launched& by_rank : ran)
        for (const std::string& name : {std::string("mine"), typed_entry(2), typed_entry(4)})
          if (by_rank[i].starts_with(name)) names.insert(name);
      CAPTURE(i, ran[0][i], ran[1][i]);
      CHECK(names.size() < 2);
    }
  }
  CHECK(last > 8);
}

TEST_CASE("a rank that is busy for too long tells the others", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  std::atomic<bool> is_busy = false, ends = false;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    twice.workload = [&](const DoublingProblem& p, Workload& w) {
      typed_doubling().workload(p, w);
      if (p.n != 50) return;
      is_busy = true;
      is_busy.notify_all();
      ends.wait(false);
    };
    const Chosen f = tuned(process.runtime(), twice);
    TuneOptions impatient = process.options.tuning;
    impatient.together.first_seconds = rank == 1 ? 30 : 3;
    if (rank == 1) {
      is_busy.wait(false);
      findings.check_throws<EnvironmentError>([&] { f.tune({40}, impatient); }, "rank 0 gave up");
      return true;
    }
    TuneOptions by_itself;
    by_itself.ranks = alone();
    const std::jthread other([&] { f.tune({50}, by_itself); });
    is_busy.wait(false);
    findings.check_throws<EnvironmentError>([&] { f.tune({40}, impatient); }, "for too long");
    ends = true;
    ends.notify_all();
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a rank that gives up is named by the others, and all can try again", "[choice][ranks]") {
  Job job(3);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = of_callables({way(process, "first", kMs), way(process, "second", 0.3 * kMs)});
    static thread_local bool refuse;
    refuse = rank == 2;
    twice.bucket = [](const DoublingProblem& p) {
      if (refuse) throw 7;
      return p;
    };
    if (rank == 1)
      twice.alternatives.front().supports = [](const auto&, const DeviceInfo&) {
        return std::string("not here");
      };
    const Chosen f = tuned(process.runtime(), twice);
    if (rank == 2) {
      bool thrown = false;
      try {
        f.tune({40});
      } catch (int) {
        thrown = true;
      }
      findings.check(thrown);
    } else {
      findings.check_throws<EnvironmentError>([&] { f.tune({40}); }, "rank 2 gave up");
    }
    refuse = false;
    findings.check(launched(process, f, 40) == "second");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("what an alternative throws while it says what it can do reaches all ranks",
          "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    int asked = 0;
    if (rank == 1)
      twice.alternatives.back().supports = [&](const auto&, const DeviceInfo&) {
        if (++asked == 1) throw std::runtime_error("no handle");
        return std::string();
      };
    const Chosen f = tuned(process.runtime(), twice);
    findings.check_throws<std::exception>([&] { f.tune({40}); },
                                          rank == 0 ? "rank 1 gave up: no handle" : "no handle");
    findings.check(f.tune({40}).agreed->why.empty());
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("where all alternatives fail on a rank, launches fail on all, once", "[choice][ranks]") {
  Job job(2);
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = of_callables({way(process, "first", kMs), way(process, "second", kMs)});
    if (rank == 1)
      for (DoublingWay& w : twice.alternatives)
        w.call = [](const auto&, Stream, float*, const float*, int) {
          throw std::runtime_error("not today");
        };
    const Chosen f = tuned(process.runtime(), twice);
    Buffers data(40);
    int calls = 0;
    for (int time = 0; time < 2; ++time) {
      findings.check_throws<TuningFailedError>([&] { f({}, data.y.data(), data.x.data(), 40); });
      const int now = ends[static_cast<std::size_t>(rank)]->calls;
      findings.check(time == 0 ? now > 0 : now == calls);
      calls = now;
    }
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("where a rank has no data, all launch what they have decided so far", "[choice][ranks]") {
  Job job(3);
  const auto ran = job.run<std::string>([](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    if (rank == 1)
      twice.workload = [](const DoublingProblem&, Workload&) { throw UserError("no data"); };
    const Chosen f = tuned(process.runtime(), twice);
    return launched(process, f, 40);
  });
  CHECK(ran == std::vector<std::string>(3, typed_entry(4)));
}

TEST_CASE("a rank that gives up late asks no other again", "[choice][ranks]") {
  Job job(2);
  Watched& end = job.watch(1);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    if (rank == 1) process.options.tuning.together.guard = [](const auto& work) { work(); };
    const Chosen f = tuned(process.runtime(), of_callables({way(process, "first", kMs)}));
    if (rank == 0) {
      findings.check(launched(process, f, 40) == "first");
      return true;
    }
    int calls = 0;
    for (int time = 0; time < 2; ++time) {
      findings.check_throws<UserError>([&] { f.prepare({40}); }, "`guard` is for kernels");
      findings.check(time == 0 || end.calls == calls);
      calls = end.calls;
    }
    return true;
  });
  CHECK(findings.wrong() == "");
  // The ranks are still together.
  job[1].options.tuning.together.guard = {};
  check_chosen(tune(job, [](Process& process, int) { return kernel_or_mine(process, 0.3 * kMs); }),
               "mine");
}

TEST_CASE("what was decided holds where a later tuning comes to nothing", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    bool fails = false;
    twice.workload = [&, workload = typed_doubling().workload](const DoublingProblem& p,
                                                               Workload& w) {
      if (fails) throw std::runtime_error("no data");
      workload(p, w);
    };
    const Chosen f = tuned(process.runtime(), twice);
    findings.check(f.tune({40}).agreed->why.empty());
    fails = rank == 1;
    const TuneResult result = f.tune({40}, anew(process));
    findings.check(result.agreed->why.find("no data") != std::string::npos);
    findings.check(launched(process, f, 40) == "mine");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("what one rank lacks for an exact problem is no reason to launch something else",
          "[choice][ranks]") {
  Job job(2);
  const bool in_user_code = GENERATE(false, true);
  const auto ran = job.run<std::string>([&](Process& process, int rank) {
    Doubling twice = not_for_41(process, 0.1 * kMs);
    twice.alternatives.insert(twice.alternatives.begin(), way(process, "first", 0.3 * kMs));
    if (rank == 1)
      twice.alternatives.front().workspace = [&](Named, const DoublingProblem& p) -> std::size_t {
        if (p.n != 41) return 0;
        if (in_user_code) throw UserError("no memory");
        throw EnvironmentError("no memory");
      };
    const Chosen f = tuned(process.runtime(), twice);
    return launched(process, f, 40) + ", " + launched(process, f, 41);
  });
  CHECK(ran == std::vector<std::string>{"mine, first", "mine, no memory"});
}

TEST_CASE("a problem that a rank cannot make ready as decided is not launched as before",
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
    twice.alternatives[0].workspace = [&](Named, const DoublingProblem& p) -> std::size_t {
      if (refuse && p.n == 41) throw EnvironmentError("no memory just now");
      return 0;
    };
    const Chosen f = tuned(process.runtime(), twice);
    for (const int n : {41, 42}) f.prepare({n});
    seconds = 3 * kMs;
    refuse = rank == 1;
    if (rank == 1)
      findings.check_throws<EnvironmentError>([&] { f.tune({64}, anew(process)); }, "no memory");
    else
      f.tune({64}, anew(process));
    findings.check(launched(process, f, 42) == "first");
    findings.check(launched(process, f, 41) == (rank == 1 ? "no memory just now" : "first"));
    refuse = false;
    for (const int n : {41, 42, 64}) findings.check(launched(process, f, n) == "first");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("in step every rank makes as many launches of an alternative, whatever it is worth",
          "[choice][ranks]") {
  Job job(2);
  job.in_step();
  const bool throws = GENERATE(true, false);
  std::array<std::atomic<int>, 2> launches{};
  const auto told = tune(job, [&](Process& process, int rank) {
    kernel_takes(process, kMs);
    Typed kernel = typed_doubling();
    kernel.draws = {1, 1, 1};
    Doubling twice = choice(kernel, "twice");
    twice.alternatives.push_back(way(process, "mine", 0.3 * kMs));
    twice.alternatives.back().call = [&launches, throws, rank](const auto&, Stream, float* y,
                                                               const float* x, int n) {
      ++launches[static_cast<std::size_t>(rank)];
      if (rank == 1 && throws) throw std::runtime_error("not today");
      for (int i = 0; i < n; ++i) y[i] = rank == 1 ? 0 : 2 * x[i];
    };
    return twice;
  });
  check_chosen(told, "template");
  CHECK(launches[0] > 3);
  CHECK(launches[1] == launches[0].load());
}

TEST_CASE("inside of a measurement ranks use what they have decided, and decide nothing",
          "[choice][ranks]") {
  Job job(2);
  Findings findings;
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    twice.bucket = to_64;
    const Chosen f = tuned(process.runtime(), twice);
    f.prepare({40});
    const int calls = ends[static_cast<std::size_t>(rank)]->calls;
    const runtime::MeasuringTogether here;
    f.prepare({41});
    findings.check(f.chosen({41}).name == "mine");
    findings.check_throws<UserError>([&] { f.prepare({100}); }, "inside of a measurement");
    findings.check_throws<UserError>([&] { f.tune({40}); }, "inside of a measurement");
    findings.check(ends[static_cast<std::size_t>(rank)]->calls == calls);
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("inside of a measurement nothing is waited for that may wait for the ranks",
          "[choice][ranks]") {
  Job job(2);
  wait_at_most(job, 0.5);
  Process& process = job[0];
  static std::atomic<bool> is_asked;
  is_asked = false;
  Doubling twice = kernel_or_mine(process, 0.3 * kMs);
  twice.bucket = [](const DoublingProblem& p) {
    is_asked = true;
    is_asked.notify_all();
    return p;
  };
  const Chosen f = tuned(process.runtime(), twice);
  std::unique_lock turn = process.options.tuning.ranks->turn();
  Findings findings;
  std::jthread launches([&] { findings.check_throws<EnvironmentError>([&] { f.prepare({40}); }); });
  is_asked.wait(false);
  {
    const runtime::MeasuringTogether here;
    CHECK_THROWS_AS(f.prepare({40}), UserError);
    std::jthread measures([&] {
      const runtime::MeasuringTogether there;
      findings.check_throws<UserError>([&] { f.tune({40}); }, "inside of a measurement");
    });
  }
  turn.unlock();
  launches.join();
  CHECK(findings.wrong() == "");
}

TEST_CASE("inside of a measurement a decided problem is not waited for, either",
          "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    twice.bucket = to_64;
    std::atomic<bool> is_held = false, ends = false;
    twice.alternatives.back().workspace = [&](Named, const DoublingProblem& p) -> std::size_t {
      if (p.n != 41 || is_held.exchange(true)) return 0;
      is_held.notify_all();
      ends.wait(false);
      return 0;
    };
    const Chosen f = tuned(process.runtime(), twice);
    f.prepare({40});
    std::jthread other([&] { f.prepare({41}); });
    is_held.wait(false);
    {
      const runtime::MeasuringTogether here;
      findings.check(launched(process, f, 41) == "mine");
    }
    ends = true;
    ends.notify_all();
    other.join();
    findings.check(f.chosen({41}).name == "mine");
    return true;
  });
  CHECK(findings.wrong() == "");
}
