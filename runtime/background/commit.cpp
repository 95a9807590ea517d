#include "runtime/background/commit.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "kiln/communicator.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime {

using detail::format;
using nlohmann::json;
using Change = CommitReport::Change;

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;  ///< of one rank's proposals

/// A change and its kernel: kernels of one name may differ in what makes their results.
struct Choice {
  Change change;
  std::string definition;  ///< RecordBook::definition, in hex
  bool operator==(const Choice&) const = default;
};

/// What a choice is about, in the order of reports.
auto place_of(const Choice& c) {
  return std::tie(c.change.kernel, c.change.types, c.change.problem, c.definition);
}

bool less(const Choice& a, const Choice& b) {
  return std::tuple_cat(place_of(a), std::tie(a.change.config)) <
         std::tuple_cat(place_of(b), std::tie(b.change.config));
}

json to_json(const Change& c) {
  return {{"kernel", c.kernel}, {"types", c.types}, {"problem", c.problem}, {"config", c.config}};
}

json to_json(const Choice& choice) {
  json all = to_json(choice.change);
  all["definition"] = choice.definition;
  return all;
}

Choice from_json(const json& j) {
  Choice choice;
  Change& change = choice.change;
  j.at("kernel").get_to(change.kernel);
  j.at("types").get_to(change.types);
  j.at("problem").get_to(change.problem);
  j.at("config").get_to(change.config);
  j.at("definition").get_to(choice.definition);
  return choice;
}

Digest digest_of(const CommitReport& report) {
  detail::KeyBuilder key("commit", 1);
  key.add("generation", static_cast<std::int64_t>(report.generation));
  for (const Change& change : report.changes) key.add("change", to_json(change).dump());
  return key.finish().digest;
}

using Handles = std::vector<std::shared_ptr<ServedHandle>>;

std::string definition_of(detail::Engine& engine, const ServedHandle& handle) {
  return to_hex(engine.records().definition(handle.definition()));
}

/// The handles of this process that have a kernel of this name and types.
Handles handles_named(const detail::Engine& engine, const Change& change) {
  Handles handles = engine.serving().handles();
  std::erase_if(handles, [&](const auto& handle) {
    const KernelDefinition& kernel = handle->definition();
    return handle->fixed() || kernel.name != change.kernel || kernel.types != change.types;
  });
  return handles;
}

/// Returns those handles whose kernel the choice is about.
Handles handles_of(detail::Engine& engine, const Choice& choice) {
  Handles handles = handles_named(engine, choice.change);
  std::erase_if(handles, [&](const auto& handle) {
    return definition_of(engine, *handle) != choice.definition;
  });
  return handles;
}

/// Values by name in the order of the fields; nothing where the names differ.
std::optional<Values> in_order(const std::map<std::string, std::int64_t>& named,
                               std::span<const std::string> names) {
  if (named.size() != names.size()) return {};
  Values values;
  for (const std::string& name : names) {
    const auto found = named.find(name);
    if (found == named.end()) return {};
    values.push_back(found->second);
  }
  return values;
}

std::vector<std::string> parameters_of(const KernelDefinition& kernel) {
  std::vector<std::string> parameters;
  for (const Parameter& p : kernel.space.parameters()) parameters.push_back(p.name);
  return parameters;
}

/// A change in the order of a kernel's fields and parameters.
struct ChangeValues {
  Values problem, config;
};

/// Nothing where it names others.
std::optional<ChangeValues> values_of(const Change& change, const KernelDefinition& kernel) {
  auto problem = in_order(change.problem, kernel.problem_fields);
  auto config = in_order(change.config, parameters_of(kernel));
  if (!problem || !config) return {};
  return ChangeValues{*std::move(problem), *std::move(config)};
}

/// Chooses one config per problem: the one proposed most often, and of several the least.
std::vector<Choice> choose(std::vector<Choice> proposals) {
  std::sort(proposals.begin(), proposals.end(), less);
  std::vector<Choice> chosen;
  std::size_t most = 0;
  for (auto next = proposals.begin(); next != proposals.end();) {
    const auto end =
        std::find_if(next, proposals.end(), [&](const Choice& c) { return c != *next; });
    const auto votes = static_cast<std::size_t>(end - next);
    const bool same_place = !chosen.empty() && place_of(chosen.back()) == place_of(*next);
    if (!same_place) {
      chosen.push_back(*next);
      most = votes;
    } else if (votes > most) {
      chosen.back() = *next;
      most = votes;
    }
    next = end;
  }
  return chosen;
}

