#include "runtime/tune/starting_points.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

#include <nlohmann/json.hpp>

#include "runtime/support/infinity.hpp"
#include "runtime/tune/record.hpp"

namespace kiln::runtime {

using nlohmann::json;

namespace {

/// Distances of another device: of the same target, of the same kind of target, of another kind.
/// The unit is that of |log2| of a problem's size.
constexpr double kOtherDevice = 1, kOtherTarget = 3, kOtherKind = 8;
constexpr std::size_t kMostResults = 160;  ///< of a record that are kept in mind
constexpr std::size_t kMostAsked = 16;     ///< neighbours whose records are read for one guess
constexpr std::string_view kDevicePrefix = "device.";

bool is_gpu(const std::string& target) { return target.starts_with("sm_"); }

/// Nothing when the names differ.
std::optional<double> distance(const std::map<std::string, std::int64_t>& from,
                               const std::vector<std::string>& fields,
                               std::span<const std::int64_t> problem) {
  if (from.size() != fields.size()) return {};
  double sum = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto value = from.find(fields[i]);
    if (value == from.end()) return {};
    sum += size_distance(value->second, problem[i]);
  }
  return sum;
}

/// Nothing if the candidate was not tried, or was cut off, or failed for want of something.
std::optional<double> seconds_told(const Candidate& candidate) {
  switch (candidate.status) {
    case CandidateStatus::measured:
      return candidate.seconds;
    case CandidateStatus::violates_constraint:  // it costs nothing to see that
    case CandidateStatus::not_tried:
    case CandidateStatus::out_of_memory:
      return {};
    default:
      return kInfinity;
  }
}

/// Keeps kMostResults: half of them the fastest, and half spread evenly over the others.
void thin(std::vector<Evidence::Result>& results) {
  if (results.size() <= kMostResults) return;
  std::stable_sort(results.begin(), results.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  constexpr std::size_t kFast = kMostResults / 2;
  const std::size_t others = results.size() - kFast;
  for (std::size_t i = kFast; i < kMostResults; ++i)
    results[i] = results[kFast + (i - kFast) * others / (kMostResults - kFast)];
  results.resize(kMostResults);
}

}  // namespace

void StartingPoints::add(const Key& key, const json& record) {
  std::lock_guard lock(mutex_);
  insert(key, record);
}

void StartingPoints::insert(const Key& key, const json& record) try {
  Past past{key, record.at("winner"), record.at("problem"), {}, {}, {}};
  for (const KeyField& f : key.fields) {
    if (f.name == "target") past.target = f.value;
    if (f.name.starts_with(kDevicePrefix))
      past.device.push_back({f.name.substr(kDevicePrefix.size()), f.value});
  }
  std::string kernel = record.at("kernel");
  for (const std::string& type : record.at("types").get<std::vector<std::string>>())
    kernel += "," + type;
  pasts_[kernel][key.hex()] = std::move(past);
} catch (const json::exception&) {
  // A record of another schema has nothing to suggest.
}

const StartingPoints::Told& StartingPoints::told(Past& past) {
  if (past.told) return *past.told;
  Told& told = past.told.emplace();
  try {
    const auto record = store_->find_record(past.key);
    auto result = record ? result_in(*record, past.key) : std::nullopt;
    if (!result) return told;
    told.parameters = std::move(result->parameters);
    for (Candidate& c : result->candidates)
      if (const auto seconds = seconds_told(c))
        told.results.push_back({std::move(c.config), *seconds});
    thin(told.results);
  } catch (const json::exception&) {  // of another schema
    told = {};
  }
  return told;
}

std::vector<std::pair<double, StartingPoints::Past*>> StartingPoints::pasts(
    const detail::Tunable& subject, std::span<const std::int64_t> problem,
    const DeviceInfo& device) {
  if (!read_) {
    read_ = true;
    store_->each_record([&](const Key& key, const json& record) { insert(key, record); });
  }
  std::string name = subject.name();
  for (const std::string& type : subject.types()) name += "," + type;
  std::vector<std::pair<double, Past*>> found;
  for (auto& [key, past] : pasts_[name]) {
    const auto apart = distance(past.problem, subject.problem_fields(), problem);
    if (!apart) continue;
    const bool same_device =
        std::equal(past.device.begin(), past.device.end(), device.fingerprint.begin(),
                   device.fingerprint.end(), [](const KeyField& a, const KeyField& b) {
                     return a.name == b.name && a.value == b.value;
                   });
    const double other = past.target == device.target.arch && same_device    ? 0
                         : past.target == device.target.arch                 ? kOtherDevice
                         : is_gpu(past.target) == is_gpu(device.target.arch) ? kOtherTarget
                                                                             : kOtherKind;
    found.emplace_back(*apart + other, &past);
  }
  return found;
}

std::vector<Values> StartingPoints::nearest(const detail::Tunable& subject,
                                            std::span<const std::int64_t> problem,
                                            const DeviceInfo& device, std::size_t count) {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<double, Values>> found;
  for (const auto& [apart, past] : pasts(subject, problem, device)) {
    if (past->winner.size() != subject.space().parameters().size()) continue;
    Values config;
    for (const Parameter& p : subject.space().parameters())
      if (const auto value = past->winner.find(p.name); value != past->winner.end())
        config.push_back(value->second);
    if (config.size() == past->winner.size()) found.emplace_back(apart, std::move(config));
  }
  std::sort(found.begin(), found.end());
  std::vector<Values> nearest;
  for (auto& [apart, config] : found) {
    if (nearest.size() == count) break;
    if (std::find(nearest.begin(), nearest.end(), config) == nearest.end())
      nearest.push_back(std::move(config));
  }
  return nearest;
}

std::optional<Values> StartingPoints::nearest_winner(const detail::Tunable& subject,
                                                     std::span<const std::int64_t> problem,
                                                     const DeviceInfo& device, const Key& own) {
  std::vector<std::pair<double, Key>> near;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [apart, past] : pasts(subject, problem, device))
      if (past->key.digest != own.digest && differs_in_problem_alone(past->key, own))
        near.emplace_back(apart, past->key);
  }
  const std::size_t asked = std::min(near.size(), kMostAsked);
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(asked), near.end(),
                    [](const auto& a, const auto& b) {
                      return std::tie(a.first, a.second.digest) <
                             std::tie(b.first, b.second.digest);
                    });
  near.resize(asked);
  std::optional<std::vector<Values>> listed;  // by the kernel's author, once that is asked for
  for (const auto& [apart, key] : near) {
    const auto record = store_->find_record(key);
    const auto result = record ? result_in(*record, key) : std::nullopt;
    if (!result || result->winner().status != CandidateStatus::measured) continue;
    const Values& winner = result->winner().config;
    if (winner.size() != subject.space().parameters().size() ||
        !in_space(subject.space(), winner) ||
        subject.space().violated(winner, problem, device.limits))
      continue;
    if (!listed) listed = subject.configs(problem, device.limits);
    if (listed->empty() || std::ranges::find(*listed, winner) != listed->end()) return winner;
  }
  return {};
}

std::vector<Evidence> StartingPoints::evidence(const detail::Tunable& subject,
                                               std::span<const std::int64_t> problem,
                                               const DeviceInfo& device, const Key& own,
                                               std::size_t count) {
  std::lock_guard lock(mutex_);
  auto found = pasts(subject, problem, device);
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Evidence> all;
  for (const auto& [apart, past] : found) {
    if (all.size() == count) break;
    if (past->key.digest == own.digest) continue;
    const Told& told = this->told(*past);
    std::vector<std::size_t> place;  // by today's parameters
    for (const Parameter& p : subject.space().parameters()) {
      const auto at = std::find(told.parameters.begin(), told.parameters.end(), p.name);
      if (at != told.parameters.end())
        place.push_back(static_cast<std::size_t>(at - told.parameters.begin()));
    }
    if (place.size() != subject.space().parameters().size() ||
        place.size() != told.parameters.size() || told.results.empty())
      continue;
    Evidence& task = all.emplace_back();
    task.distance = apart;
    for (const Evidence::Result& result : told.results) {
      Values config;
      for (const std::size_t p : place) config.push_back(result.config[p]);
      task.results.push_back({std::move(config), result.seconds});
    }
  }
  return all;
}

}  // namespace kiln::runtime
