// Compiling ahead of time, many instances into one bundle, for architectures that this machine need
// not have. Needs a compiler, no GPU and no driver.
//
//   std::vector<kiln::PrecompileJob> jobs{{kernel, problem, {kiln::Target::parse("sm_90a")}}};
//   auto report = kiln::precompile(jobs, "kernels.kiln", options);
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <vector>

#include "kiln/bundle.hpp"
#include "kiln/definition.hpp"
#include "kiln/error.hpp"
#include "kiln/manifest.hpp"
#include "kiln/registry.hpp"
#include "kiln/store.hpp"
#include "kiln/target.hpp"

namespace kiln {

/// One problem of one kernel or choice.
struct PrecompileJob {
  KernelDefinition kernel;
  Values problem;
  std::vector<Target> targets;
  /// Empty: every config that the space allows for the problem on each target; of a kernel that
  /// lists its configs, all of the list.
  std::vector<Values> configs{};
  /// In the place of `kernel`: those of its kernels that support the problem. Its own records go
  /// into the bundle, too. A choice has no `configs`.
  std::optional<detail::ChoiceDescription> choice{};
};

struct PrecompileOptions {
  StoreOptions store{};  ///< what it has is not compiled again; it keeps what is compiled
  /// Cache directories and bundles with tuning records. If any are given, only the winners that
  /// they name for a job's kernel, problem and target are compiled, with the default; records go
  /// into the bundle. A job without a record keeps all its configs.
  std::vector<std::filesystem::path> records{};
  std::filesystem::path private_key{};  ///< PEM, Ed25519: sign the bundle. Empty: unsigned
  unsigned threads = 0;                 ///< 0: one per core that this process may use
  LogSink log{};
  std::stop_token stop{};  ///< ends early without a bundle; what was compiled is in the store
  std::function<void(std::size_t done, std::size_t total)> progress{};  ///< on the calling thread
  std::optional<unsigned> processes{};  ///< as RuntimeOptions::compile_processes
  std::optional<bool> deterministic{};  ///< RuntimeOptions::deterministic of programs that use it
};

struct PrecompileReport {
  std::size_t instances = 0;             ///< distinct ones, over all jobs and targets
  std::size_t compiled = 0;              ///< of them, not found in the store
  std::size_t records = 0;               ///< put into the bundle
  std::vector<CompileFailure> failures;  ///< of instances that do not compile
  double seconds = 0;                    ///< wall time
  double busy_seconds = 0;               ///< sum over the threads, of the time spent on instances
  unsigned threads = 0;
  bool stopped = false;
  BundleInfo bundle;  ///< empty when stopped, or when every instance failed
};

/// Instances that fail are reported and left out; if all fail, no file is written. `output` is
/// replaced as a whole. The same sources, compiler and jobs give the same bytes. @throws UserError
/// for an empty job, a target that the compiler does not know or a bad key; EnvironmentError when a
/// compiler is missing or the file cannot be written. Both are thrown before anything is compiled
/// if they can be detected by then.
PrecompileReport precompile(const std::vector<PrecompileJob>& jobs,
                            const std::filesystem::path& output,
                            const PrecompileOptions& options = {});

/// The jobs that a manifest asks for, one for each entry, with kernels and choices of this registry.
/// @throws UserError naming the entry when a kernel or choice, its types or a field is not known.
std::vector<PrecompileJob> jobs_for(const Manifest& manifest, const Registry& registry);

/// The limits that constraints see for a device that this machine does not have: the figures of its
/// architecture; for the host, those of this machine.
DeviceLimits limits_of(const Target& target);

}  // namespace kiln
