#include "runtime/serve/variables.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include <unistd.h>

#include "cache/size.hpp"
#include "kiln/communicator.hpp"
#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/support/log_file.hpp"
#include "runtime/tune/deterministic.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln::runtime {

namespace {

namespace fs = std::filesystem;
using kiln::detail::environment;
using kiln::detail::format;

constexpr unsigned kMostThreads = 4096;

[[noreturn]] void refuse(std::string_view name, std::string_view value, std::string_view accepted) {
  throw UserError(format("{} is '{}': it must be {}", name, value, accepted));
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || stop != text.data() + text.size()) return {};
  return number;
}

struct ModeName {
  Mode mode;
  const char* name;
};
constexpr ModeName kModes[] = {{Mode::tune_now, "tune_now"}, {Mode::background, "background"},
                               {Mode::untuned, "untuned"},   {Mode::lookup_only, "lookup_only"},
                               {Mode::frozen, "frozen"},     {Mode::collect, "collect"}};

std::string mode_option(const RuntimeOptions& options) {
  if (!options.mode) return {};
  return std::ranges::find(kModes, *options.mode, &ModeName::mode)->name;
}

std::string tune_option(const RuntimeOptions& options) {
  return !options.mode ? "" : *options.mode == Mode::tune_now ? "1" : "0";
}

void apply_mode(RuntimeOptions& options, std::string_view value) {
  const auto* const known = std::ranges::find(kModes, value, &ModeName::name);
  if (known == std::end(kModes))
    refuse("KILN_MODE", value, "tune_now, background, untuned, lookup_only, frozen or collect");
  options.mode = known->mode;
}

/// Beside KILN_MODE it may only say the same.
void apply_tune(RuntimeOptions& options, std::string_view value) {
  if (value != "0" && value != "1") refuse("KILN_TUNE", value, "0 or 1");
  const bool tunes = value == "1";
  if (options.mode &&
      tunes != (*options.mode == Mode::tune_now || *options.mode == Mode::background))
    throw UserError(format("KILN_TUNE is {}, which contradicts KILN_MODE={}: unset one of the two",
                           value, mode_option(options)));
  if (!options.mode) options.mode = tunes ? Mode::tune_now : Mode::untuned;
}

void apply_seconds(RuntimeOptions& options, std::string_view value) {
  const auto seconds = number_of<double>(value);
  if (!seconds || !std::isfinite(*seconds) || *seconds < 0)
    refuse("KILN_MAX_SECONDS", value, "a number of seconds, 0 or more; 0: no limit");
  options.tuning.max_seconds = *seconds;
}

void apply_evaluations(RuntimeOptions& options, std::string_view value) {
  const auto count = number_of<std::size_t>(value);
  if (!count) refuse("KILN_MAX_EVALUATIONS", value, "a whole number, 0 or more; 0: no limit");
  options.tuning.max_evaluations = *count;
}

void apply_reserve(RuntimeOptions& options, std::string_view value) {
  const auto bytes = cache::parse_size(value);
  if (!bytes) refuse("KILN_RESERVE", value, "a size such as 500M or 5G");
  options.reserve_bytes = *bytes;
}

void apply_threads(RuntimeOptions& options, std::string_view value) {
  const auto threads = number_of<unsigned>(value);
  if (!threads || *threads == 0 || *threads > kMostThreads)
    refuse("KILN_COMPILE_THREADS", value, format("a number from 1 to {}", kMostThreads));
  options.compile_threads = *threads;
}

void apply_measure(RuntimeOptions& options, std::string_view value) {
  if (value != "graph" && value != "eager") refuse("KILN_MEASURE", value, "graph or eager");
  options.tuning.launching = value == "eager" ? Launching::eager : Launching::graph;
}

std::string measure_option(const RuntimeOptions& options) {
  const auto& launching = options.tuning.launching;
  return !launching ? "" : *launching == Launching::eager ? "eager" : "graph";
}

void apply_deterministic(RuntimeOptions& options, std::string_view value) {
  options.deterministic = deterministic_from(value);
}

constexpr std::pair<OnUnprepared, const char*> kOnUnprepared[] = {
    {OnUnprepared::serve, "serve"}, {OnUnprepared::warn, "warn"}, {OnUnprepared::error, "error"}};

std::string unprepared_option(const RuntimeOptions& options) {
  for (const auto& [what, name] : kOnUnprepared)
    if (options.on_unprepared == what) return name;
  return {};
}

void apply_unprepared(RuntimeOptions& options, std::string_view value) {
  for (const auto& [what, name] : kOnUnprepared)
    if (value == name) {
      options.on_unprepared = what;
      return;
    }
  refuse("KILN_ON_UNPREPARED", value, "serve, warn or error");
}

