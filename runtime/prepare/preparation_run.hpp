// One preparation: what it has found, loaded and tuned so far.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "kiln/manifest.hpp"
#include "kiln/prepare.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/prepare/choices_together.hpp"
#include "runtime/prepare/instances.hpp"
#include "runtime/prepare/prepare_items.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

/// Used once.
class PreparationRun {
 public:
  /// What it refers to must outlive it.
  PreparationRun(detail::Engine& engine, const Manifest& manifest, const PrepareOptions& options,
                 const std::stop_token& stop,
                 const std::function<void(const PrepareProgress&)>& progress);

  PrepareReport run();

 private:
  using Access = Builder::Access;
  using Step = PrepareProgress::Step;

  template <class F>
  static void timed(double& seconds, const F& work) {
    const auto start = Clock::now();
    work();
    seconds = seconds_since(start);
  }

  bool ended() const { return stop_.stop_requested() || deadline_.passed(); }
  Access access() const {
    return work_ == PrepareWork::look_up || ended() ? Access::look_up : Access::compile;
  }
  PreparedProblem& of(const PrepareItem& item) { return report_.problems[item.place]; }
  /// `missing`: what `why` is about, if that is a binary.
  void set(const PrepareItem& item, PreparedState state, std::string why = {},
           std::optional<Missing> missing = {}) {
    of(item).state = state;
    of(item).why = std::move(why);
    of(item).missing = std::move(missing);
    if (state == PreparedState::failed) of(item).config.clear();  // launches get nothing
  }
  void tell(Step step, std::size_t done, std::size_t total) const;
  /// Leaves in the report what entries of the manifest asked for, in their order.
  void keep_asked_for();
  std::string late(const std::string& what) const;
  /// Why an instance, `called` so, cannot be had, and its binary if that is missing; empty: it can.
  std::string why_lacking(const PrepareItem& item, const Values& config, const std::string& called,
                          std::optional<Missing>& missing) const;

  // --- compiling --------------------------------------------------------------------------------

  void look_and_compile();
  void look_and_find(std::size_t i);
  void look(PrepareItem& item, const SourceDigests* sources = nullptr);
  /// Why an instance that the manifest names cannot be had; empty: it can.
  void note_lacking(PrepareItem& item, const Values& config);

  // --- loading ----------------------------------------------------------------------------------

  bool to_tune(const PrepareItem& item) const {
    return work_ == PrepareWork::tune && item.tuned && !item.handle->fixed() && !item.best.searched;
  }
  static bool to_load(const PrepareItem& item) { return item.usable && !item.best.configs.empty(); }
  /// Loads what needs nothing that is still to be found or built, while other threads do that. One
  /// thread does so at a time: two of them took longer in the driver together than one alone.
  void load_found();
  /// The next item, if its binary has been found; else null.
  PrepareItem* next_to_load();
  void load_and_note(PrepareItem& item);
  void load();
  void load(PrepareItem& item);
  Served serve(PrepareItem& item, bool later);
  void describe(const PrepareItem& item, Served served);

  /// On all streams that the program has named.
  void reserve_workspaces();
  void reserve_workspace(const PrepareItem& item);

  // --- tuning -----------------------------------------------------------------------------------

  /// Whether the ranks choose for it.
  bool agrees(const PrepareItem& item) const;
  Values default_of(const PrepareItem& item) const {
    return engine_.workshop().default_config(item.kernel(), item.problem);
  }
  void tune();
  void tune_each();
  /// What this process has measured again already counts as on record.
  TuneOptions tuning_of(const PrepareItem& item) const;
  /// With a part of what is left of the time, which `left` problems share.
  TuneOptions part_of(TuneOptions tuning, std::size_t left) const;
  void tune(PrepareItem& item, std::size_t left);
  void take(const PrepareItem& item, const TuneOutcome& tuned);
  /// One agreement for all of it. Ranks that have no more time take part: the others must not wait.
  void agree();
  /// Choices that are to be measured.
  std::size_t count_unanswered() const;
  void prepare_choices();
  /// `left`: choices that are to be measured, this one among them.
  void prepare(const ChoiceItem& item, RanksAsk ask, std::size_t left);
  void describe(const ChoiceItem& item, PreparedChoice made, bool measure);

  detail::Engine& engine_;
  const Manifest& manifest_;
  const std::stop_token stop_;
  const std::function<void(const PrepareProgress&)>& progress_;
  const PrepareWork work_;
  const TuneOptions tuning_;
  const std::vector<Stream> streams_;
  const Clock::time_point start_;
  const TimeLimit deadline_;
  PrepareReport report_;
  std::vector<PrepareItem> items_;
  std::vector<ChoiceItem> choices_;
  std::vector<std::optional<std::size_t>> entries_;  ///< PrepareItems::entries
  std::atomic<bool> cut_off_{false};                 ///< something was not compiled any more
  std::vector<std::atomic<bool>> looked_at_;         ///< by item
  Instances instances_{engine_};
  std::mutex loading_;                       ///< of the next two while items are looked for
  std::size_t loaded_ = 0;                   ///< leading items that are loaded, or not to be
  double load_seconds_ = 0;                  ///< spent on them
  std::optional<std::int64_t> free_before_;  ///< bytes of the device's memory, before all loads
};

}  // namespace kiln::runtime
