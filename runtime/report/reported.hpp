// A result that is to be reported, and where it is from.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kiln/key.hpp"
#include "kiln/report.hpp"
#include "kiln/roofline.hpp"
#include "kiln/tune.hpp"

namespace kiln::runtime {

struct Reported {
  TuneResult result{};
  std::string source{};                ///< a path, as readers know it
  std::vector<KeyField> hardware{};    ///< what is known of the device, by name
  std::optional<Roofline> roofline{};  ///< if it was given with the result
  double weight = 0;                   ///< launches, against other problems; 0: not known
  std::filesystem::file_time_type written{};
};

/// What a path has. A file that vanishes while this runs is no news.
/// @throws EnvironmentError where the path itself cannot be read
void read_reported(const std::filesystem::path& path, const std::function<void(Reported)>& found,
                   const std::function<void(Report::PassedOver)>& passed_over);

}  // namespace kiln::runtime
