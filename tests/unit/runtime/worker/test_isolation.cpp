// What decides where candidates run.
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/worker/isolation.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Variable() {
    if (before_)
      ::setenv(name_, before_->c_str(), 1);
    else
      ::unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::string refusal(const auto& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("where candidates run is asked for, or goes by a variable", "[runtime][isolation]") {
  {
    const Variable none("KILN_ISOLATION", "");
    CHECK(isolation_mode({}) == Isolation::after_fault);
    CHECK(isolation_mode(Isolation::off) == Isolation::off);
  }
  const Variable always("KILN_ISOLATION", "always");
  CHECK(isolation_mode({}) == Isolation::always);
  CHECK(isolation_mode(Isolation::off) == Isolation::off);
  const Variable off("KILN_ISOLATION", "off");
  CHECK(isolation_mode({}) == Isolation::off);
  const Variable after("KILN_ISOLATION", "after_fault");
  CHECK(isolation_mode({}) == Isolation::after_fault);
  for (const char* text : {"on", "1", "Always", "off "}) {
    const Variable wrong("KILN_ISOLATION", text);
    CHECK(refusal([] { isolation_mode({}); }) ==
          "KILN_ISOLATION is '" + std::string(text) + "': it must be off, after_fault or always");
    CHECK(isolation_mode(Isolation::always) == Isolation::always);  // it is not looked at
  }
}

TEST_CASE("how long a candidate may take is asked for, or goes by a variable",
          "[runtime][isolation]") {
  TuneOptions tuning;
  {
    const Variable none("KILN_CANDIDATE_SECONDS", "");
    CHECK(worker_options(tuning).candidate_seconds == 0);
    CHECK(worker_options(tuning).executable.filename() == "kiln-worker");
  }
  const Variable two("KILN_CANDIDATE_SECONDS", "2.5");
  CHECK(worker_options(tuning).candidate_seconds == 2.5);
  for (const char* text : {"0", "-1", "nan", "inf", "2s", "two", " 2"}) {
    const Variable wrong("KILN_CANDIDATE_SECONDS", text);
    CHECK(refusal([&] { worker_options(tuning); }) ==
          "KILN_CANDIDATE_SECONDS is '" + std::string(text) +
              "': it must be a number of seconds above 0");
  }
  tuning.candidate_seconds = 7;
  tuning.max_seconds = 9;
  const WorkerOptions options = worker_options(tuning);
  CHECK(options.candidate_seconds == 7);
  CHECK(options.most_seconds == 9);
  for (const double wrong :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    tuning.candidate_seconds = wrong;
    CHECK_FALSE(refusal([&] { check(tuning); }).empty());
  }
}
