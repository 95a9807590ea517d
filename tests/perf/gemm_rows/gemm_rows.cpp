// Kiln's GEMM for a Python program that has PyTorch beside it: what scripts/gemm_rows.py loads. The
// memory and the streams are PyTorch's; both use the device's primary context.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "for_python.hpp"
#include "kiln/kernels/gemm.hpp"
#include "kiln/kiln.hpp"
#include "read_floor.hpp"

namespace {

using kiln::bfloat16;
using kiln::templates::gemm_kernel;
using kiln::templates::GemmProblem;
using Gemm = kiln::Bound<bfloat16*, const bfloat16*, const bfloat16*, int, int, int>;

struct Session {
  kiln::Runtime tuning{for_python::options_of(kiln::Mode::tune_now)};
  kiln::Runtime untuning{for_python::options_of(kiln::Mode::untuned)};
  decltype(tuning.tuned(gemm_kernel<bfloat16>())) tuned = tuning.tuned(gemm_kernel<bfloat16>());
  decltype(tuned) untuned = untuning.tuned(gemm_kernel<bfloat16>());
  kiln::DynamicTuned read = tuning.tuned(read_floor());
  std::optional<Gemm> chosen[3];  ///< by the default strategy, untuned, exhaustively
  std::optional<kiln::DynamicBound> floor;
  std::vector<kiln::Candidate> fastest;  ///< by the tuner's times
  GemmProblem problem{};
};

std::size_t failures(const kiln::TuneResult& result) {
  return result.count(kiln::CandidateStatus::wrong_result) +
         result.count(kiln::CandidateStatus::launch_failed);
}

std::string failure;

}  // namespace

extern "C" {

const char* gemm_rows_failure() { return failure.c_str(); }

void* gemm_rows_open() {
  Session* session = nullptr;
  for_python::attempt(failure, [&] { session = new Session; });
  return session;
}

void gemm_rows_close(void* session) { delete static_cast<Session*>(session); }

/// Tunes a problem, and readies what runs untuned. `text` receives JSON: seconds that tuning took,
/// candidates compiled, configs.
int gemm_rows_tune(void* handle, int m, int n, int k, double max_seconds, std::size_t evaluations,
                   char* text, std::size_t size) {
  return for_python::attempt(failure, [&] {
    Session& s = *static_cast<Session*>(handle);
    s.problem = {m, n, k};
    for (std::optional<Gemm>& chosen : s.chosen) chosen.reset();
    kiln::TuneOptions options;
    options.max_seconds = max_seconds;
    options.max_evaluations = evaluations;
    const auto start = std::chrono::steady_clock::now();
    const kiln::TuneResult result = s.tuned.tune(s.problem, options);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    s.chosen[0].emplace(s.tuned.at(s.problem));
    s.chosen[1].emplace(s.untuned.at(s.problem));
    const auto definition = gemm_kernel<bfloat16>().definition();
    const auto untuned = kiln::to_values(s.untuned.config(s.problem));
    auto candidates = result.candidates;
    std::erase_if(candidates, [](const kiln::Candidate& c) {
      return c.status != kiln::CandidateStatus::measured;
    });
    std::ranges::sort(candidates, {}, &kiln::Candidate::seconds);
    s.fastest = std::move(candidates);
    std::snprintf(text, size,
                  "{\"seconds\": %.3f, \"evaluated\": %zu, \"failed\": %zu, \"winner\": \"%s\", "
                  "\"untuned\": \"%s\"}",
                  took.count(), result.evaluated, failures(result),
                  definition.space.describe(result.winner().config).c_str(),
                  definition.space.describe(kiln::Values(untuned.begin(), untuned.end())).c_str());
  });
}

/// From now on `tuned` is what was `place`th in that tuning's list of times, from 0. `text`
/// receives its time then, and its config. Fails where there are not so many.
int gemm_rows_choose(void* handle, std::size_t place, char* text, std::size_t size) {
  return for_python::attempt(failure, [&] {
    Session& s = *static_cast<Session*>(handle);
    const kiln::Candidate& candidate = s.fastest.at(place);
    s.chosen[0].emplace(
        s.tuned.with_config(kiln::from_values<kiln::templates::Gemm>(candidate.config))
            .at(s.problem));
    std::snprintf(text, size, "%.2f us, %s", candidate.seconds * 1e6,
                  gemm_kernel<bfloat16>().definition().space.describe(candidate.config).c_str());
  });
}

/// Readies a kernel that reads `pieces` times 16 bytes, and tunes it.
int gemm_rows_tune_read(void* handle, long long pieces) {
  return for_python::attempt(failure, [&] {
    Session& s = *static_cast<Session*>(handle);
    s.floor.emplace(s.read.at({pieces}));
  });
}

/// Asynchronous on `stream`. `sum` is one word.
int gemm_rows_read(void* handle, void* stream, void* sum, const void* array, long long pieces) {
  return for_python::attempt(failure, [&] {
    (*static_cast<const Session*>(handle)->floor)(kiln::Stream{stream}, static_cast<unsigned*>(sum),
                                                  static_cast<const unsigned*>(array), pieces);
  });
}

/// Tunes the problem that was tuned last again, by trying every config of its list. `text` receives
/// JSON: whether all were tried, how many, the winner.
int gemm_rows_exhaust(void* handle, double max_seconds, char* text, std::size_t size) {
  return for_python::attempt(failure, [&] {
    Session& s = *static_cast<Session*>(handle);
    kiln::TuneOptions options;
    options.strategy = "exhaustive";
    options.max_seconds = max_seconds;
    options.retune = true;
    const kiln::TuneResult result = s.tuned.tune(s.problem, options);
    s.chosen[2].emplace(s.tuned.at(s.problem));
    std::snprintf(
        text, size,
        "{\"seconds\": %.3f, \"complete\": %s, \"evaluated\": %zu, \"failed\": %zu, "
        "\"winner\": \"%s\"}",
        result.wall_seconds, result.complete ? "true" : "false", result.evaluated, failures(result),
        gemm_kernel<bfloat16>().definition().space.describe(result.winner().config).c_str());
  });
}

/// `which`: 0 tuned, 1 untuned, 2 exhaustively tuned. Asynchronous on `stream`.
int gemm_rows_launch(void* handle, int which, void* stream, void* c, const void* a, const void* b) {
  return for_python::attempt(failure, [&] {
    const Session& s = *static_cast<const Session*>(handle);
    (*s.chosen[which])(kiln::Stream{stream}, static_cast<bfloat16*>(c),
                       static_cast<const bfloat16*>(a), static_cast<const bfloat16*>(b),
                       s.problem.m, s.problem.n, s.problem.k);
  });
}
}
