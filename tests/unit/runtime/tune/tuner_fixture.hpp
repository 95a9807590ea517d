// What the tests of the tuner share.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "kiln_test.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuner.hpp"
#include "unit/runtime/fake_kernel.hpp"

namespace kiln::test {

inline constexpr double kMs = 1e-3;

inline TuneResult tune_kernel(Bench& bench, const KernelDefinition& kernel, const Values& problem,
                              const TuneOptions& options = {},
                              const runtime::TuneContext& context = {}) {
  runtime::KernelMaker maker(kernel, problem, bench.device, bench.builder, options.seed);
  return runtime::tune(maker, options, context).result;
}

inline TuneResult tune(Bench& bench, const KernelDefinition& kernel,
                       const TuneOptions& options = {}, const TuneResult* prior = nullptr,
                       std::int64_t n = 100) {
  runtime::TuneContext context;
  context.prior = prior;
  return tune_kernel(bench, kernel, Values{n}, options, context);
}

inline const Candidate& find(const TuneResult& result, const Values& config) {
  for (const Candidate& c : result.candidates)
    if (c.config == config) return c;
  throw std::runtime_error("no such candidate");
}

inline std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kiln::test