std::string isolation_option(const RuntimeOptions& options) {
  if (!options.isolation) return {};
  return *options.isolation == Isolation::off      ? "off"
         : *options.isolation == Isolation::always ? "always"
                                                   : "after_fault";
}

LogLevel level_of(std::string_view value) {
  for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warning, LogLevel::error})
    if (value == to_string(level)) return level;
  refuse("KILN_LOG_LEVEL", value, "debug, info, warning or error");
}

/// The rank and the number of ranks, if there are any.
std::optional<std::pair<int, int>> place_of(const RuntimeOptions& options) {
  if (const auto& ranks = options.tuning.ranks) return std::pair(ranks->rank(), ranks->size());
  try {
    if (const auto place = rank_place_from_environment())
      return std::pair(place->rank, place->size);
  } catch (const UserError&) {
    // What needs the ranks reports what is wrong with the launcher's variables.
  }
  return {};
}

std::string file_name(std::string_view pattern, const RuntimeOptions& options) {
  std::string name;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      name += pattern[i];
      continue;
    }
    const char what = ++i < pattern.size() ? pattern[i] : '\0';
    if (what == '%') {
      name += '%';
    } else if (what == 'p') {
      name += std::to_string(getpid());
    } else if (what == 'r') {
      const auto place = place_of(options);
      name += std::to_string(place ? place->first : 0);
    } else {
      refuse("KILN_LOG_FILE", pattern,
             "a file name in which %p is the process, %r the rank and %% a percent sign");
    }
  }
  return name;
}

LogSink log_from_environment(const RuntimeOptions& options) {
  const std::string_view level = environment("KILN_LOG_LEVEL"), file = environment("KILN_LOG_FILE");
  if (level.empty() && file.empty()) return {};
  const LogLevel least = level.empty() ? LogLevel::info : level_of(level);
  return file.empty() ? log_to_standard_error(least) : log_to_file(file_name(file, options), least);
}

std::string joined(const std::vector<fs::path>& paths) {
  std::string text;
  for (const fs::path& path : paths) text += (text.empty() ? "" : ":") + path.string();
  return text;
}

template <class Number>
std::string unless_0(Number value) {
  return value == 0 ? std::string() : format("{}", value);
}

template <class Number>
std::string if_set(const std::optional<Number>& value) {
  return value ? format("{}", *value) : std::string();
}

std::string log_option(const RuntimeOptions& options) {
  return options.log ? "the program's own log" : "";
}

std::string sharing_option(const RuntimeOptions& options) {
  if (!options.store.sharing) return {};
  return *options.store.sharing == StoreSharing::group ? "group" : "user";
}

/// Of variables that stand in for no option.
std::string no_option(const RuntimeOptions&) { return {}; }

std::string size_problem(std::string_view value) {
  if (cache::parse_size(value)) return {};
  return format("'{}' is no size such as 500M or 5G", value);
}

std::string processes_problem(std::string_view) try {
  compile_plan({});
  return {};
} catch (const UserError& error) {
  return error.what();
}

std::string folder_problem(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error) && ::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return format("nothing can be written to the folder {}", folder.string());
}

/// The trace's folder is made when it is not there.
std::string trace_problem(std::string_view value) {
  fs::path folder = fs::absolute(fs::path(value));
  std::error_code error;
  while (folder.has_relative_path() && !fs::exists(folder, error)) folder = folder.parent_path();
  return folder_problem(folder);
}

