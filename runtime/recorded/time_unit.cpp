#include "runtime/recorded/time_unit.hpp"

#include <cctype>
#include <utility>

namespace kiln::runtime {

namespace {

constexpr std::pair<std::string_view, double> kUnits[] = {
    {"s", 1},
    {"sec", 1},
    {"secs", 1},
    {"second", 1},
    {"seconds", 1},
    {"ms", 1e-3},
    {"msec", 1e-3},
    {"millisecond", 1e-3},
    {"milliseconds", 1e-3},
    {"milisecond", 1e-3},
    {"miliseconds", 1e-3},
    {"us", 1e-6},
    {"usec", 1e-6},
    {"\u00b5s", 1e-6},
    {"\u03bcs", 1e-6},
    {"microsecond", 1e-6},
    {"microseconds", 1e-6},
    {"ns", 1e-9},
    {"nsec", 1e-9},
    {"nanosecond", 1e-9},
    {"nanoseconds", 1e-9},
};

}  // namespace

std::optional<double> seconds_per(std::string_view unit) {
  std::string name;
  for (char c : unit)
    if (!std::isspace(static_cast<unsigned char>(c)))
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.empty()) return 1e-3;
  for (const auto& [known, seconds] : kUnits)
    if (name == known) return seconds;
  return {};
}

std::string known_units() {
  std::string text;
  for (const auto& [known, seconds] : kUnits)
    text += (text.empty() ? "" : ", ") + std::string(known);
  return text;
}

}  // namespace kiln::runtime
