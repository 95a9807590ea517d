// What all tunings on one device share.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "cache/store.hpp"
#include "kiln/runtime.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/device/device.hpp"
#include "runtime/tune/record_book.hpp"
#include "runtime/tune/trusted_references.hpp"
#include "runtime/tune/tuning_turn.hpp"

namespace kiln::runtime {

/// Records, by their keys, that tunings of this process go about with care. Thread-safe.
class FaultedProblems {
 public:
  void add(const Digest& record) {
    const std::lock_guard lock(mutex_);
    problems_.insert(record);
  }
  void remove(const Digest& record) {
    const std::lock_guard lock(mutex_);
    problems_.erase(record);
  }
  bool contains(const Digest& record) const {
    const std::lock_guard lock(mutex_);
    return problems_.contains(record);
  }

 private:
  mutable std::mutex mutex_;
  std::set<Digest> problems_;
};

/// Thread-safe.
class Workshop {
 public:
  /// `store`: null for one of its own, by `options.store`. Without a mode it tunes. `local_ranks`
  /// share the cores of this machine.
  Workshop(RuntimeOptions options, std::shared_ptr<cache::Store> store,
           std::shared_ptr<Device> device, Builder::MakeCompiler make_compiler,
           std::shared_ptr<Telemetry> telemetry = std::make_shared<Telemetry>(),
           unsigned local_ranks = 1);
  struct OwnTurn {};
  /// One on the same store, records, device and builder, but with its own turn and count. For
  /// subjects that may tune kernels, on any thread, while they are tuned themselves.
  Workshop(const Workshop& other, OwnTurn);
  struct LentTurn {};
  /// The same, but for tunings without ranks, which have the turn of `other` and lend it
  /// (TuningTurn::Kind::lent). `other` must outlive it.
  Workshop(Workshop& other, LentTurn) : Workshop(other, OwnTurn{}) { lent_ = &other.turn_; }

  const RuntimeOptions& options() const noexcept { return options_; }
  const std::shared_ptr<cache::Store>& store() const noexcept { return store_; }
  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  Builder& builder() noexcept { return *builder_; }
  Telemetry& telemetry() noexcept { return *telemetry_; }
  RecordBook& records() noexcept { return *records_; }
  const std::shared_ptr<TrustedReferences>& trusted_references() const noexcept {
    return trusted_references_;
  }
  Isolation isolation() const noexcept { return isolation_; }
  /// Problems that a process has died or lost its device over.
  FaultedProblems& faults() noexcept { return faults_; }
  TuningTurn& turn() noexcept { return turn_; }
  const TuningTurn& turn() const noexcept { return turn_; }
  /// That of tunings without ranks.
  TuningTurn& turn_alone() noexcept { return lent_ ? *lent_ : turn_; }
  TuningTurn::Kind turn_kind() const noexcept {
    return lent_ ? TuningTurn::Kind::lent : TuningTurn::Kind::kept;
  }

  /// Whether the mode allows compiling.
  bool may_compile() const noexcept { return may_compile(*options_.mode); }
  /// Whether the mode allows measuring: on a caller's demand where it may compile, and on behalf of
  /// a launch only where launches tune.
  bool may_measure(bool for_launch) const noexcept {
    return for_launch ? options_.mode == Mode::tune_now : may_compile();
  }
  Values default_config(const detail::Tunable& subject,
                        std::span<const std::int64_t> problem) const {
    const DeviceInfo& device = device_->info();
    return subject.default_config(problem, device.target, device.limits);
  }

  void count_tuned() noexcept { ++tuned_; }
  /// Problems that were tuned.
  std::size_t tuned() const noexcept { return tuned_; }

  void log(LogLevel level, const std::string& text) const {
    if (options_.log) options_.log(level, text);
  }

 private:
  static bool may_compile(Mode mode) noexcept {
    return mode == Mode::tune_now || mode == Mode::background || mode == Mode::untuned;
  }

  RuntimeOptions options_;
  Isolation isolation_;
  std::shared_ptr<cache::Store> store_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Telemetry> telemetry_;
  std::shared_ptr<Builder> builder_;
  const std::shared_ptr<RecordBook> records_;
  std::shared_ptr<TrustedReferences> trusted_references_;
  TuningTurn turn_;
  TuningTurn* lent_ = nullptr;  ///< another workshop's
  FaultedProblems faults_;
  std::atomic<std::size_t> tuned_{0};
};

}  // namespace kiln::runtime
