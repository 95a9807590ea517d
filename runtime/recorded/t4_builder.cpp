#include "runtime/recorded/t4_builder.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "runtime/recorded/time_unit.hpp"
#include "runtime/support/infinity.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

constexpr std::size_t kMaxEntries = std::size_t{1} << 26;
constexpr std::size_t kMaxValues = 0xffff;  ///< per parameter: places are 16 bits
constexpr std::size_t kMaxRuntimes = std::size_t{1} << 20;
constexpr std::size_t kMaxText = 4096;  ///< bytes of a name or value

bool is_time(double value) { return std::isfinite(value) && value > 0; }

std::optional<std::int64_t> integer(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || std::to_string(value) != text) return {};
  return value;
}

std::string text_of(const T4Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* number = std::get_if<double>(&value)) return format("{}", *number);
  return "null";
}

template <class T>
bool all(const std::vector<T4Value>& values) {
  return std::ranges::all_of(values, [](const T4Value& v) { return std::holds_alternative<T>(v); });
}

double number(const T4Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return std::get<double>(value);
}

/// Fills in kind, values and texts; returns the order of `seen`: place to number of appearance.
std::vector<std::uint16_t> arrange(std::vector<T4Value> seen, RecordedParameter& parameter) {
  std::vector<std::uint16_t> order(seen.size());
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  const auto sort_by = [&](auto less) {
    std::ranges::sort(order, [&](auto a, auto b) { return less(seen[a], seen[b]); });
    for (std::uint16_t at : order) parameter.texts.push_back(text_of(seen[at]));
  };
  const bool numbers = std::ranges::all_of(seen, [](const T4Value& v) {
    return std::holds_alternative<std::int64_t>(v) || std::holds_alternative<double>(v);
  });
  const bool spelled = all<std::string>(seen) && std::ranges::all_of(seen, [](const T4Value& v) {
                         return integer(std::get<std::string>(v)).has_value();
                       });
  if (all<std::int64_t>(seen) || spelled) {
    if (spelled)
      for (T4Value& v : seen) v = *integer(std::get<std::string>(v));
    sort_by([](const auto& a, const auto& b) {
      return std::get<std::int64_t>(a) < std::get<std::int64_t>(b);
    });
    for (std::uint16_t at : order) parameter.values.push_back(std::get<std::int64_t>(seen[at]));
    return order;
  }
  if (all<bool>(seen)) {
    parameter.kind = FieldKind::boolean;
    sort_by([](const auto& a, const auto& b) { return std::get<bool>(a) < std::get<bool>(b); });
    for (std::uint16_t at : order) parameter.values.push_back(std::get<bool>(seen[at]));
    return order;
  }
  if (numbers) {
    sort_by([](const auto& a, const auto& b) { return number(a) < number(b); });
  } else {
    parameter.kind = FieldKind::enumeration;
    sort_by([](const auto& a, const auto& b) {
      return std::pair(text_of(a), a.index()) < std::pair(text_of(b), b.index());
    });
  }
  parameter.values.resize(seen.size());
  std::iota(parameter.values.begin(), parameter.values.end(), std::int64_t{0});
  return order;
}

CandidateStatus status_of(const std::string& invalidity) {
  if (invalidity == "correct") return CandidateStatus::measured;
  if (invalidity == "compile") return CandidateStatus::compile_failed;
  if (invalidity == "constraints") return CandidateStatus::violates_constraint;
  if (invalidity == "correctness") return CandidateStatus::wrong_result;
  return CandidateStatus::launch_failed;
}

}  // namespace

T4Builder::T4Builder(std::filesystem::path file) : data_(std::make_shared<RecordedSpace::Data>()) {
  data_->file = std::move(file);
}

void T4Builder::fail(const std::string& what) const {
  const std::string where = in_entry_ ? format(": results[{}]: ", data_->entries.size()) : ": ";
  throw UserError(data_->file.string() + where + what);
}

void T4Builder::begin_entry() {
  in_entry_ = true;
  if (data_->entries.size() == kMaxEntries) fail(format("more than {} entries", kMaxEntries));
  has_configuration_ = false;
  given_ = next_ = 0;
  seen_.assign(columns_.size(), false);
  compilation_ = 0;
  invalidity_.clear();
  measurement_.reset(), correct_.reset();
  runtimes_.clear();
}

void T4Builder::runtime(double time) {
  if (runtimes_.size() == kMaxRuntimes) fail(format("more than {} `times.runtimes`", kMaxRuntimes));
  runtimes_.push_back(time);
}

