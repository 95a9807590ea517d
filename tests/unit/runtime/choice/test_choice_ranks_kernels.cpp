// Choices of ranks whose kernels cannot be tuned, or launched, everywhere.
#include "choice_ranks_fixture.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("kernels that one rank cannot tune are launched on none", "[choice][ranks]") {
  Job job(2);
  const int how = GENERATE(0, 1, 2);
  const bool with_another = GENERATE(false, true);
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  const auto ran = job.run<std::string>([&](Process& process, int rank) {
    Doubling twice = not_for_41(process, 0.3 * kMs);
    if (rank == 1) {
      // The first time it is asked.
      static thread_local int asked;
      static thread_local int thrown;
      asked = 0;
      thrown = how;
      Typed kernel = typed_doubling();
      kernel.bucket = +[](const DoublingProblem& p) -> DoublingProblem {
        if (asked++ > 0) return p;
        if (thrown == 0) throw UserError("no bucket");
        if (thrown == 1) throw std::runtime_error("no bucket");
        throw 7;
      };
      twice.alternatives.front() = alternative(kernel);
    }
    Typed other = typed_doubling();
    other.name = "other";
    other.bucket = exactly;
    if (with_another) twice.alternatives.push_back(alternative(other, "other"));
    const Chosen f = tuned(process.runtime(), twice);
    std::string all = launched(process, f, 40);
    const int calls = ends[static_cast<std::size_t>(rank)]->calls;
    all += ", " + launched(process, f, 41);
    if (ends[static_cast<std::size_t>(rank)]->calls != calls) all += ", and asked the others";
    return all;
  });
  CHECK(ran[0] == ran[1]);
  CHECK_THAT(ran[0], Catch::StartsWith("mine, "));
  CHECK_THAT(ran[0], Catch::Contains(with_another ? typed_entry(2) : "no candidate can be used: "));
}