/// What the handles of this process need for a change.
class Loader {
 public:
  Loader(detail::Engine& engine, const std::vector<Proposal>& found)
      : engine_(engine), found_(found) {}

  /// The proposals found here.
  std::vector<Choice> choices() const {
    std::vector<Choice> own;
    for (const Proposal& found : found_)
      if (const auto handle = found.handle.lock()) own.push_back(choice_of(found, *handle));
    return own;
  }

  Choice choice_of(const Proposal& found, const ServedHandle& handle) const {
    const KernelDefinition& kernel = handle.definition();
    const detail::Launchable& ready = found.launchable;
    const detail::Tunable what(kernel);
    return {{kernel.name, kernel.types, what.named_problem(ready.problem),
             what.named_config(ready.config)},
            definition_of(engine_, handle)};
  }

  /// Compiles what is chosen on as many threads as builds may use, and begins nothing after the
  /// deadline. Failures show when it is loaded.
  void build(std::span<const Choice> chosen, Deadline deadline) {
    std::vector<std::pair<std::shared_ptr<ServedHandle>, Values>> instances;
    for (const Choice& choice : chosen)
      for (const auto& handle : handles_of(engine_, choice)) {
        const auto values = values_of(choice.change, handle->definition());
        if (values && handle->find(values->problem)) instances.emplace_back(handle, values->config);
      }
    for_each_index(std::max(1U, engine_.builder().builds_at_once()), instances.size(), {},
                   [&](std::size_t i) {
                     if (std::chrono::steady_clock::now() >= deadline) return;
                     const auto& [handle, config] = instances[i];
                     const Target& target = engine_.device()->info().target;
                     try {
                       engine_.builder().build(handle->definition(), config, target,
                                               Builder::Access::compile);
                     } catch (const std::exception&) {
                     }
                   },
                   {});
  }

  /// Loads the config on every handle that has launched the problem; with `provisional`, only where
  /// a provisional launchable is in use. Returns nothing if any handle cannot load it.
  std::optional<std::vector<Proposal>> load(const Change& change,
                                            std::span<const std::shared_ptr<ServedHandle>> handles,
                                            bool provisional) try {
    std::vector<Proposal> loaded;
    for (const auto& handle : handles) {
      const auto values = values_of(change, handle->definition());
      if (!values) return std::nullopt;
      const auto& [problem, config] = *values;
      if (handle->definition().space.violated(config, problem, handle->limits()))
        return std::nullopt;
      const detail::Ready seen = handle->find(problem);
      if (!seen || (provisional && !seen->provisional)) continue;
      loaded.push_back({handle, handle.get(), launchable(*handle, problem, config), seen});
    }
    return loaded;
  } catch (const std::exception& error) {
    engine_.log(LogLevel::warning, format("{}: a config that was found cannot be loaded: {}",
                                          change.kernel, error.what()));
    return std::nullopt;
  }

 private:
  detail::Launchable launchable(ServedHandle& handle, const Values& problem, const Values& config) {
    for (const Proposal& own : found_)
      if (own.place == &handle && own.launchable.problem == problem &&
          own.launchable.config == config)
        return own.launchable;
    Problems::Loaded made = handle.load_config(problem, config, nullptr);
    if (const auto* missing = std::get_if<Missing>(&made)) throw MissingError(*missing);
    return std::get<detail::Launchable>(std::move(made));
  }

  detail::Engine& engine_;
  const std::vector<Proposal>& found_;
};

/// What the ranks agree on for a problem of a handle, whether it has launched that or not.
struct Agreement {
  std::shared_ptr<ServedHandle> handle;
  Values problem, config;
  std::optional<Values> seen;  ///< agreed on before; a later decision of the program stays
};

std::vector<Agreement> agreements_on(const Change& change,
                                     std::span<const std::shared_ptr<ServedHandle>> handles) {
  std::vector<Agreement> agreements;
  for (const auto& handle : handles) {
    if (auto values = values_of(change, handle->definition())) {
      auto seen = handle->problems().agreed(values->problem);
      agreements.push_back(
          {handle, std::move(values->problem), std::move(values->config), std::move(seen)});
    }
  }
  return agreements;
}