void T4Builder::measurement(Measurement measurement) {
  if (!measurement_ || (measurement.name == "time" && measurement_->name != "time"))
    measurement_ = std::move(measurement);
}

std::uint16_t T4Builder::place(Column& column, T4Value value, const std::string& name) {
  // 16.0 is 16: files written by different tools differ in that.
  if (const auto* real = std::get_if<double>(&value);
      real && std::trunc(*real) == *real && std::abs(*real) < 0x1p53)
    value = static_cast<std::int64_t>(*real);
  const auto next = static_cast<std::uint16_t>(column.values.size());
  bool added = false;
  std::uint16_t found = 0;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    const auto [at, is_new] = column.integers.emplace(*whole, next);
    found = at->second, added = is_new;
  } else {
    const auto [at, is_new] = column.others.emplace(value, next);
    found = at->second, added = is_new;
  }
  if (!added) return found;
  if (column.values.size() == kMaxValues)
    fail(format("parameter '{}' has more than {} different values", name, kMaxValues));
  column.values.push_back(std::move(value));
  return found;
}

void T4Builder::parameter(const std::string& name, T4Value value) {
  const bool first = data_->entries.empty();
  auto& parameters = data_->parameters;
  if (const auto* text = std::get_if<std::string>(&value); text && text->size() > kMaxText)
    fail(format("a value of parameter '{}' has more than {} bytes", name, kMaxText));
  std::size_t at = next_;
  if (at >= parameters.size() || parameters[at].name != name)
    at = static_cast<std::size_t>(std::ranges::find(parameters, name, &RecordedParameter::name) -
                                  parameters.begin());
  if (at == parameters.size()) {
    if (!first) fail(format("parameter '{}' is not one of the first entry's", name));
    if (name.empty()) fail("a parameter has an empty name");
    if (name.size() > kMaxText) fail(format("a parameter's name has more than {} bytes", kMaxText));
    if (at == RecordedSpace::Data::kMaxParameters) fail(format("more than {} parameters", at));
    parameters.push_back({name, FieldKind::integer, {}, {}});
    columns_.emplace_back();
    seen_.push_back(false);
  }
  if (seen_[at]) fail(format("parameter '{}' is given twice", name));
  seen_[at] = true;
  next_ = at + 1;
  ++given_;
  auto& places = data_->places;
  places.resize((data_->entries.size() + 1) * parameters.size());
  places[data_->entries.size() * parameters.size() + at] =
      place(columns_[at], std::move(value), name);
}

void T4Builder::check_configuration() {
  if (!has_configuration_) fail("`configuration` is missing");
  if (given_ == 0) fail("`configuration` is empty");
  if (given_ == columns_.size()) return;
  const auto missing = std::ranges::find(seen_, false) - seen_.begin();
  fail(format("parameter '{}' is missing in `configuration`",
              data_->parameters[static_cast<std::size_t>(missing)].name));
}

std::uint16_t T4Builder::invalidity_number() {
  auto& known = data_->invalidities;
  const auto at = std::ranges::find(known, invalidity_);
  if (at != known.end()) return static_cast<std::uint16_t>(at - known.begin());
  if (known.size() == 1000 || invalidity_.size() > kMaxText)
    fail("`invalidity` is not one of the usual words");
  known.push_back(invalidity_);
  return static_cast<std::uint16_t>(known.size() - 1);
}

/// An `invalidity` that the entry does not have follows from its other fields.
void T4Builder::judge() {
  if (!invalidity_.empty()) return;
  const std::string failure = measurement_ ? measurement_->failure : "";
  if (!failure.empty())
    invalidity_ = failure.find("Compil") != std::string::npos ? "compile" : "runtime";
  else
    invalidity_ = correct_.value_or(true) ? "correct" : "correctness";
}

void T4Builder::take_times(RecordedSpace::Data::Entry& entry) {
  for (std::size_t i = 0; i < runtimes_.size(); ++i)
    if (!is_time(runtimes_[i]))
      fail(format("`times.runtimes[{}]` is {}: not a time", i, runtimes_[i]));
  // The unit of another measurement, such as a rate, does not matter.
  const bool matters =
      measurement_ && (runtimes_.empty() || measurement_->name.find("time") != std::string::npos);
  const auto unit = matters ? seconds_per(measurement_->unit) : std::optional(1.0);
  if (!unit)
    fail(format("`measurements` has the unknown unit '{}' (known: {})", measurement_->unit,
                known_units()));
  if (runtimes_.empty()) {
    if (!measurement_ || !measurement_->value)
      fail("the entry is correct, but has neither `times.runtimes` nor a measurement");
    if (!is_time(*measurement_->value))
      fail(format("its measurement is {}: not a time", *measurement_->value));
    // Without a unit of its own it is in the file's unit, which may stand at the end of the file.
    if (!measurement_->unit.empty()) own_units_.push_back({data_->entries.size(), *unit});
    runtimes_.push_back(*measurement_->value);
  }
  entry.seconds = std::accumulate(runtimes_.begin(), runtimes_.end(), 0.0) /
                  static_cast<double>(runtimes_.size());
  entry.samples = static_cast<std::uint32_t>(runtimes_.size());
  data_->samples.insert(data_->samples.end(), runtimes_.begin(), runtimes_.end());
  ++data_->works;
}

