#include <cerrno>
#include <cstring>
#include <system_error>

#include <nlohmann/json.hpp>
#include <unistd.h>
#include <zlib.h>

#include "kiln/error.hpp"
#include "kiln/recorded.hpp"

namespace kiln {

namespace {

using nlohmann::ordered_json;

/// Text that appears under its name once it is complete; compressed if the name ends in .gz.
class Output {
 public:
  explicit Output(const std::filesystem::path& file)
      : file_(file), temporary_(file.string() + "." + std::to_string(::getpid()) + ".part") {
    std::error_code ignored;
    // Replacing a device or a pipe would take it away from its other users; for a link, its target
    // is replaced.
    if (std::filesystem::is_symlink(file_, ignored))
      file_ = std::filesystem::weakly_canonical(file_, ignored);
    if (file_.empty() || (std::filesystem::exists(file_, ignored) &&
                          !std::filesystem::is_regular_file(file_, ignored)))
      throw UserError("'" + file_.string() + "' is not a file that T4 can be written to");
    errno = 0;
    gz_ = gzopen(temporary_.c_str(), file.extension() == ".gz" ? "wb" : "wbT");
    if (!gz_) fail("open", errno);
  }
  ~Output() {
    if (gz_) gzclose_w(gz_);
    std::error_code ignored;
    if (!complete_) std::filesystem::remove(temporary_, ignored);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write(const std::string& text) {
    errno = 0;
    if (gzwrite(gz_, text.data(), static_cast<unsigned>(text.size())) !=
        static_cast<int>(text.size()))
      fail("write", errno);
  }
  void commit() {
    errno = 0;
    const int code = gzclose_w(std::exchange(gz_, nullptr));
    if (code != Z_OK) fail("close", errno);
    std::error_code error;
    std::filesystem::rename(temporary_, file_, error);
    if (error) fail("rename", error.value());
    complete_ = true;
  }

 private:
  [[noreturn]] void fail(const char* call, int code) const {
    throw EnvironmentError(std::string(call) + " of " + file_.string() + " failed: " +
                           (code ? std::strerror(code) : "not all of the data was written"));
  }

  std::filesystem::path file_, temporary_;
  gzFile gz_ = nullptr;
  bool complete_ = false;
};

/// Null: the candidate says nothing about the kernel.
const char* invalidity(CandidateStatus status) {
  switch (status) {
    case CandidateStatus::measured:
      return "correct";
    case CandidateStatus::exceeds_limits:
      return "constraints";
    case CandidateStatus::compile_failed:
      return "compile";
    case CandidateStatus::launch_failed:
    case CandidateStatus::crashed:
    case CandidateStatus::out_of_memory:
      return "runtime";
    case CandidateStatus::hung:
      return "timeout";
    case CandidateStatus::wrong_result:
      return "correctness";
    case CandidateStatus::violates_constraint:
    case CandidateStatus::not_tried:
      break;
  }
  return nullptr;
}

template <class T>
ordered_json named(const std::vector<std::string>& names, const T& values) {
  ordered_json object = ordered_json::object();
  for (std::size_t i = 0; i < names.size() && i < values.size(); ++i) object[names[i]] = values[i];
  return object;
}

ordered_json entry(const TuneResult& result, const Candidate& candidate, const char* word) {
  const bool measured = candidate.status == CandidateStatus::measured;
  ordered_json runtimes = ordered_json::array(), measurements = ordered_json::array();
  if (measured) {
    for (double s : candidate.samples) runtimes.push_back(s * 1e3);
    measurements.push_back(
        {{"name", "time"}, {"value", candidate.seconds * 1e3}, {"unit", "milliseconds"}});
  }
  return {{"configuration", named(result.parameters, candidate.config)},
          {"times", {{"runtimes", runtimes}}},
          {"invalidity", word},
          {"correctness", candidate.status == CandidateStatus::wrong_result ? 0 : 1},
          {"measurements", measurements},
          {"objectives", {"time"}}};
}

}  // namespace

void write_t4(const TuneResult& result, const std::filesystem::path& file) {
  if (result.count(CandidateStatus::measured) == 0)
    throw UserError("T4 for " + file.string() + ": no candidate was measured");
  ordered_json metadata{{"timeunit", "milliseconds"},
                        {"kernel", result.kernel},
                        {"types", result.types},
                        {"problem", named(result.problem_fields, result.problem)},
                        {"device", result.device}};
  const auto text = [](const ordered_json& value) {
    return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  Output out(file);
  out.write("{\"schema_version\":\"1.0.0\",\"metadata\":" + text(metadata) + ",\"results\":[");
  const char* separator = "\n";
  for (const Candidate& candidate : result.candidates) {
    const char* word = invalidity(candidate.status);
    if (!word) continue;
    out.write(separator + text(entry(result, candidate, word)));
    separator = ",\n";
  }
  out.write("\n]}\n");
  out.commit();
}

}  // namespace kiln
