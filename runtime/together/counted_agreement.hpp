// What a runtime counts and tells of an agreement.
#pragma once

#include <cstddef>
#include <string>

#include "kiln/tune.hpp"
#include "runtime/support/telemetry.hpp"

namespace kiln::runtime {

/// One agreement, from here to end(); without that it has failed.
class CountedAgreement {
 public:
  CountedAgreement(Telemetry& telemetry, const std::string& first_kernel, std::size_t problems,
                   int rank)
      : counters_(telemetry.counters),
        span_(&telemetry.spans, "kiln.agree",
              {{"kernel", first_kernel},
               {"problems", std::to_string(problems)},
               {"rank", std::to_string(rank)}}) {}
  CountedAgreement(const CountedAgreement&) = delete;
  CountedAgreement& operator=(const CountedAgreement&) = delete;
  ~CountedAgreement() {
    counters_.agreements.add(outcome_);
    counters_.agreement_seconds.add(seconds_since(begin_));
  }

  void end(const RankReport& report) {
    outcome_ = to_string(report.outcome);
    span_.set("outcome", outcome_);
    span_.end();
  }

 private:
  Counters& counters_;
  const Clock::time_point begin_ = Clock::now();
  const char* outcome_ = "failed";
  SpanScope span_;
};

}  // namespace kiln::runtime