/// A commit of several ranks.
class Together {
 public:
  Together(detail::Engine& engine, const std::vector<Proposal>& found)
      : engine_(engine),
        loader_(engine, found),
        ranks_(*engine.options().tuning.ranks),
        turn_(ranks_.turn()),
        options_(engine.options().tuning.together) {}

  CommitReport run(std::uint64_t generation, const PublishOne& publish) try {
    CommitReport report;
    const std::vector<Choice> chosen = choose(exchange());
    const Deadline built = step();
    loader_.build(chosen, built);
    std::vector<std::vector<Proposal>> loaded;
    std::vector<std::vector<Agreement>> agreements;
    std::vector<float> lacking;
    for (const Choice& choice : chosen) {
      const Handles handles = handles_of(engine_, choice);
      agreements.push_back(agreements_on(choice.change, handles));
      std::optional<std::vector<Proposal>> here;
      // Where all kernels of this name differ from the one that it was found for, no rank uses it.
      if ((!handles.empty() || handles_named(engine_, choice.change).empty()) &&
          std::chrono::steady_clock::now() < built)
        here = loader_.load(choice.change, handles, false);
      const bool remembered = std::ranges::all_of(agreements.back(), [](const Agreement& one) {
        return one.handle->problems().may_agree(one.problem);
      });
      lacking.push_back(here && remembered ? 0.0F : 1.0F);
      loaded.push_back(std::move(here).value_or(std::vector<Proposal>()));
    }
    // Others may have had more to build than this rank.
    if (!lacking.empty())
      check(ranks_.reduce(lacking, Reduction::max, deadline_in(2 * options_.step_seconds)),
            "comparing");
    std::vector<Proposal> published;
    std::vector<Agreement> agreed;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if (lacking[i] == 0) {
        report.changes.push_back(chosen[i].change);
        std::move(loaded[i].begin(), loaded[i].end(), std::back_inserter(published));
        std::move(agreements[i].begin(), agreements[i].end(), std::back_inserter(agreed));
      }
    report.dropped = chosen.size() - report.changes.size();
    report.generation = generation + (report.changes.empty() ? 0 : 1);
    report.digest = digest_of(report);
    confirm(report.digest);
    // This comes first: launches of a problem that is not held here use what was agreed.
    for (const Agreement& one : agreed)
      one.handle->problems().agree_over(one.problem, one.seen, one.config);
    for (Proposal& one : published) publish(one);
    return report;
  } catch (const std::exception& error) {
    leave(error.what());
    throw;
  } catch (...) {
    leave("Runtime::commit failed");
    throw;
  }

 private:
  /// The other ranks must not wait for a rank that does not take part.
  void leave(const char* why) noexcept {
    if (!all_know_) ranks_.abort({RankFailure::Kind::aborted, {ranks_.rank()}, why});
  }

  Deadline step() const { return deadline_in(options_.step_seconds); }

  void check(const Communicator::Failure& failure, const char* doing) {
    if (!failure) return;
    ranks_.abort(*failure);
    all_know_ = true;
    throw EnvironmentError(
        format("Runtime::commit: {} the proposals of the ranks failed, so nothing "
               "is published: {}",
               doing, failure->describe()));
  }

  /// The proposals of all ranks.
  std::vector<Choice> exchange() {
    json own = json::array();
    for (const Choice& choice : loader_.choices()) own.push_back(to_json(choice));
    const std::string text = own.dump();
    if (text.size() > kMostBytes)
      throw InternalError("the proposals of a commit are larger than a rank may send");
    const auto count = static_cast<std::size_t>(ranks_.size());
    const Opening opening{.size = text.size(), .nonce = unpredictable_bits()};
    openings_.resize(count);
    check(ranks_.gather(std::as_bytes(std::span(&opening, 1)),
                        std::as_writable_bytes(std::span(openings_)),
                        deadline_in(options_.first_seconds)),
          "exchanging");
    std::uint64_t largest = 0;
    for (const Opening& one : openings_) {
      if (one.magic != Opening::kMagic || one.size > kMostBytes)
        throw EnvironmentError(
            "Runtime::commit: another rank is not in a commit, or runs another version of Kiln");
      largest = std::max(largest, one.size);
    }
    std::vector<std::byte> mine(largest), all(count * largest);
    std::memcpy(mine.data(), text.data(), text.size());
    check(ranks_.gather(mine, all, step()), "exchanging");
    std::vector<Choice> proposals;
    for (std::size_t rank = 0; rank < count; ++rank) {
      const auto* const begin = reinterpret_cast<const char*>(all.data() + rank * largest);
      for (const json& one : json::parse(begin, begin + openings_[rank].size))
        proposals.push_back(from_json(one));
    }
    return proposals;
  }

