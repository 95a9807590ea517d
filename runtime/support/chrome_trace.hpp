// Traces in the Trace Event Format, which Chrome's viewer and Perfetto read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kiln::runtime {

/// A rank, where there are ranks; its number is shown.
struct TraceProcess {
  int number = 0;
  std::string name{};
};

struct TraceSlice {
  TraceProcess process;
  std::string lane;    ///< slices of a lane nest
  std::string name;    ///< compile, find, load, ...
  std::string kernel;  ///< may be empty
  std::string detail;  ///< the config or the problem
  double begin = 0, seconds = 0;
  bool failed = false;
};

/// Not thread-safe.
class ChromeTrace {
 public:
  void add(TraceSlice slice) { slices_.push_back(std::move(slice)); }
  std::size_t size() const noexcept { return slices_.size(); }

  /// Microseconds since `start` seconds. Arrows lead from where a config is compiled, or found in
  /// the store, to where it is loaded, and from there to where launches get it. Replaces the file.
  /// @param dropped slices that are not here, because they came too late: their number is shown
  /// where the others end, and is `dropped` in `otherData`. @throws EnvironmentError when it cannot
  /// be written
  void write(const std::filesystem::path& file, double start = 0, std::uint64_t dropped = 0) const;

 private:
  std::vector<TraceSlice> slices_;
};

}  // namespace kiln::runtime
