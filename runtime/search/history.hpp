// What a search has proposed or heard of, and where it finds something that it has not.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/search/strategy.hpp"

namespace kiln::runtime {

struct PointHash {
  std::size_t operator()(const Point& point) const noexcept;
};

/// Not thread-safe. Refers to the space.
class History {
 public:
  using Best = std::pair<Point, double>;

  explicit History(const SearchSpace& space) : space_(space) {}

  /// Notes a point as proposed. False when it was proposed or observed before.
  bool propose(const Point& point);
  /// Notes a result; the latest of a point counts. NaN and negative times count as infinite.
  /// Configs that the space does not admit are ignored.
  void observe(std::span<const std::int64_t> config, double seconds);

  bool contains(const Point& point) const { return results_.count(point) != 0; }
  /// The result, once it was observed.
  std::optional<double> result(const Point& point) const;
  /// The fastest finite result so far.
  const std::optional<Best>& best() const noexcept { return best_; }
  /// Every point proposed or observed, in that order.
  const std::vector<Point>& points() const noexcept { return points_; }

  /// An allowed point that is not in the history, drawn uniformly where the space's samples are.
  /// Nothing if there is none, or (in a space that cannot be enumerated) none was found within a
  /// bounded number of tries.
  std::optional<Point> unseen(Random& random);
  /// The most promising by `predicted` of a few such points; any of them without a prediction.
  std::optional<Point> promising(
      Random& random, const std::function<double(std::span<const std::int64_t>)>& predicted);

 private:
  const SearchSpace& space_;
  std::unordered_map<Point, double, PointHash> results_;  ///< NaN: proposed, not observed
  std::vector<Point> points_;
  std::optional<Best> best_;
  std::vector<std::uint32_t> left_;  ///< places in the enumeration that may be unseen
  bool listed_ = false;
};

}  // namespace kiln::runtime
