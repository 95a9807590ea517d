// The configs a search may propose: random access, neighbours and counting under constraints,
// without a list of all combinations.
//
//   SearchSpace space(kernel.space, problem, limits);
//   Random random(seed);
//   if (auto point = space.sample(random)) propose(space.values(*point));
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kiln/space_query.hpp"
#include "runtime/search/cursor.hpp"
#include "runtime/support/random.hpp"

namespace kiln::runtime {

/// What is next to a point.
enum class Neighbourhood {
  adjacent,  ///< one parameter, to the next larger or smaller value; to any other one where the
             ///< order of values means nothing
  hamming    ///< one parameter, any other value
};

/// Immutable after construction but for what `enumerate` keeps; const functions are safe from
/// several threads, so one space can serve many searches. Refers to the problem and the limits:
/// they must outlive it.
class SearchSpace {
 public:
  /// Further refusals that cost no compile (the launch); empty: none.
  using Admissible = std::function<bool(std::span<const std::int64_t> config)>;

  /// @param all  every allowed point, where the caller knows them; empty: found when needed.
  /// @throws UserError when a parameter has more than 65536 values.
  SearchSpace(const DynamicSpace& space, std::span<const std::int64_t> problem,
              const DeviceLimits& limits, Admissible admissible = {}, std::vector<Point> all = {});
  /// @param authored  the configs to search, where the kernel's author lists them: nothing else is
  /// allowed. Configs that lie outside of the space or break a constraint are left out. If none is
  /// left, the whole space is searched.
  SearchSpace(const DynamicSpace& space, std::span<const std::int64_t> problem,
              const DeviceLimits& limits, Admissible admissible, std::span<const Values> authored);

  /// The space for the device's kind of target.
  const DynamicSpace& space() const noexcept { return space_; }
  std::size_t dimensions() const noexcept { return axes_.size(); }
  /// Number of values.
  std::size_t arity(std::size_t dimension) const noexcept { return axes_[dimension].rank.size(); }
  /// A number per value, of a scale on which distances mean something: the logarithm when the
  /// values are positive and spread by factors, else the value; scaled to [0, 1].
  std::span<const double> scale(std::size_t dimension) const noexcept {
    return axes_[dimension].scale;
  }
  /// Whether the values have an order that means something (more than two values, integers; not an
  /// enumeration or a truth value).
  bool ordered(std::size_t dimension) const noexcept { return axes_[dimension].ordered; }
  /// Place of a value among its parameter's values in increasing order, and back.
  std::uint16_t rank(std::size_t dimension, std::uint16_t place) const noexcept {
    return axes_[dimension].rank[place];
  }
  std::uint16_t place(std::size_t dimension, std::uint16_t rank) const noexcept {
    return axes_[dimension].place[rank];
  }

  /// Whether a search may propose it: it is admitted, and in the author's list if there is one.
  bool allowed(const Point& point) const;
  bool allowed(std::span<const std::int64_t> config) const;
  /// Whether all constraints hold and the device can launch it, in the author's list or not.
  bool admitted(std::span<const std::int64_t> config) const { return held(config) == checks(); }
  /// What a config is checked against, in this order: the constraints, then what the device admits.
  std::size_t checks() const noexcept { return space_.constraints().size() + 1; }
  /// The number of leading checks that hold. Checks after the first failure are not made, because
  /// they may rely on the earlier ones.
  std::size_t held(std::span<const std::int64_t> config) const;
  Values values(const Point& point) const;
  /// Nothing when a value is not in its parameter's list.
  std::optional<Point> point(std::span<const std::int64_t> config) const;

  /// Uniform over the allowed points. Where they are very rare among too many combinations to list
  /// or walk, one found by walking, so not quite uniform. Nothing when none was found within a
  /// bounded number of tries.
  std::optional<Point> sample(Random& random) const;
  /// An allowed point reached from a random combination by changes that make more checks hold.
  std::optional<Point> found_by_walking(Random& random) const;
  /// The allowed neighbours, in a fixed order. The point itself need not be allowed.
  std::vector<Point> neighbours(const Point& point, Neighbourhood kind) const;

  /// Allowed points that differ from `point` in two parameters: for tight spaces, where no single
  /// change is allowed. All of them where pairs are few, else of a bounded number of random tries;
  /// in random order, `most` at most. Of an author's list: those of it that differ in the fewest
  /// parameters, but in two at least.
  std::vector<Point> pairs(const Point& point, std::size_t most, Random& random) const;

  /// Every allowed point, in the order of the parameters and their values, when the space is
  /// `enumerable()`. Else the list of `list_tight`, which holds all or nearly all of them when they
  /// are few; empty when they are many. Made at the first call, then kept.
  std::span<const Point> enumerate() const;
  /// Exact where all combinations can be walked or the points are authored, else estimated. With an
  /// author's list nothing counts as rejected, since no constraint says why a config is not in it.
  SpaceCount count() const;

  /// Whether the points are a list of the kernel's author.
  bool authored() const noexcept { return authored_; }
  /// Whether there are so few combinations that `enumerate` and `count` look at each of them.
  bool enumerable() const noexcept { return space_.combinations() <= kEnumerable; }

  static constexpr double kEnumerable = 1 << 20;  ///< combinations

 private:
  struct Axis {
    std::vector<std::uint16_t> rank;   ///< by place
    std::vector<std::uint16_t> place;  ///< by rank
    std::vector<double> scale;         ///< by place
    bool ordered = false;
  };

  /// The number of parameters that differ.
  std::size_t changes(const Point& from, const Point& to) const;
  std::vector<Point> authored_neighbours(const Point& point, Neighbourhood kind) const;
  std::vector<Point> nearest_authored(const Point& point, std::size_t most, Random& random) const;

  const DynamicSpace space_;
  std::span<const std::int64_t> problem_;
  const DeviceLimits& limits_;
  Admissible admissible_;
  std::vector<Axis> axes_;
  bool authored_ = false;  ///< by the kernel's author, from construction on
  mutable std::once_flag listing_;
  mutable std::vector<Point> list_;  ///< sorted if `authored_`
};

}  // namespace kiln::runtime
