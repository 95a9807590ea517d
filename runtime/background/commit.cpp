#include "runtime/background/commit.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
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

namespace kiln::runtime {

using detail::format;
using nlohmann::json;
using Change = CommitReport::Change;

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;  ///< of one rank's proposals

/// What a change is about, in the order of reports.
auto place_of(const Change& c) { return std::tie(c.kernel, c.types, c.problem); }

bool less(const Change& a, const Change& b) {
  return std::tie(a.kernel, a.types, a.problem, a.config) <
         std::tie(b.kernel, b.types, b.problem, b.config);
}

Change change_of(const Proposal& found, const ServedHandle& handle) {
  const KernelDefinition& kernel = handle.definition();
  const detail::Launchable& ready = found.launchable;
  const detail::Tunable what(kernel);
  return {kernel.name, kernel.types, what.named_problem(ready.problem),
          what.named_config(ready.config)};
}

json to_json(const Change& c) {
  return {{"kernel", c.kernel}, {"types", c.types}, {"problem", c.problem}, {"config", c.config}};
}

Change from_json(const json& j) {
  Change change;
  j.at("kernel").get_to(change.kernel);
  j.at("types").get_to(change.types);
  j.at("problem").get_to(change.problem);
  j.at("config").get_to(change.config);
  return change;
}

Digest digest_of(const CommitReport& report) {
  detail::KeyBuilder key("commit", 1);
  key.add("generation", static_cast<std::int64_t>(report.generation));
  for (const Change& change : report.changes) key.add("change", to_json(change).dump());
  return key.finish().digest;
}

/// The handles of this process that a change is about.
std::vector<std::shared_ptr<ServedHandle>> handles_of(const detail::Engine& engine,
                                                      const Change& change) {
  auto handles = engine.serving().handles();
  std::erase_if(handles, [&](const auto& handle) {
    const KernelDefinition& kernel = handle->definition();
    return handle->fixed() || kernel.name != change.kernel || kernel.types != change.types;
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

/// One config per problem: of those proposed most often the least.
std::vector<Change> choose(std::vector<Change> proposals) {
  std::sort(proposals.begin(), proposals.end(), less);
  std::vector<Change> chosen;
  std::size_t most = 0;
  for (auto next = proposals.begin(); next != proposals.end();) {
    const auto end =
        std::find_if(next, proposals.end(), [&](const Change& c) { return c != *next; });
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

  /// The proposals found here, as changes.
  std::vector<Change> changes() const {
    std::vector<Change> own;
    for (const Proposal& found : found_)
      if (const auto handle = found.handle.lock()) own.push_back(change_of(found, *handle));
    return own;
  }

  /// Loads the config on every handle that has launched the problem; with `provisional`, only where
  /// a provisional launchable is in use. Returns nothing if any handle cannot load it.
  std::optional<std::vector<Proposal>> load(const Change& change,
                                            std::span<const std::shared_ptr<ServedHandle>> handles,
                                            bool provisional) try {
    std::vector<Proposal> loaded;
    for (const auto& handle : handles) {
      const KernelDefinition& kernel = handle->definition();
      const auto problem = in_order(change.problem, kernel.problem_fields);
      const auto config = in_order(change.config, parameters_of(kernel));
      if (!problem || !config) return std::nullopt;
      const detail::Ready seen = handle->find(*problem);
      if (!seen || (provisional && !seen->provisional)) continue;
      loaded.push_back({handle, handle.get(), launchable(*handle, *problem, *config), seen});
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
  std::optional<Values> seen;  ///< agreed on before: what the program decides meanwhile stays
};

std::vector<Agreement> agreements_on(const Change& change,
                                     std::span<const std::shared_ptr<ServedHandle>> handles) {
  std::vector<Agreement> agreements;
  for (const auto& handle : handles) {
    const auto problem = in_order(change.problem, handle->definition().problem_fields);
    const auto config = in_order(change.config, parameters_of(handle->definition()));
    if (problem && config)
      agreements.push_back({handle, *problem, *config, handle->problems().agreed(*problem)});
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
    const std::vector<Change> chosen = choose(exchange());
    std::vector<std::vector<Proposal>> loaded;
    std::vector<std::vector<Agreement>> agreements;
    std::vector<float> lacking;
    for (const Change& change : chosen) {
      const auto handles = handles_of(engine_, change);
      agreements.push_back(agreements_on(change, handles));
      auto here = loader_.load(change, handles, false);
      const bool remembered = std::ranges::all_of(agreements.back(), [](const Agreement& one) {
        return one.handle->problems().may_agree(one.problem);
      });
      lacking.push_back(here && remembered ? 0.0F : 1.0F);
      loaded.push_back(std::move(here).value_or(std::vector<Proposal>()));
    }
    if (!lacking.empty()) check(ranks_.reduce(lacking, Reduction::max, step()), "comparing");
    std::vector<Proposal> published;
    std::vector<Agreement> agreed;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      if (lacking[i] == 0) {
        report.changes.push_back(chosen[i]);
        std::move(loaded[i].begin(), loaded[i].end(), std::back_inserter(published));
        std::move(agreements[i].begin(), agreements[i].end(), std::back_inserter(agreed));
      }
    report.dropped = chosen.size() - report.changes.size();
    report.generation = generation + (report.changes.empty() ? 0 : 1);
    report.digest = digest_of(report);
    confirm(report.digest);
    // First: a launch of a problem that is not held here, or has left, uses what was agreed.
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
  std::vector<Change> exchange() {
    json own = json::array();
    for (const Change& change : loader_.changes()) own.push_back(to_json(change));
    const std::string text = own.dump();
    if (text.size() > kMostBytes)
      throw InternalError("the proposals of a commit are larger than a rank may send");
    const auto count = static_cast<std::size_t>(ranks_.size());
    std::random_device random;
    const Opening opening{text.size(), static_cast<std::uint64_t>(random()) << 32 | random()};
    openings_.resize(count);
    check(ranks_.gather(std::as_bytes(std::span(&opening, 1)),
                        std::as_writable_bytes(std::span(openings_)),
                        deadline_in(options_.first_seconds)),
          "exchanging");
    std::uint64_t largest = 0;
    for (const Opening& one : openings_) largest = std::max(largest, one.size);
    if (largest > kMostBytes)
      throw EnvironmentError("Runtime::commit: another rank is not in a commit");
    std::vector<std::byte> mine(largest), all(count * largest);
    std::memcpy(mine.data(), text.data(), text.size());
    check(ranks_.gather(mine, all, step()), "exchanging");
    std::vector<Change> proposals;
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
    if (ranks_.settles())
      if (const auto answer = ranks_.settle(question(digest), confirmed, step())) {
        if (*answer) return;
        confirmed = false;
      }
    if (confirmed) return;
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
  /// What ranks begin with: the size of their proposals, and a random number.
  struct Opening {
    std::uint64_t size = 0, nonce = 0;
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
  std::set<Digest> done;  // records: what was found for them is the same for each handle
  for (const Proposal& one : found) {
    const auto handle = one.handle.lock();
    if (!handle) continue;
    const Values& problem = one.launchable.problem;
    const Digest record = engine.records().key(handle->definition(), problem).digest;
    if (!done.insert(record).second) continue;
    const Change change = change_of(one, *handle);
    auto handles = handles_of(engine, change);
    std::erase_if(handles, [&](const auto& other) {
      return !other->find(problem) ||
             engine.records().key(other->definition(), problem).digest != record;
    });
    auto loaded = loader.load(change, handles, true);
    if (!loaded) {
      ++report.dropped;
      continue;
    }
    bool published = false;
    for (Proposal& ready : *loaded) published = publish(ready) || published;
    if (published) report.changes.push_back(change);
  }
  std::sort(report.changes.begin(), report.changes.end(), less);
  report.generation = generation + (report.changes.empty() ? 0 : 1);
  report.digest = digest_of(report);
  return report;
}

}  // namespace kiln::runtime
