// What a kernel's handle has loaded before launches ask for it, and what its launches get on a
// sealed runtime.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/missing.hpp"
#include "kiln/prepare.hpp"
#include "kiln/tune.hpp"
#include "runtime/serve/config_loader.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/serve/reserve.hpp"
#include "runtime/support/counters.hpp"

namespace kiln::runtime {

/// What a problem is best served with, before anything of it is loaded.
struct BestConfigs {
  /// On record, agreed with the ranks, chosen by a region, or fixed by the program.
  std::optional<Values> winner;
  bool searched = false;  ///< tuning would find nothing else
  bool goes_on = false;   ///< the winner's search does, behind the launches
  detail::Ready seen{};   ///< in use when this was looked up
  /// In the place of the untuned config: the winner of the nearest problem on record.
  std::optional<Values> guess{};
  /// What is to be loaded, best first: the winner, else the untuned config; then the default.
  std::vector<Values> configs;
};

/// What a problem is served with.
struct Served {
  detail::Ready ready;             ///< in use or standing in; null: nothing
  bool best = false;               ///< `ready` is the winner that is known
  std::string why;                 ///< the error or the thread that stood in the way, if one did
  std::optional<Missing> missing;  ///< the best config's binary, if that is missing
};

/// Whether a problem may leave when launches bring in more than the handle holds.
enum class Stay { always, while_used };

/// Of one handle. Problems are bucketed. Thread-safe. Refers to what it is made of.
class Provisions {
 public:
  Provisions(detail::Engine& engine, const KernelDefinition& kernel, ConfigLoader& configs,
             Problems& problems, bool fixed)
      : engine_(engine),
        kernel_(kernel),
        configs_(configs),
        problems_(problems),
        fixed_(fixed),
        reserve_(kernel),
        unprepared_(engine.workshop().telemetry().counters, kernel.name) {}
  /// The problems that were launched unprepared stay in Runtime::wanted().
  ~Provisions();

  /// The record, if launches may use it. They may not where the program has fixed the config, where
  /// the runtime has ranks (a launch uses what all ranks have agreed on), and while the background
  /// holds the record back until a commit. `sources`: as best_configs().
  std::optional<Recall> on_record(std::span<const std::int64_t> problem, const TuneOptions& options,
                                  bool for_launch, const SourceDigests* sources = nullptr);
  /// Whether the search that made this record goes on behind the launches.
  bool goes_on(const Recall& known) const;
  /// `tuning`: how the problem would be tuned. `sources`: of the kernel, as they were a moment ago;
  /// null: they are read. Loads nothing.
  BestConfigs best_configs(std::span<const std::int64_t> problem, const TuneOptions& tuning,
                           const SourceDigests* sources = nullptr);
  /// Where nothing is known of the problem, and the untuned config is not chosen for it, the winner
  /// of the nearest problem takes that config's place. Reads all records, once in a process. Not
  /// where ranks or determinism need the same choice everywhere.
  void guess_by_records(std::span<const std::int64_t> problem, const TuneOptions& tuning,
                        Builder::Access access, BestConfigs& best);
  /// Loads the first of the configs that can be had, and puts it in use; where a search follows, an
  /// untuned one only stands in. Waits for no other making of the problem. @throws what a launch
  /// throws, except MissingError
  Served serve(std::span<const std::int64_t> problem, const BestConfigs& best,
               Builder::Access access, bool search_follows, Stay stay = Stay::always);
  /// As KernelLoader::keep_built and forget_built.
  void keep_built(std::span<const std::int64_t> config,
                  std::shared_ptr<const codegen::Binary> binary) {
    configs_.loader().keep_built(config, std::move(binary));
  }
  void forget_built() { configs_.loader().forget_built(); }
  /// Puts in use what stands in.
  void use_stand_in(std::span<const std::int64_t> problem, Stay stay = Stay::always);
  /// Puts this config in use, which is expected to be better than what stands in. False: something
  /// is in use already, or the binary cannot be had. @throws as ConfigLoader::load
  bool use_expected(std::span<const std::int64_t> problem, const Values& config,
                    Builder::Access access, Stay stay = Stay::always);
  /// Puts a result's winner in use in the place of an earlier one. A tuning has only waited, and
  /// what it waited for may have found something better. Nothing is put in use where nothing is,
  /// since a launch tunes that; what the background improves, or a region has chosen, stays.
  void use_better_known(std::span<const std::int64_t> problem, const TuneResult& known);
  /// Whether what stands in for the problem was found to be wrong: then a sealed runtime does not
  /// launch it.
  void distrust(std::span<const std::int64_t> problem, bool wrong) {
    reserve_.distrust(problem, wrong);
  }
  /// Sees to it that the default config is loaded, if its binary can be had for one of the
  /// problems: on a sealed runtime it serves what was not prepared.
  void keep_default(std::span<const Values> problems, Builder::Access access);

  /// The largest workspace that launches of what is loaded need. @throws what the kernel's rules
  /// throw
  WorkspaceSize workspace_size() const;
  /// Gets ready to serve on a sealed runtime, with what is loaded now. By one thread at a time.
  void seal();
  /// What can be launched for a problem on a sealed runtime without being prepared for it; null:
  /// nothing. Takes no lock and allocates nothing, as Reserve::find. @pre seal() was called
  detail::Ready stand_in(std::span<const std::int64_t> problem) const;
  /// What a launch of a problem that is not in use gets. Allocates nothing, as Reserve::find,
  /// unless it warns or throws. @pre seal() was called
  /// @throws UnpreparedError
  detail::Ready unprepared(std::span<const std::int64_t> problem, OnUnprepared what);
  /// Problems that were launched unprepared and are still not in use, and how often.
  std::map<Values, std::uint64_t> launched_unprepared() const;

 private:
  std::vector<detail::Ready> loaded() const;
  /// By problem.
  std::vector<detail::Ready> in_use() const;

  detail::Engine& engine_;
  const KernelDefinition& kernel_;
  ConfigLoader& configs_;
  Problems& problems_;
  const bool fixed_;
  Reserve reserve_;
  UnpreparedLaunches unprepared_;
  NotedLaunches notes_;  ///< begin before a launch can be unprepared
};

}  // namespace kiln::runtime