constexpr OptionVariable kOptionVariables[] = {
    {"KILN_CACHE_DIR", [](auto& o) { return o.store.directory.string(); }, nullptr},
    {"KILN_CACHE_SIZE", [](auto& o) { return unless_0(o.store.max_bytes); }, nullptr, size_problem},
    {"KILN_CACHE_FILES", [](auto& o) { return unless_0(o.store.max_files); }, nullptr,
     size_problem},
    {"KILN_CACHE_SHARED", sharing_option, nullptr,
     [](std::string_view value) {
       return value == "user" || value == "group" ? std::string()
                                                  : format("'{}' is neither user nor group", value);
     }},
    {"KILN_ROOTS", [](auto& o) { return joined(o.store.roots); }, nullptr},
    {"KILN_BUNDLE_KEY", [](auto& o) { return o.store.bundle_key.string(); }, nullptr},
    {"KILN_COMPILE_PROCESSES",
     [](auto& o) { return o.compile_processes ? std::to_string(*o.compile_processes) : ""; },
     nullptr, processes_problem},
    {"KILN_MODE", mode_option, apply_mode},
    {"KILN_TUNE", tune_option, apply_tune},
    {"KILN_MAX_SECONDS", [](auto& o) { return if_set(o.tuning.max_seconds); }, apply_seconds},
    {"KILN_MAX_EVALUATIONS", [](auto& o) { return if_set(o.tuning.max_evaluations); },
     apply_evaluations},
    {"KILN_COMPILE_THREADS", [](auto& o) { return unless_0(o.compile_threads); }, apply_threads},
    {"KILN_MEASURE", measure_option, apply_measure},
    {"KILN_RESERVE", [](auto& o) { return if_set(o.reserve_bytes); }, apply_reserve},
    {"KILN_DETERMINISTIC",
     [](auto& o) { return o.deterministic ? std::string(*o.deterministic ? "1" : "0") : ""; },
     apply_deterministic},
    {"KILN_ON_UNPREPARED", unprepared_option, apply_unprepared},
    {"KILN_ISOLATION", isolation_option,
     [](auto& o, std::string_view) { o.isolation = isolation_mode({}); }},
    {"KILN_CANDIDATE_SECONDS", [](auto& o) { return unless_0(o.tuning.candidate_seconds); },
     [](auto&, std::string_view) { candidate_seconds(0); }},
    {"KILN_WANTED", no_option, nullptr,
     [](std::string_view value) {
       return folder_problem(fs::absolute(fs::path(value)).parent_path());
     }},
    {"KILN_TRACE", no_option, nullptr, trace_problem},
    {"KILN_LOG_LEVEL", log_option, [](auto&, std::string_view value) { level_of(value); }},
    {"KILN_LOG_FILE", log_option, [](auto& o, std::string_view value) { file_name(value, o); }},
};

/// Letters to insert, delete or replace.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

}  // namespace

std::span<const OptionVariable> option_variables() noexcept { return kOptionVariables; }

RuntimeOptions with_variables(RuntimeOptions given) {
  RuntimeOptions options = given;
  for (const OptionVariable& v : kOptionVariables)
    if (const std::string_view value = environment(v.variable);
        v.apply && !value.empty() && v.option(given).empty())
      v.apply(options, value);
  if (!options.log) options.log = log_from_environment(options);
  return options;
}

TuneLimits limits_from_environment() {
  RuntimeOptions options;
  if (const auto value = environment("KILN_MAX_SECONDS"); !value.empty())
    apply_seconds(options, value);
  if (const auto value = environment("KILN_MAX_EVALUATIONS"); !value.empty())
    apply_evaluations(options, value);
  if (const auto value = environment("KILN_MEASURE"); !value.empty()) apply_measure(options, value);
  return {options.tuning.max_seconds, options.tuning.max_evaluations, options.tuning.launching};
}

std::optional<Spans::File> trace_from_environment(const RuntimeOptions& options) {
  const std::string_view value = environment("KILN_TRACE");
  if (value.empty()) return {};
  const fs::path folder = fs::absolute(fs::path(value));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || ::access(folder.c_str(), W_OK | X_OK) != 0)
    throw EnvironmentError(format("KILN_TRACE: nothing can be written to the folder {}: {}",
                                  folder.string(),
                                  error ? error.message() : "it belongs to another user"));
  static std::atomic<int> runtimes{0};
  const auto place = place_of(options);
  Spans::File file;
  file.process = {getpid(), format("process {}", getpid())};
  if (place) file.process = {place->first, format("rank {} of {}", place->first, place->second)};
  file.path = folder / format("kiln-{}{}-{}.json", place ? format("rank{}-", place->first) : "",
                              getpid(), runtimes++);
  return file;
}

fs::path wanted_from_environment() {
  const std::string_view value = environment("KILN_WANTED");
  return value.empty() ? fs::path() : fs::absolute(fs::path(value));
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> lines;
  for (char** entry = detail::whole_environment(); entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("KILN_")) continue;
    const char* nearest = nullptr;
    std::size_t least = name.size();
    for (const detail::VariableEntry& v : detail::kVariables) {
      if (v.of != detail::VariableEntry::Of::kiln) continue;
      if (detail::names(v, name)) least = 0;
      if (const std::size_t distance = edit_distance(name, v.name); distance < least)
        least = distance, nearest = v.name;
    }
    if (least == 0) continue;
    // What differs in more than a third of its own part is no slip of the fingers.
    const bool near = nearest && least <= (name.size() - 5) / 3 + 1;
    lines.push_back(format("the variable {} is not known and has no effect{}", name,
                           near ? format("; did you mean {}?", nearest)
                                : std::string(": `kiln reference` lists those that have")));
  }
  return lines;
}

void warn_of_unknown_variables(const LogSink& log) {
  static std::atomic<bool> warned{false};
  if (!log || warned.exchange(true)) return;
  for (const std::string& line : unknown_variables()) log(LogLevel::warning, line);
}

}  // namespace kiln::runtime
