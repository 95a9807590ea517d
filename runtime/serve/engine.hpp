// What a Runtime and its handles share: one device, one store, one builder.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kiln/runtime.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/device/device.hpp"
#include "runtime/serve/problem_table.hpp"
#include "runtime/together/together.hpp"
#include "runtime/tune/record.hpp"
#include "runtime/tune/starting_points.hpp"
#include "runtime/tune/tuning_turn.hpp"

namespace kiln::detail {

/// Thread-safe.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(RuntimeOptions options, std::shared_ptr<runtime::Device> device,
         runtime::Builder::MakeCompiler make_compiler);
  /// For another device on the same store.
  Engine(RuntimeOptions options, std::shared_ptr<cache::Store> store,
         std::shared_ptr<runtime::Device> device, runtime::Builder::MakeCompiler make_compiler);

  const std::shared_ptr<cache::Store>& store() const noexcept { return store_; }
  runtime::Builder& builder() noexcept { return builder_; }
  const RuntimeOptions& options() const noexcept { return options_; }
  const std::shared_ptr<runtime::Device>& device() const noexcept { return device_; }
  RuntimeStatistics statistics();

  /// What the store remembers of this problem.
  std::optional<runtime::Recall> recall(const KernelDefinition& kernel,
                                        std::span<const std::int64_t> problem);
  /// From the store if that answers the request, else measured and remembered. A launch is content
  /// with an unfinished search. The budget begins now: it covers waiting for other tunings, of
  /// other threads and processes. A launch waits for half of it at most, so that there is something
  /// left to tune with; where WhileBusy says so, it does not wait at all. When the time ends in
  /// waiting, the result is what is known, else the default, not tried.
  TuneResult tune(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                  const TuneOptions& options, bool for_launch = false);
  /// Verifies and times the default config alone, and remembers nothing.
  TuneResult time(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                  const TuneOptions& options);
  /// With the runtime's ranks, where it names none.
  TuneOptions with_ranks(TuneOptions options) const;
  /// The versions behind what is measured now.
  std::vector<runtime::Version> versions();
  /// Puts a result into the store.
  void remember(const KernelDefinition& kernel, const TuneResult& result);
  /// One result per subject, chosen together with `options.ranks` (the runtime's, if null; alone,
  /// if that is null, too) by the protocol of runtime/ranks: from the store if every rank has the
  /// same there, else measured by `trials`. Saved once per store. Where nothing may be measured,
  /// ranks that have not the same use defaults. Fills in RankReport.
  /// @throws UserError on options that make no sense; a rank that fails is no exception.
  std::vector<TuneResult> tune_together(std::span<const runtime::Subject> subjects,
                                        const TuneOptions& options, runtime::Trials& trials,
                                        bool for_launch = false);
  /// Builds and loads one instance, or says what is missing. @throws CompileError when its template
  /// does not compile.
  std::variant<ReadyKernel, Missing> make_ready(const KernelDefinition& kernel,
                                                std::span<const std::int64_t> problem,
                                                std::span<const std::int64_t> config);

  /// Whether another thread is tuning anything.
  bool busy() const noexcept { return turn_.is_anothers(); }
  /// Whether the mode allows to compile and to measure.
  bool may_compile() const noexcept {
    return options_.mode == Mode::tune_now || options_.mode == Mode::untuned;
  }
  Manifest wanted() const;
  /// A warning that an instance is missing, which problem asked for it and what follows; once per
  /// instance, however many problems lack it.
  void warn_of(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
               const Missing& missing, const std::string& what_follows);

  void log(LogLevel level, const std::string& text) const {
    if (options_.log) options_.log(level, text);
  }

 private:
  void want(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
            std::span<const std::int64_t> config);
  Key key(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
          const std::optional<Digest>& source);

  RuntimeOptions options_;
  std::shared_ptr<cache::Store> store_;
  std::shared_ptr<runtime::Device> device_;
  runtime::Builder builder_;
  runtime::StartingPoints starting_points_;
  runtime::TuningTurn turn_;
  std::atomic<std::size_t> tuned_{0};
  mutable std::mutex wanted_mutex_;
  std::vector<WantedInstance> wanted_;
  std::set<Digest> warned_of_;  ///< instances, by Key::portable
};

}  // namespace kiln::detail
