#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "kiln/recorded.hpp"
#include "runtime/recorded/listed_prefixes.hpp"
#include "runtime/recorded/space_data.hpp"
#include "runtime/recorded/t4_reader.hpp"

namespace kiln {

namespace {

constexpr const char* kListed = "listed in the recorded space";
/// Combinations that a search can look at one by one.
constexpr double kFew = 1 << 20;

}  // namespace

std::size_t RecordedSpace::Data::slot(std::span<const std::uint16_t> point) const {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (std::uint16_t place : point) {
    hash = (hash ^ place) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  const std::size_t mask = table_.size() - 1;
  std::size_t at = hash & mask;
  while (table_[at] != kFree && !std::ranges::equal(this->point(table_[at]), point))
    at = (at + 1) & mask;
  return at;
}

std::pair<std::size_t, std::size_t> RecordedSpace::Data::make_index() {
  table_.assign(std::bit_ceil(2 * entries.size() + 1), kFree);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::uint32_t& place = table_[slot(point(i))];
    if (place != kFree) return {i, place};
    place = static_cast<std::uint32_t>(i);
  }
  return {0, 0};
}

std::size_t RecordedSpace::Data::find(std::span<const std::uint16_t> point) const {
  const std::uint32_t found = table_[slot(point)];
  return found == kFree ? entries.size() : found;
}

RecordedSpace::RecordedSpace(const std::filesystem::path& file) : data_(runtime::read_t4(file)) {}

const std::filesystem::path& RecordedSpace::file() const noexcept { return data_->file; }
std::string RecordedSpace::name() const {
  const std::string name = file().filename().string();
  return name.substr(0, name.find('.', 1));
}
const Digest& RecordedSpace::digest() const noexcept { return data_->digest; }
const std::vector<RecordedParameter>& RecordedSpace::parameters() const noexcept {
  return data_->parameters;
}
std::size_t RecordedSpace::size() const noexcept { return data_->entries.size(); }
std::size_t RecordedSpace::works() const noexcept { return data_->works; }
std::size_t RecordedSpace::best() const noexcept { return data_->best; }
double RecordedSpace::optimum() const noexcept { return data_->entries[data_->best].seconds; }

std::optional<std::size_t> RecordedSpace::find(std::span<const std::int64_t> config) const {
  const auto& parameters = data_->parameters;
  if (config.size() != parameters.size()) return {};
  std::array<std::uint16_t, Data::kMaxParameters> point;
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto& values = parameters[i].values;
    const auto place = std::lower_bound(values.begin(), values.end(), config[i]);
    if (place == values.end() || *place != config[i]) return {};
    point[i] = static_cast<std::uint16_t>(place - values.begin());
  }
  const std::size_t found = data_->find({point.data(), config.size()});
  return found == size() ? std::nullopt : std::optional(found);
}

Values RecordedSpace::config(std::size_t index) const {
  Values values;
  const auto point = data_->point(index);
  for (std::size_t i = 0; i < point.size(); ++i)
    values.push_back(data_->parameters[i].values[point[i]]);
  return values;
}

std::string RecordedSpace::describe(std::size_t index) const {
  std::string text;
  const auto point = data_->point(index);
  for (std::size_t i = 0; i < point.size(); ++i) {
    const RecordedParameter& p = data_->parameters[i];
    text.append(i ? "," : "").append(p.name).append("=").append(p.texts[point[i]]);
  }
  return text;
}

CandidateStatus RecordedSpace::status(std::size_t index) const {
  return data_->entries[index].status;
}
const std::string& RecordedSpace::invalidity(std::size_t index) const {
  return data_->invalidities[data_->entries[index].invalidity];
}
double RecordedSpace::seconds(std::size_t index) const { return data_->entries[index].seconds; }
std::span<const double> RecordedSpace::samples(std::size_t index) const {
  const Data::Entry& entry = data_->entries[index];
  return {data_->samples.data() + entry.first_sample, entry.samples};
}
double RecordedSpace::compile_seconds(std::size_t index) const {
  return data_->entries[index].compile_seconds;
}

DynamicSpace RecordedSpace::dynamic() const {
  DynamicSpace space;
  const Values defaults = config(data_->first);
  for (std::size_t i = 0; i < defaults.size(); ++i) {
    const RecordedParameter& p = data_->parameters[i];
    space.parameter(p.name, p.values, defaults[i], p.kind,
                    p.kind == FieldKind::enumeration ? p.texts : std::vector<std::string>{});
  }
  if (space.combinations() > kFew) {
    const auto prefixes = std::make_shared<const runtime::ListedPrefixes>(*data_);
    for (std::size_t i = 0; i < prefixes->lengths().size(); ++i)
      space.where(
          kListed + std::string(", up to ") + data_->parameters[prefixes->lengths()[i] - 1].name,
          [prefixes, i](std::span<const std::int64_t> config, std::span<const std::int64_t>,
                        const DeviceLimits&) { return prefixes->listed(i, config); });
  }
  space.where(kListed,
              [copy = *this](std::span<const std::int64_t> config, std::span<const std::int64_t>,
                             const DeviceLimits&) { return copy.find(config).has_value(); });
  return space;
}

}  // namespace kiln
