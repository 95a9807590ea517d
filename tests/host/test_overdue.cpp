// Candidates in the program's own process, where nothing can end them, on the host target.
#include <string>
#include <string_view>
#include <thread>

#include "temporary_directory.hpp"
#include "trouble.hpp"

using namespace kiln;
using kiln::test::TemporaryDirectory;

namespace {

struct Program {
  explicit Program(const std::filesystem::path& store) {
    options.device = "host";
    options.store.directory = store;
    options.isolation = Isolation::off;
    options.compile_processes = 0;
    options.tuning.strategy = "exhaustive";
    options.log = [this](LogLevel level, std::string_view text) {
      if (level == LogLevel::warning) warnings += std::string(text) + "\n";
    };
  }
  bool told(std::string_view part) const { return warnings.find(part) != std::string::npos; }

  RuntimeOptions options;
  std::string warnings;
};

const KernelDefinition kNapping = trouble::kernel({trouble::slow, trouble::fast, trouble::naps});

}  // namespace

TEST_CASE("a candidate that takes too long in this process is told of while it runs",
          "[host][isolation]") {
  const TemporaryDirectory folder;
  {  // What has been measured before is on record with the late one.
    Program before(folder.path());
    before.options.tuning.max_evaluations = 2;
    const Runtime runtime(before.options);
    runtime.tuned(kNapping).tune({trouble::kProblem});
  }
  Program program(folder.path());
  program.options.tuning.candidate_seconds = trouble::kNap / 3.0;
  std::string overdue;
  std::thread::id told_on;
  std::optional<TuneResult> on_record;
  program.options.tuning.progress = [&](const TuneProgress& now) {
    if (now.overdue.empty()) return;
    overdue = now.overdue;
    told_on = std::this_thread::get_id();
    on_record = Runtime(Program(folder.path()).options).tuned(kNapping).known({trouble::kProblem});
  };
  const Runtime runtime(program.options);
  const TuneResult result = runtime.tuned(kNapping).tune({trouble::kProblem});

  CHECK(overdue == "mode=16");
  CHECK(told_on != std::this_thread::get_id());
  CHECK(program.told("trouble for n=20000 with mode=16: it has taken"));
  CHECK(program.told("nothing can end it; it is rejected"));
  CHECK(program.told("it has ended after"));
  const RuntimeMetrics metrics = runtime.metrics();
  CHECK(metrics.overdue_calls == 0);
  CHECK(metrics.overdue_calls_total == 1);
  const Candidate& late = trouble::of(result, trouble::naps);
  CHECK(late.status == CandidateStatus::hung);
  CHECK(late.reason.find("is the limit") != std::string::npos);
  CHECK(result.winner().config == Values{trouble::fast});

  // Had the program been ended meanwhile, the next one would not have tried it again.
  REQUIRE(on_record);
  CHECK(trouble::of(*on_record, trouble::naps).status == CandidateStatus::hung);
}

TEST_CASE("a candidate in this process takes the time that it needs where no limit is given",
          "[host][isolation]") {
  const TemporaryDirectory folder;
  Program program(folder.path());
  const Runtime runtime(program.options);
  const TuneResult result = runtime.tuned(kNapping).tune({trouble::kProblem});
  CHECK(trouble::of(result, trouble::naps).status == CandidateStatus::measured);
  CHECK(runtime.metrics().overdue_calls_total == 0);
}