TEST_CASE("a choice is not complete where a rank could not tune its kernel", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    static thread_local bool refuse;
    refuse = rank == 1;
    kernel_takes(process, 0.1 * kMs);
    Typed kernel = typed_doubling();
    kernel.bucket = [](const DoublingProblem& p) {
      if (refuse) throw UserError("not now");
      return p;
    };
    Doubling twice = choice(kernel, "twice");
    twice.bucket = exactly;
    twice.alternatives.push_back(way(process, "mine", 0.3 * kMs));
    const Chosen f = tuned(process.runtime(), twice);
    for (const char* winner : {"mine", "template"}) {
      const bool complete = std::string(winner) == "template";
      findings.check(f.tune({40}).complete == complete);
      findings.check(f.known({40})->complete == complete);
      findings.check(f.chosen({40}).name == winner);
      refuse = false;
    }
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("where ranks come to nothing, a kernel that failed on one is not launched there",
          "[choice][ranks]") {
  Job job(3);
  const bool comes_first = GENERATE(false, true);
  std::vector<const Watched*> ends;
  for (const int r : {0, 1, 2}) ends.push_back(&job.watch(r));
  Findings findings;
  const auto ran = job.run<std::string>([&](Process& process, int rank) {
    static thread_local bool refuse;
    refuse = rank == 1;
    Doubling twice = not_for_41(process, 0.1 * kMs);
    Typed kernel = typed_doubling();
    kernel.bucket = exactly;
    kernel.space = kernel.space.where(
        "it is asked", [](const DoublingConfig& c, const DoublingProblem&, const DeviceLimits&) {
          if (refuse && c.a == 8) throw UserError("not now");
          return true;
        });
    twice.alternatives.front() = alternative(kernel);
    if (!comes_first) std::swap(twice.alternatives[0], twice.alternatives[1]);
    twice.workload = typed_doubling().workload;
    if (rank == 2)
      twice.workload = [](const DoublingProblem&, Workload&) { throw UserError("no data"); };
    (*process.script)[typed_entry(4)].seconds = 0.5 * kMs;
    const Chosen f = tuned(process.runtime(), twice);
    if (!comes_first) findings.check(launched(process, f, 40) == "mine");
    const int calls = ends[static_cast<std::size_t>(rank)]->calls;
    const std::string one = launched(process, f, 41);
    findings.check(comes_first || ends[static_cast<std::size_t>(rank)]->calls == calls);
    return one;
  });
  CHECK(findings.wrong() == "");
  CHECK(ran[0] == typed_entry(2));
  CHECK_THAT(ran[1], Catch::Contains(comes_first ? "not now" : "no config of it"));
  CHECK(ran[2] == ran[0]);
}

TEST_CASE("a forced kernel that one rank cannot tune is an error there", "[choice][ranks]") {
  Job job(2);
  const bool tunes = GENERATE(false, true);
  const Watched& end = job.watch(1);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Typed kernel = typed_doubling();
    kernel.bucket = exactly;
    if (rank == 1)
      kernel.bucket = [](const DoublingProblem&) -> DoublingProblem { throw UserError("not now"); };
    Doubling twice = choice(kernel, "twice");
    twice.bucket = to_64;
    ChoiceOptions options;
    options.choose = "template";
    const Chosen f = tuned(process.runtime(), twice, options);
    if (rank == 0) {
      if (tunes) f.tune({40});
      findings.check(launched(process, f, 40) == typed_entry(2));
      return true;
    }
    if (tunes) findings.check_throws<EnvironmentError>([&] { f.tune({40}); }, "not now");
    findings.check(launched(process, f, 40) == "not now");
    const int calls = end.calls;
    findings.check(launched(process, f, 41) == "not now");
    findings.check(end.calls == calls);
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a kernel that is wrong on all ranks is launched on none", "[choice][ranks]") {
  Job job(2);
  const bool stopped = GENERATE(false, true);
  std::vector<const Watched*> ends;
  for (const int r : {0, 1}) ends.push_back(&job.watch(r));
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    for (const int a : {1, 2, 4, 8}) {
      (*process.script)[typed_entry(a)].seconds = kMs;
      if (!stopped || a == 2) (*process.script)[typed_entry(a)].run = [](void**) {};
    }
    std::stop_source stop;
    if (stopped) {
      process.device->on_launch = [&](const std::string&, void**) { stop.request_stop(); };
      process.options.tuning.stop = stop.get_token();
    }
    Doubling twice = choice(typed_doubling(), "twice");
    twice.bucket = to_64;
    const Chosen f = tuned(process.runtime(), twice);
    int calls = 0;
    for (const int n : {40, 40, rank == 0 ? 41 : 42}) {
      Buffers data(n);
      findings.check_throws<Error>([&] { f({}, data.y.data(), data.x.data(), n); });
      const int now = ends[static_cast<std::size_t>(rank)]->calls;
      findings.check(calls == 0 ? now > 0 : now == calls);
      calls = now;
    }
    process.device->on_launch = nullptr;
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a rank that loses its device to a kernel holds no other up", "[choice][ranks]") {
  Job job(2);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = kernel_or_mine(process, 0.3 * kMs);
    Typed other = typed_doubling();
    other.name = "other";
    twice.alternatives.push_back(alternative(other, "other"));
    if (rank == 1) (*process.script)[typed_entry(4)].launch_error = "device lost";
    const Chosen f = tuned(process.runtime(), twice);
    const TuneResult result = f.tune({40});
    findings.check(result.agreed->outcome == Outcome::plan);
    findings.check(launched(process, f, 40) == "mine");
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a winner on record that one rank cannot tune any more is launched on none",
          "[choice][ranks]") {
  Job job(2);
  const Make make = [](Process& process, int) {
    Doubling twice = kernel_or_mine(process, 2 * kMs);
    twice.bucket = exactly;
    twice.alternatives.insert(twice.alternatives.begin() + 1, way(process, "slow", 3 * kMs));
    return twice;
  };
  check_chosen(tune(job, make), "template");
  job.restart();
  const Mode mode = GENERATE(Mode::tune_now, Mode::untuned);
  for (const int r : {0, 1}) job[r].options.mode = mode;
  const auto ran = job.run<std::string>([&](Process& process, int rank) {
    Doubling twice = make(process, rank);
    Typed kernel = typed_doubling();
    kernel.bucket = exactly;
    if (rank == 1)
      kernel.bucket = [](const DoublingProblem&) -> DoublingProblem { throw UserError("not now"); };
    twice.alternatives.front() = alternative(kernel);
    return launched(process, tuned(process.runtime(), twice), 40);
  });
  CHECK(ran == std::vector<std::string>(2, mode == Mode::tune_now ? "mine" : "slow"));
}

TEST_CASE("a default config that one rank cannot build is launched on none", "[choice][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].options.mode = Mode::untuned;
  const auto ran = job.run<std::string>([](Process& process, int rank) {
    if (rank == 1) (*process.script)[typed_entry(2)].compile_log = "not here";
    const Chosen f = tuned(process.runtime(), kernel_or_mine(process, 0.3 * kMs));
    return launched(process, f, 40);
  });
  CHECK(ran == std::vector<std::string>(2, "mine"));
}

TEST_CASE("a kernel that has another default on each rank is launched on none", "[choice][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].options.mode = Mode::untuned;
  const bool is_only = GENERATE(false, true);
  const auto ran = job.run<std::string>([&](Process& process, int rank) {
    static thread_local int base;
    base = rank == 0 ? 2 : 4;
    Typed kernel = typed_doubling();
    kernel.default_for = [](const DoublingProblem&, const DeviceLimits&) {
      return std::optional(DoublingConfig{base, 0});
    };
    Doubling twice = choice(kernel, "twice");
    if (!is_only) twice.alternatives.push_back(way(process, "mine", kMs));
    return launched(process, tuned(process.runtime(), twice), 40);
  });
  CHECK(ran[0] == ran[1]);
  CHECK_THAT(ran[0], Catch::Contains(is_only ? "no candidate can be used" : "mine"));
}

TEST_CASE("ranks without anything to launch hear that another one has failed", "[choice][ranks]") {
  Job job(2);
  wait_at_most(job, 1);
  const auto ran = job.run<std::string>([](Process& process, int rank) {
    static thread_local bool refuse;
    refuse = rank == 1;
    Typed kernel = typed_doubling();
    kernel.bucket = [](const DoublingProblem& p) {
      if (std::exchange(refuse, false)) throw UserError("no bucket");
      return p;
    };
    kernel.launch = [](const DoublingConfig&, const DoublingProblem&) { return Launch{{0}, {1}}; };
    Doubling twice = choice(kernel, "twice");
    twice.bucket = exactly;
    twice.alternatives.push_back(way(process, "mine", kMs));
    return launched(process, tuned(process.runtime(), twice), 40);
  });
  CHECK(ran == std::vector<std::string>(2, "mine"));
}

TEST_CASE("a forced kernel that one rank cannot time is decided there, too", "[choice][ranks]") {
  Job job(2);
  wait_at_most(job, 1);
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    Doubling twice = choice(typed_doubling(), "twice");
    twice.workload = [workload = typed_doubling().workload, rank](const DoublingProblem& p,
                                                                  Workload& w) {
      if (rank == 1) throw UserError("no data");
      workload(p, w);
    };
    ChoiceOptions options;
    options.choose = "template";
    const Chosen f = tuned(process.runtime(), twice, options);
    if (rank == 0)
      f.tune({40});
    else
      findings.check_throws<UserError>([&] { f.tune({40}); }, "no data");
    findings.check(launched(process, f, 40) == typed_entry(2));
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("what ranks have tuned of an edited source is launched, although its config is the same",
          "[choice][ranks]") {
  const Directory directory, files;
  const fs::path file = files.path() / "k.cuh";
  Process process(directory.path());
  process.options.tuning.ranks = alone();
  int launched_version = 0;
  const auto write = [&](int version) {
    write_text(file, "// version " + std::to_string(version));
    for (const int a : {1, 2, 4, 8}) {
      Behaviour& behaviour = (*process.script)[typed_entry(a)];
      behaviour.variables["version"] = {static_cast<std::byte>(version)};
      behaviour.run_with = [&](void** args, auto& variables) {
        launched_version = static_cast<int>(variables.at("version").front());
        float* const y = *static_cast<float**>(args[0]);
        const float* const x = *static_cast<const float**>(args[1]);
        for (int i = 0; i < *static_cast<const int*>(args[2]); ++i) y[i] = 2 * x[i];
      };
    }
  };
  write(1);
  Typed kernel = typed_doubling();
  kernel.source.text.clear();
  kernel.source.file = file;
  const Chosen f = tuned(process.runtime(), choice(kernel, "twice"));
  for (const int version : {1, 2}) {
    write(version);
    f.tune({40});
    CHECK(launched(process, f, 40) == typed_entry(2));
    CHECK(launched_version == version);
  }
}
