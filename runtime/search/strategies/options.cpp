#include "runtime/search/strategies/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

using kiln::detail::format;

StrategyOptions::StrategyOptions(const std::string& text)
    : strategy_(text.substr(0, text.find(':'))) {
  if (strategy_.size() == text.size()) return;
  std::size_t start = strategy_.size() + 1;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string item = text.substr(start, end - start);
    const std::size_t equals = item.find('=');
    const std::size_t number = equals == std::string::npos ? item.size() : equals + 1;
    const char* const last = item.data() + item.size();
    double value = 0;
    // As it is written, whatever the program's locale.
    const auto [rest, error] = std::from_chars(item.data() + number, last, value);
    if (equals == 0 || error != std::errc{} || rest != last || !std::isfinite(value))
      throw UserError(format("strategy '{}': '{}' is not KEY=NUMBER", text, item));
    std::string key = item.substr(0, equals);
    for (const auto& [other, unused] : given_)
      if (other == key) throw UserError(format("strategy '{}': '{}' is given twice", text, key));
    given_.emplace_back(std::move(key), value);
    start = end + 1;
  }
}

double StrategyOptions::take(const std::string& key, double fallback, double least, double most) {
  known_.push_back(key);
  for (const auto& [name, value] : given_) {
    if (name != key) continue;
    if (value < least || value > most)
      throw UserError(format("strategy '{}': {}={} is not between {} and {}", strategy_, key, value,
                             least, most));
    return value;
  }
  return fallback;
}

std::size_t StrategyOptions::count(const std::string& key, std::size_t fallback,
                                   std::size_t least) {
  const double value = take(key, static_cast<double>(fallback), static_cast<double>(least), 1e6);
  if (value != std::floor(value))
    throw UserError(format("strategy '{}': {}={} is not a whole number", strategy_, key, value));
  return static_cast<std::size_t>(value);
}

void StrategyOptions::finish() const {
  for (const auto& [name, value] : given_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    std::string known;
    for (const std::string& key : known_) known += format("{}{}", known.empty() ? "" : ", ", key);
    throw UserError(format("strategy '{}': unknown option '{}' ({})", strategy_, name,
                           known.empty() ? "it has none" : "known: " + known));
  }
}

}  // namespace kiln::runtime
