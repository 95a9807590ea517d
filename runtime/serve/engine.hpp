// What a Runtime and its handles share, as one object: a workshop for one device, and what is
// served.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kiln/runtime.hpp"
#include "runtime/serve/background.hpp"
#include "runtime/serve/bounds.hpp"
#include "runtime/serve/captures.hpp"
#include "runtime/serve/serving.hpp"
#include "runtime/serve/variables.hpp"
#include "runtime/serve/wanted.hpp"
#include "runtime/tune/drawn_data.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {
class KernelMaker;
}

namespace kiln::detail {

/// Thread-safe.
class Engine {
 public:
  /// In mode background see make_engine().
  Engine(RuntimeOptions options, std::shared_ptr<runtime::Device> device,
         runtime::Builder::MakeCompiler make_compiler);
  /// For another device on the same store.
  Engine(RuntimeOptions options, std::shared_ptr<cache::Store> store,
         std::shared_ptr<runtime::Device> device, runtime::Builder::MakeCompiler make_compiler);

  runtime::Workshop& workshop() noexcept { return workshop_; }
  const RuntimeOptions& options() const noexcept { return workshop_.options(); }
  const std::shared_ptr<cache::Store>& store() const noexcept { return workshop_.store(); }
  const std::shared_ptr<runtime::Device>& device() const noexcept { return workshop_.device(); }
  runtime::Builder& builder() noexcept { return workshop_.builder(); }
  runtime::RecordBook& records() noexcept { return workshop_.records(); }
  runtime::Captures& captures() const noexcept { return captures_; }
  runtime::Serving& serving() noexcept { return serving_; }
  const runtime::Serving& serving() const noexcept { return serving_; }
  runtime::Wanted& wanted() noexcept { return wanted_; }
  const runtime::Wanted& wanted() const noexcept { return wanted_; }
  runtime::Bounds& bounds() noexcept { return bounds_; }
  /// What the next maker of a problem takes.
  runtime::DrawnData& drawn() noexcept { return drawn_; }
  /// Null in all modes but `background`.
  runtime::Background* background() const noexcept { return background_.get(); }
  /// Before there is a handle.
  void set_background(std::unique_ptr<runtime::Background> background) {
    background_ = std::move(background);
  }

  /// Trials of a kernel on `device`, or on this engine's if that is null, for a tuning with these
  /// options.
  std::unique_ptr<runtime::KernelMaker> maker(const KernelDefinition& kernel,
                                              std::span<const std::int64_t> problem,
                                              const TuneOptions& options,
                                              std::shared_ptr<runtime::Device> device = {});
  /// `options` with the runtime's ranks, where it names none, and with the limits that variables
  /// set, where it sets none.
  TuneOptions completed(TuneOptions options) const;
  /// Whether another thread is tuning anything.
  bool busy() const noexcept { return workshop_.turn().is_anothers(); }
  bool may_compile() const noexcept { return workshop_.may_compile(); }
  /// Counts a launch that needs memory for a workspace of this size. On a sealed runtime it is
  /// warned of or refused, as seal() says, unless this thread tunes. @throws UnpreparedError
  void note_allocation(const WantedInstance& wanted, const WorkspaceSize& size);
  void log(LogLevel level, const std::string& text) const { workshop_.log(level, text); }

 private:
  struct Completed {
    RuntimeOptions options;
  };
  Engine(const Completed& completed, std::shared_ptr<cache::Store> store,
         std::shared_ptr<runtime::Device> device, runtime::Builder::MakeCompiler make_compiler);

  const runtime::TuneLimits limits_ = runtime::limits_from_environment();
  runtime::Workshop workshop_;
  mutable runtime::Captures captures_;  ///< thread-safe
  runtime::Serving serving_;
  runtime::Wanted wanted_;
  runtime::Bounds bounds_;
  runtime::DrawnData drawn_;
  std::unique_ptr<runtime::Background> background_;  ///< last: its thread uses all of the above
};

}  // namespace kiln::detail
