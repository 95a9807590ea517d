// Kiln's GEMM as a choice for scripts/gemm_choices.py; see gemm_rows.cpp.
#include "kiln/kernels/gemm_choice.hpp"

#include <chrono>
#include <cstdio>
#include <string>

#include "for_python.hpp"
#include "kiln/kiln.hpp"

namespace {

using kiln::bfloat16;
using kiln::templates::GemmProblem;

struct Chooser {
  kiln::Runtime runtime{for_python::options_of(kiln::Mode::tune_now)};
  decltype(kiln::tuned(runtime, kiln::templates::gemm_choice<bfloat16>())) gemm =
      kiln::tuned(runtime, kiln::templates::gemm_choice<bfloat16>());
  GemmProblem problem{};
};

std::string choice_failure;

}  // namespace

extern "C" {

const char* gemm_choice_failure() { return choice_failure.c_str(); }

void* gemm_choice_open() {
  Chooser* chooser = nullptr;
  for_python::attempt(choice_failure, [&] { chooser = new Chooser; });
  return chooser;
}

void gemm_choice_close(void* handle) { delete static_cast<Chooser*>(handle); }

/// `text` receives JSON: seconds that tuning took, the alternative and its text, how much faster it
/// is than the default, and why cuBLASLt takes no part, if it does not.
int gemm_choice_tune(void* handle, int m, int n, int k, double max_seconds, char* text,
                     std::size_t size) {
  return for_python::attempt(choice_failure, [&] {
    Chooser& chooser = *static_cast<Chooser*>(handle);
    chooser.problem = {m, n, k};
    kiln::TuneOptions options;
    options.max_seconds = max_seconds;
    const auto start = std::chrono::steady_clock::now();
    const kiln::TuneResult result = chooser.gemm.tune(chooser.problem, options);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const kiln::ChosenAlternative chosen = chooser.gemm.chosen(chooser.problem);
    std::snprintf(
        text, size,
        "{\"seconds\": %.3f, \"alternative\": \"%s\", \"text\": \"%s\", \"speedup\": %.4f, "
        "\"candidates\": %zu, \"absent\": \"%s\"}",
        took.count(), chosen.name.c_str(), chosen.text.c_str(), result.speedup(),
        result.candidates.size(),
        chooser.gemm.alternatives(chooser.problem).front().why_not.c_str());
  });
}

/// Asynchronous on `stream`.
int gemm_choice_launch(void* handle, void* stream, void* c, const void* a, const void* b) {
  return for_python::attempt(choice_failure, [&] {
    const Chooser& chooser = *static_cast<const Chooser*>(handle);
    chooser.gemm(kiln::Stream{stream}, static_cast<bfloat16*>(c), static_cast<const bfloat16*>(a),
                 static_cast<const bfloat16*>(b), chooser.problem.m, chooser.problem.n,
                 chooser.problem.k);
  });
}
}
