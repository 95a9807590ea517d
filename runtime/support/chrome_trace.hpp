// Traces in the Trace Event Format, which Chrome's viewer and Perfetto read.
#pragma once

#include <cstddef>
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

  /// Microseconds since `start` seconds. An arrow leads from where a config is compiled, or found
  /// in the store, to where it is loaded. Replaces the file. @throws EnvironmentError when it
  /// cannot be written
  void write(const std::filesystem::path& file, double start = 0) const;

 private:
  std::vector<TraceSlice> slices_;
};

}  // namespace kiln::runtime
