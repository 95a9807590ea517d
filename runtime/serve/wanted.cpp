#include "runtime/serve/wanted.hpp"

#include <cstddef>
#include <exception>
#include <map>
#include <tuple>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/serve/serving.hpp"
#include "runtime/serve/wanted_file.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

/// Handles that come and go may each leave some unprepared problems behind.
constexpr std::size_t kMostUnprepared = 4096;
/// A problem may lack another binary than the next one.
constexpr std::size_t kMostNoted = std::size_t{1} << 16;

}  // namespace

Wanted::Wanted(std::string arch, std::filesystem::path file, LogSink log)
    : arch_(std::move(arch)), file_(std::move(file)), log_(std::move(log)) {}

Wanted::~Wanted() {
  if (file_.empty() || in_order_.empty()) return;
  try {
    add_to_manifest(file_, {noted()});
  } catch (const std::exception& error) {
    try {
      log(LogLevel::warning,
          format("KILN_WANTED: what was missing is not noted: {}", error.what()));
    } catch (...) {
      // A sink must not throw.
    }
  }
}

WantedInstance Wanted::instance(const KernelDefinition& kernel,
                                std::span<const std::int64_t> problem,
                                std::span<const std::int64_t> config) const {
  const detail::Tunable what(kernel);
  return {kernel.name, kernel.types, arch_, what.named_problem(problem), what.named_config(config)};
}

WantedInstance Wanted::instance(const detail::ChoiceDescription& choice,
                                std::span<const std::int64_t> problem) const {
  return {.kernel = choice.name,
          .types = choice.types,
          .target = arch_,
          .problem = detail::Tunable(choice.operation).named_problem(problem),
          .config = {},
          .is_choice = true};
}

bool Wanted::note(WantedInstance wanted, std::uint64_t launches) {
  const std::lock_guard lock(mutex_);
  if (const auto known = launches_.find(wanted); known != launches_.end()) {
    known->second += launches;
    return true;
  }
  if (launches_.size() >= (wanted.config.empty() ? kMostUnprepared : kMostNoted)) return false;
  in_order_.push_back(launches_.emplace(std::move(wanted), launches).first);
  return true;
}

std::vector<WantedInstance> Wanted::noted() const {
  std::vector<WantedInstance> noted;
  for (const auto& one : in_order_) noted.emplace_back(one->first).launches = one->second;
  return noted;
}

void Wanted::warn_of(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                     const Missing& missing, const std::string& what_follows) {
  {
    const std::lock_guard lock(mutex_);
    if (!warned_of_.insert(missing.wanted.portable).second) return;
  }
  log(LogLevel::warning, format("{} {}: {}: {}", kernel.name, kernel.describe_problem(problem),
                                what_follows, missing.explain()));
}

Manifest Wanted::all(const Serving& serving) const {
  Manifest manifest;
  {
    const std::lock_guard lock(mutex_);
    manifest.wanted = noted();
  }
  // A problem of which a binary is missing is listed with that binary already.
  const auto problem_of = [](const WantedInstance& w) {
    return std::tie(w.is_choice, w.kernel, w.types, w.problem);
  };
  std::map<
      std::tuple<bool, std::string, std::vector<std::string>, std::map<std::string, std::int64_t>>,
      std::size_t>
      listed;  // places
  for (std::size_t i = 0; i < manifest.wanted.size(); ++i)
    listed.try_emplace(problem_of(manifest.wanted[i]), i);
  const auto add = [&](WantedInstance wanted, std::uint64_t launches) {
    const auto [place, first] = listed.try_emplace(problem_of(wanted), manifest.wanted.size());
    if (first) manifest.wanted.push_back(std::move(wanted));
    manifest.wanted[place->second].launches += launches;
  };
  for (const auto& handle : serving.handles())
    for (const auto& [problem, launches] : handle->provisions().launched_unprepared())
      add(instance(handle->definition(), problem, {}), launches);
  for (const auto& choice : serving.choices())
    for (const auto& [problem, launches] : choice->launched_unprepared())
      add(instance(choice->description(), problem), launches);
  return manifest;
}

}  // namespace kiln::runtime
