// What a Runtime and its handles share: a workshop for one device, and what was asked for in vain.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kiln/runtime.hpp"
#include "runtime/device/cuda/reaper.hpp"
#include "runtime/serve/background.hpp"
#include "runtime/serve/captures.hpp"
#include "runtime/serve/serving.hpp"
#include "runtime/serve/variables.hpp"
#include "runtime/tune/tuning_session.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {
class KernelMaker;
}

namespace kiln::detail {

/// Thread-safe.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// `background`: another device for mode background to measure on; null: `device`.
  Engine(RuntimeOptions options, std::shared_ptr<runtime::Device> device,
         runtime::Builder::MakeCompiler make_compiler,
         std::shared_ptr<runtime::Device> background = {});
  /// For another device on the same store.
  Engine(RuntimeOptions options, std::shared_ptr<cache::Store> store,
         std::shared_ptr<runtime::Device> device, runtime::Builder::MakeCompiler make_compiler);
  ~Engine();

  runtime::Workshop& workshop() noexcept { return workshop_; }
  const RuntimeOptions& options() const noexcept { return workshop_.options(); }
  const std::shared_ptr<cache::Store>& store() const noexcept { return workshop_.store(); }
  const std::shared_ptr<runtime::Device>& device() const noexcept { return workshop_.device(); }
  runtime::Builder& builder() noexcept { return workshop_.builder(); }
  runtime::RecordBook& records() noexcept { return workshop_.records(); }
  runtime::Captures& captures() const noexcept { return captures_; }
  runtime::Serving& serving() noexcept { return serving_; }
  const runtime::Serving& serving() const noexcept { return serving_; }
  /// Null in all modes but `background`.
  runtime::Background* background() noexcept { return background_ ? &*background_ : nullptr; }
  /// @throws UserError
  runtime::Background& background_or_throw();
  RuntimeStatistics statistics();
  RuntimeMetrics metrics();

  /// As runtime::tune_alone_or_together.
  runtime::TuneOutcome tune(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                            const TuneOptions& options, bool for_launch = false,
                            const runtime::Read& known = {});
  /// Trials of a kernel on `device`, or on this engine's if that is null, for a tuning with these
  /// options.
  std::unique_ptr<runtime::KernelMaker> maker(const KernelDefinition& kernel,
                                              std::span<const std::int64_t> problem,
                                              const TuneOptions& options,
                                              std::shared_ptr<runtime::Device> device = {});
  /// `options` with the runtime's ranks, where it names none, and with the limits that variables
  /// set, where it sets none.
  TuneOptions with_ranks(TuneOptions options) const;
  /// Notes that an instance is missing, for wanted(), whatever runs in its place; without a config,
  /// that a problem was not prepared.
  void want(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
            std::span<const std::int64_t> config);

  /// As want() notes it.
  WantedInstance wanted_instance(const KernelDefinition& kernel,
                                 std::span<const std::int64_t> problem,
                                 std::span<const std::int64_t> config) const;

  /// Whether another thread is tuning anything.
  bool busy() const noexcept { return workshop_.turn().is_anothers(); }
  bool may_compile() const noexcept { return workshop_.may_compile(); }
  Manifest wanted() const;
  /// A warning that an instance is missing, which problem asked for it and what follows; once per
  /// instance, however many problems lack it.
  void warn_of(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
               const Missing& missing, const std::string& what_follows);

  /// Of each handle; 0: none. As RuntimeOptions::max_problems
  std::size_t max_problems() const;
  /// As RuntimeOptions::max_module_bytes; 0: none.
  std::uint64_t max_module_bytes() const;
  /// Destroys modules, on another thread where that may wait for running kernels.
  void dispose(std::shared_ptr<const void> what) noexcept;
  /// Lets problems leave where more is loaded than that.
  void keep_to_module_bytes();

  void log(LogLevel level, const std::string& text) const { workshop_.log(level, text); }

 private:
  struct Completed {
    RuntimeOptions options;
  };
  Engine(const Completed& completed, std::shared_ptr<cache::Store> store,
         std::shared_ptr<runtime::Device> device, runtime::Builder::MakeCompiler make_compiler,
         std::shared_ptr<runtime::Device> background);

  const runtime::TuneLimits limits_ = runtime::limits_from_environment();
  const std::filesystem::path wanted_file_ = runtime::wanted_from_environment();
  runtime::Workshop workshop_;
  mutable runtime::Captures captures_;  ///< thread-safe
  runtime::Serving serving_;
  std::mutex evicting_;
  std::int64_t stuck_at_ = 0;  ///< bytes that are too many, of which nothing can leave
  /// What the reaper is yet to destroy.
  const std::shared_ptr<std::atomic<int>> disposing_ = std::make_shared<std::atomic<int>>(0);
  runtime::Reaper reaper_;
  mutable std::mutex wanted_mutex_;
  std::vector<WantedInstance> wanted_;
  std::set<Digest> warned_of_;                     ///< instances, by Key::portable
  std::optional<runtime::Background> background_;  ///< last: its thread uses all of the above
};

}  // namespace kiln::detail
