#include "runtime/tune/starting_points.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include <nlohmann/json.hpp>

namespace kiln::runtime {

using nlohmann::json;

namespace {

/// Another device of the same target, of the same kind of target, of another kind: in the units of
/// |log2| of a problem's size.
constexpr double kOtherDevice = 1, kOtherTarget = 3, kOtherKind = 8;
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
    const double a = 1.0 + std::abs(static_cast<double>(value->second));
    sum += std::abs(std::log2(a / (1.0 + std::abs(static_cast<double>(problem[i])))));
  }
  return sum;
}

}  // namespace

void StartingPoints::add(const Key& key, const json& record) {
  std::lock_guard lock(mutex_);
  insert(key, record);
}

void StartingPoints::insert(const Key& key, const json& record) try {
  Winner winner{record.at("winner"), record.at("problem"), {}, {}};
  for (const KeyField& f : key.fields) {
    if (f.name == "target") winner.target = f.value;
    if (f.name.starts_with(kDevicePrefix))
      winner.device.push_back({f.name.substr(kDevicePrefix.size()), f.value});
  }
  std::string kernel = record.at("kernel");
  for (const std::string& type : record.at("types").get<std::vector<std::string>>())
    kernel += "," + type;
  winners_[kernel][key.hex()] = std::move(winner);
} catch (const json::exception&) {
  // A record of another schema has nothing to suggest.
}

std::vector<Values> StartingPoints::nearest(const detail::Tunable& subject,
                                            std::span<const std::int64_t> problem,
                                            const DeviceInfo& device, std::size_t count) {
  std::lock_guard lock(mutex_);
  if (!read_) {
    read_ = true;
    store_->each_record([&](const Key& key, const json& record) { insert(key, record); });
  }
  std::string name = subject.name();
  for (const std::string& type : subject.types()) name += "," + type;
  std::vector<std::pair<double, Values>> found;
  for (const auto& [key, winner] : winners_[name]) {
    const auto apart = distance(winner.problem, subject.problem_fields(), problem);
    if (!apart || winner.config.size() != subject.space().parameters().size()) continue;
    Values config;
    for (const Parameter& p : subject.space().parameters())
      if (const auto value = winner.config.find(p.name); value != winner.config.end())
        config.push_back(value->second);
    if (config.size() != winner.config.size()) continue;
    const bool same_device =
        std::equal(winner.device.begin(), winner.device.end(), device.fingerprint.begin(),
                   device.fingerprint.end(), [](const KeyField& a, const KeyField& b) {
                     return a.name == b.name && a.value == b.value;
                   });
    const double other = winner.target == device.target.arch && same_device    ? 0
                         : winner.target == device.target.arch                 ? kOtherDevice
                         : is_gpu(winner.target) == is_gpu(device.target.arch) ? kOtherTarget
                                                                               : kOtherKind;
    found.emplace_back(*apart + other, std::move(config));
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

}  // namespace kiln::runtime
