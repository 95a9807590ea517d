// What a runtime was asked for in vain: instances that are missing, problems that were not
// prepared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kiln/definition.hpp"
#include "kiln/detail/choice_core.hpp"
#include "kiln/key.hpp"
#include "kiln/log.hpp"
#include "kiln/manifest.hpp"
#include "kiln/missing.hpp"
#include "runtime/serve/wanted_file.hpp"

namespace kiln::runtime {

class Serving;

/// Thread-safe.
class Wanted {
 public:
  /// `arch`: the target of the runtime's device. `file`: the manifest that all of it is added to in
  /// the end; empty: none.
  Wanted(std::string arch, std::filesystem::path file, LogSink log);
  ~Wanted();
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;

  /// Notes that an instance is missing, whatever runs in its place; without a config, that a
  /// problem was not prepared, and how often it was launched. False: there is no room for it.
  bool note(WantedInstance wanted, std::uint64_t launches = 0);
  WantedInstance instance(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                          std::span<const std::int64_t> config) const;
  WantedInstance instance(const detail::ChoiceDescription& choice,
                          std::span<const std::int64_t> problem) const;
  /// A warning that an instance is missing, which problem asked for it and what follows; once per
  /// instance, however many problems lack it.
  void warn_of(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
               const Missing& missing, const std::string& what_follows);
  /// What was noted, and the problems that living handles and choices have launched unprepared.
  Manifest all(const Serving& serving) const;

 private:
  void log(LogLevel level, const std::string& text) const {
    if (log_) log_(level, text);
  }

  using Launches = std::map<WantedInstance, std::uint64_t, InstanceOrder>;
  /// In the order of their first notes. The mutex is held.
  std::vector<WantedInstance> noted() const;

  const std::string arch_;
  const std::filesystem::path file_;
  const LogSink log_;
  mutable std::mutex mutex_;
  Launches launches_;  ///< of what was noted
  std::vector<Launches::const_iterator> in_order_;
  std::set<Digest> warned_of_;  ///< instances, by Key::portable
};

}  // namespace kiln::runtime
