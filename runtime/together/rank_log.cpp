#include "runtime/together/rank_log.hpp"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <ctime>
#include <system_error>

#include <unistd.h>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/measure/statistics.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

std::string file_name(std::string_view name, int rank) {
  std::string text(name.empty() ? "kiln" : name);
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-' && c != '_') c = '_';
  return format("{}.rank-{}.log", text, rank);
}

/// `2026-01-31T12:00:00.125Z`.
std::string now() {
  using namespace std::chrono;
  const auto time = system_clock::now();
  const std::time_t seconds = system_clock::to_time_t(time);
  const auto thousandths = duration_cast<milliseconds>(time.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return format("{}.{:03}Z", text, thousandths);
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text)
    if (c == '\n')
      line += "\\n";
    else
      line += c == '\r' ? ' ' : c;
  return line;
}

std::string describe(const TuneResult& result, const Candidate& candidate) {
  std::string text =
      format("candidate {}: {}", result.describe(candidate), kiln::to_string(candidate.status));
  if (candidate.status != CandidateStatus::measured)
    return candidate.reason.empty() ? text : text + ": " + candidate.reason;
  text += format(", {:.6g} ms", candidate.seconds * 1e3);
  if (!candidate.samples.empty())
    text += format(" (median of {} samples of this rank {:.6g} ms)", candidate.samples.size(),
                   median(candidate.samples) * 1e3);
  return text;
}

}  // namespace

RankLog::RankLog(const std::filesystem::path& folder, std::string_view name, int rank, int size) {
  try {
    std::filesystem::path where = folder;
    if (where.empty()) where = detail::environment("KILN_RANK_LOGS");
    if (where.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(where, ignored);
    path_ = where / file_name(name, rank);
    file_.reset(std::fopen(path_.c_str(), "ae"));
    line(format("rank {} of {}, process {}", rank, size, ::getpid()));
  } catch (const std::exception&) {
    file_.reset();
  }
}

void RankLog::line(std::string_view text) noexcept {
  if (!file_) return;
  try {
    const std::string whole = now() + " " + one_line(text) + "\n";
    std::lock_guard lock(mutex_);
    std::fwrite(whole.data(), 1, whole.size(), file_.get());
    std::fflush(file_.get());
  } catch (const std::exception&) {
  }
}

void RankLog::result(const TuneResult& result) noexcept {
  if (!file_) return;
  try {
    std::string subject = result.kernel;
    for (std::size_t i = 0; i < result.problem.size(); ++i)
      subject += format("{}{}={}", i ? "," : " ", result.problem_fields[i], result.problem[i]);
    for (const Candidate& candidate : result.candidates)
      line(subject + ": " + describe(result, candidate));
    for (const LeftOut& one : result.left_out)
      line(format("{}: {} takes no part: {}", subject, one.name, one.why));
    for (const std::string& warning : result.warnings) line(subject + ": warning: " + warning);
    std::string versions;
    for (const KeyField& v : result.versions)
      versions += format("{}{} {}", versions.empty() ? "" : ", ", v.name, v.value);
    line(subject + ": versions: " + versions);
    if (const auto& agreed = result.agreed)
      line(format("{}: agreed by {} ranks: {}{}{}{}", subject, agreed->size,
                  kiln::to_string(agreed->outcome),
                  agreed->plan_digest.empty() ? "" : ", plan " + agreed->plan_digest,
                  agreed->why.empty() ? "" : ", because: " + agreed->why,
                  agreed->broken ? "; the communicator is broken" : ""));
    if (!result.candidates.empty())
      line(format("{}: winner {}{}, {:.3g} times the default's speed", subject,
                  result.describe(result.winner()), result.from_store ? " (from the store)" : "",
                  result.speedup()));
  } catch (const std::exception&) {
  }
}

}  // namespace kiln::runtime