void T4Builder::end_entry() {
  check_configuration();
  judge();
  RecordedSpace::Data::Entry entry;
  entry.status = status_of(invalidity_);
  entry.invalidity = invalidity_number();
  entry.compile_seconds = compilation_;
  entry.first_sample = data_->samples.size();
  entry.seconds = kInfinity;
  if (!std::isfinite(compilation_) || compilation_ < 0)
    fail(format("`times.compilation` is {}: not a time", compilation_));
  if (entry.status == CandidateStatus::measured) take_times(entry);
  data_->entries.push_back(entry);
  in_entry_ = false;
}

void T4Builder::order_values() {
  const std::size_t width = columns_.size();
  for (std::size_t p = 0; p < width; ++p) {
    const std::vector<std::uint16_t> order =
        arrange(std::move(columns_[p].values), data_->parameters[p]);
    std::vector<std::uint16_t> place_of(order.size());
    for (std::size_t place = 0; place < order.size(); ++place)
      place_of[order[place]] = static_cast<std::uint16_t>(place);
    for (std::size_t at = p; at < data_->places.size(); at += width)
      data_->places[at] = place_of[data_->places[at]];
  }
  columns_.clear();
}

void T4Builder::convert_times() {
  const auto unit = seconds_per(unit_);
  if (!unit)
    fail(format("`metadata.timeunit` is the unknown unit '{}' (known: {})", unit_, known_units()));
  auto own = own_units_.begin();
  for (std::size_t i = 0; i < data_->entries.size(); ++i) {
    auto& entry = data_->entries[i];
    const bool has_own = own != own_units_.end() && own->first == i;
    const double scale = has_own ? (own++)->second : *unit;
    entry.seconds *= scale;
    entry.compile_seconds *= *unit;
    for (std::size_t s = 0; s < entry.samples; ++s) data_->samples[entry.first_sample + s] *= scale;
  }
}

void T4Builder::choose() {
  const auto& entries = data_->entries;
  data_->first = data_->best = entries.size();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].status != CandidateStatus::measured) continue;
    if (data_->first == entries.size()) data_->first = i;
    if (data_->best == entries.size() || entries[i].seconds < entries[data_->best].seconds)
      data_->best = i;
  }
}

void T4Builder::sign() {
  detail::KeyBuilder key("recorded space", 1);
  for (const RecordedParameter& p : data_->parameters)
    key.add(p.name, std::span<const std::string>(p.texts));
  std::vector<double> times;
  for (const auto& e : data_->entries) {
    times.push_back(static_cast<double>(e.samples));
    times.push_back(e.compile_seconds);
    times.push_back(static_cast<double>(e.invalidity));
  }
  data_->digest = key.add("invalidities", std::span<const std::string>(data_->invalidities))
                      .add("places", sha256(std::as_bytes(std::span(data_->places))))
                      .add("entries", sha256(std::as_bytes(std::span(times))))
                      .add("samples", sha256(std::as_bytes(std::span(data_->samples))))
                      .finish()
                      .digest;
}

std::shared_ptr<const RecordedSpace::Data> T4Builder::finish() {
  if (data_->entries.empty()) fail("`results` is empty: nothing was recorded");
  order_values();
  convert_times();
  data_->samples.shrink_to_fit();
  data_->places.shrink_to_fit();
  data_->entries.shrink_to_fit();
  if (const auto [again, before] = data_->make_index(); again != before) {
    const auto point = data_->point(again);
    std::string config;
    for (std::size_t i = 0; i < point.size(); ++i)
      config +=
          (i ? "," : "") + data_->parameters[i].name + "=" + data_->parameters[i].texts[point[i]];
    fail(format("results[{}] lists the configuration of results[{}] again: {}", again, before,
                config));
  }
  if (data_->works == 0)
    fail(format("none of the {} configurations works, so there is no optimum",
                data_->entries.size()));
  choose();
  sign();
  return std::move(data_);
}

}  // namespace kiln::runtime
