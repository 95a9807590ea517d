// How one budget is divided among many problems: in slices, each to the problem that is expected to
// gain most by it. A pure function of what was gained so far.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace kiln::runtime {

/// What has become of one problem.
struct TuningCourse {
  struct Slice {
    double seconds = 0;  ///< that it took
    double best = 0;     ///< seconds per launch at its end; 0: nothing was measured
  };
  std::size_t kernel = 0;  ///< problems of one kernel have the same number
  double weight = 1;       ///< launches; 0 or more
  std::vector<Slice> slices;
  bool done = false;   ///< more time would change nothing
  bool known = false;  ///< an earlier run has left a record

  double spent() const noexcept;
  /// Seconds per launch; 0: not known.
  double best() const noexcept { return slices.empty() ? 0 : slices.back().best; }
};

struct NextSlice {
  std::size_t problem;
  double seconds;     ///< greater than 0, at most what is left
  bool look = false;  ///< not a search: what is expected to be best is measured
};

/// Each problem has a first slice: those without a record before the others. Kernels take turns,
/// the one with the smallest part of its problems begun first, so that a budget that is too short
/// for all tells something of each. Of a kernel's problems the heavy ones come before the light
/// ones, and equal ones in an order that soon spreads over them, as they were given, because
/// problems learn from their neighbours. Half of `total` is divided equally among them, half by
/// weight. Where that is too little to compile and search in, a part of the budget goes to the
/// first problems of each kernel, which are searched, and the others have a look at what these and
/// the cost model suggest, which compiles next to nothing. What they leave, because their
/// searches end, goes to the problem with the greatest expected gain per second, again and again,
/// in slices as long as all that the problem has had. The gain is weight x seconds per launch x the
/// share that the slice is expected to save: about half of what the problem's last slice has saved,
/// and what slices of this place have saved for other problems of the kernel. If all weights are 0,
/// nothing is known of launches, and a share saved of one problem is worth as much as of any other.
/// @param left  seconds
/// @param total  seconds of the whole budget
/// @param may_look  else each first slice is a search
/// @return nothing when all is done, or when what is left is too short to find anything in, but for
/// the very first slice
std::optional<NextSlice> next_slice(std::span<const TuningCourse> courses, double left,
                                    double total, bool may_look = true);

}  // namespace kiln::runtime