  /// No two commits settle the same one: answers may outlive a job.
  Digest question(const Digest& digest) const {
    detail::KeyBuilder key("commit's question", 1);
    key.add("digest", digest);
    for (const Opening& one : openings_) key.add("nonce", static_cast<std::int64_t>(one.nonce));
    return key.finish().digest;
  }

  /// All ranks publish, or none.
  void confirm(const Digest& digest) {
    const auto count = static_cast<std::size_t>(ranks_.size());
    std::vector<std::byte> all(count * sizeof(Digest));
    const auto mine = std::as_bytes(std::span(&digest, 1));
    const Communicator::Failure failure = ranks_.gather(mine, all, step());
    const auto other = [&](std::size_t rank) {
      return std::memcmp(all.data() + rank * sizeof(Digest), mine.data(), sizeof(Digest)) != 0;
    };
    bool confirmed = !failure;
    for (std::size_t rank = 0; !failure && rank < count; ++rank)
      confirmed = confirmed && !other(rank);
    if (ranks_.settles()) {
      const auto answer = ranks_.settle(question(digest), confirmed, step());
      if (answer && *answer) return;
      check(failure, "confirming");
      // It cannot be known what the others read, or one of them has failed.
      if (confirmed)
        check(RankFailure{RankFailure::Kind::aborted,
                          {},
                          answer ? "a rank failed in the last exchange"
                                 : "the folder where the ranks settle their answer cannot be "
                                   "reached"},
              "confirming");
    } else if (confirmed) {
      return;
    }
    check(failure, "confirming");
    all_know_ = true;
    throw EnvironmentError(
        "Runtime::commit: the ranks came to different results, so nothing is published; do all of "
        "them commit at the same step, with the same kernels?");
  }

  detail::Engine& engine_;
  Loader loader_;
  Communicator& ranks_;
  const std::unique_lock<std::recursive_mutex> turn_;
  const RankOptions& options_;
  /// The first message of each rank: the size of its proposals, and a random number.
  struct Opening {
    static constexpr std::uint64_t kMagic = 0x326d6d636e6c696b;  // "kilncmm2"
    std::uint64_t magic = kMagic, size = 0, nonce = 0;
  };
  std::vector<Opening> openings_;  ///< of all ranks
  bool all_know_ = false;          ///< that this commit fails
};

}  // namespace

CommitReport agree_on_commit(detail::Engine& engine, const std::vector<Proposal>& found,
                             std::uint64_t generation, const PublishOne& publish) {
  if (engine.options().tuning.ranks) return Together(engine, found).run(generation, publish);
  CommitReport report;
  Loader loader(engine, found);
  for (const Proposal& one : found) {
    const auto handle = one.handle.lock();
    if (!handle) continue;
    const Choice choice = loader.choice_of(one, *handle);
    auto loaded = loader.load(choice.change, {&handle, 1}, true);
    if (!loaded) {
      ++report.dropped;
      continue;
    }
    // Other handles of the kernel get it, too, unless they have found something themselves or their
    // rules forbid it.
    for (const auto& other : handles_of(engine, choice)) {
      const bool has_own = std::ranges::any_of(found, [&](const Proposal& its) {
        return its.place == other.get() && its.launchable.problem == one.launchable.problem;
      });
      if (has_own) continue;
      if (auto more = loader.load(choice.change, {&other, 1}, true))
        std::move(more->begin(), more->end(), std::back_inserter(*loaded));
    }
    bool published = false;
    for (Proposal& ready : *loaded) published = publish(ready) || published;
    if (published) report.changes.push_back(choice.change);
  }
  std::ranges::sort(report.changes, {}, [](const Change& c) {
    return std::tie(c.kernel, c.types, c.problem, c.config);
  });
  report.changes.erase(std::unique(report.changes.begin(), report.changes.end()),
                       report.changes.end());
  report.generation = generation + (report.changes.empty() ? 0 : 1);
  report.digest = digest_of(report);
  return report;
}

}  // namespace kiln::runtime
