#include "runtime/background/ballot.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "kiln/detail/key_builder.hpp"

namespace kiln::runtime {

using nlohmann::json;
using Change = CommitReport::Change;

namespace {

json to_json(const Change& c) {
  return {{"kernel", c.kernel}, {"types", c.types}, {"problem", c.problem}, {"config", c.config}};
}

json to_json(const std::optional<Named>& config) { return config ? json(*config) : json(); }

std::optional<Named> config_from(const json& j) {
  return j.is_null() ? std::nullopt : std::optional(j.get<Named>());
}

/// The one with the most votes, and of several the least.
std::optional<Named> elected(const std::map<Named, std::size_t>& votes) {
  const auto most = std::ranges::max_element(votes, {}, [](const auto& one) { return one.second; });
  return most == votes.end() ? std::nullopt : std::optional(most->first);
}

}  // namespace

bool PlaceOrder::operator()(const KernelChange& a, const KernelChange& b) const {
  const auto place_of = [](const KernelChange& c) {
    return std::tie(c.change.kernel, c.change.types, c.change.problem, c.definition);
  };
  return place_of(a) < place_of(b);
}

json to_json(const Entry& entry) {
  const Change& change = entry.place.change;
  return {{"kernel", change.kernel},       {"types", change.types},
          {"problem", change.problem},     {"definition", entry.place.definition},
          {"found", to_json(entry.found)}, {"in_use", to_json(entry.in_use)},
          {"given_up", entry.given_up},    {"agreed", entry.agreed}};
}

Entry entry_from(const json& j) {
  Entry entry;
  Change& change = entry.place.change;
  j.at("kernel").get_to(change.kernel);
  j.at("types").get_to(change.types);
  j.at("problem").get_to(change.problem);
  j.at("definition").get_to(entry.place.definition);
  entry.found = config_from(j.at("found"));
  entry.in_use = config_from(j.at("in_use"));
  j.at("given_up").get_to(entry.given_up);
  j.at("agreed").get_to(entry.agreed);
  return entry;
}

Choices choose(std::span<const Entry> entries) {
  struct Votes {
    std::map<Named, std::size_t> agreed, found, in_use;
    bool open = false, unsettled = false;
  };
  std::map<KernelChange, Votes, PlaceOrder> places;
  for (const Entry& entry : entries) {
    Votes& votes = places[entry.place];
    if (entry.found) ++(entry.agreed ? votes.agreed : votes.found)[*entry.found];
    if (entry.in_use) ++votes.in_use[*entry.in_use];
    votes.unsettled = votes.unsettled || !entry.agreed;
    votes.open = votes.open || (!entry.found && !entry.given_up);
  }
  Choices choices;
  for (const auto& [place, votes] : places) {
    if (!votes.unsettled) continue;
    const auto& found = votes.agreed.empty() ? votes.found : votes.agreed;
    if (found.empty() && votes.open) {
      choices.open.push_back(place);
      continue;
    }
    Choice choice{place, elected(found), elected(votes.in_use)};
    (choice.found ? choices.found : choices.given_up).push_back(std::move(choice));
  }
  return choices;
}

Digest digest_of(const CommitReport& report) {
  detail::KeyBuilder key("commit", 1);
  key.add("generation", static_cast<std::int64_t>(report.generation));
  for (const Change& change : report.changes) key.add("change", to_json(change).dump());
  return key.finish().digest;
}

Digest digest_of(const CommitReport& report, std::span<const Choice> kept,
                 std::span<const KernelChange> open, std::span<const KernelChange> pending) {
  detail::KeyBuilder key("commit of ranks", 1);
  key.add("report", report.digest);
  for (const Choice& choice : kept) key.add("kept", to_json(choice.place.change).dump());
  for (const KernelChange& place : open) key.add("open", to_json(place.change).dump());
  for (const KernelChange& one : pending) key.add("pending", to_json(one.change).dump());
  return key.finish().digest;
}

}  // namespace kiln::runtime
