// Marks a thread that measures for an agreement of ranks.
#pragma once

namespace kiln::runtime {

/// While one of these lives on a thread, launches there ask no other rank what to choose: the ranks
/// are measuring, and not all of them measure the same candidates.
class MeasuringTogether {
 public:
  MeasuringTogether() noexcept { ++depth(); }
  ~MeasuringTogether() { --depth(); }
  MeasuringTogether(const MeasuringTogether&) = delete;
  MeasuringTogether& operator=(const MeasuringTogether&) = delete;

  static bool here() noexcept { return depth() > 0; }

 private:
  static int& depth() noexcept;
};

}  // namespace kiln::runtime
