#include "runtime/search/tight_listing.hpp"

#include <algorithm>
#include <cstdint>
#include <set>

namespace kiln::runtime {

namespace {

constexpr std::uint64_t kSeed = 1;
constexpr int kDraws = 1 << 14;
/// The most draws that may be allowed: with more, drawing again and again is good enough.
constexpr std::size_t kRare = kDraws / 64;
constexpr int kWalks = 32;
constexpr int kProbed = 256;                 ///< refused draws that are learned from
constexpr std::size_t kMostLooks = 1 << 20;  ///< at configs, in the walk
constexpr std::size_t kMostPoints = 1 << 18;
constexpr int kWitnessDraws = 1 << 19;
constexpr std::size_t kSpreadLooks = 2 * kMostLooks;
constexpr std::size_t kWitnesses = 16;  ///< examples that prove a list found by spreading

class Listing {
 public:
  explicit Listing(const SearchSpace& space)
      : space_(space),
        cursor_(space.space()),
        looks_at_(space.checks(), std::vector<bool>(space.dimensions(), false)),
        tried_(looks_at_) {}

  std::vector<Point> run() {
    if (!learn()) return {};
    arrange();
    // More examples, of which nothing was learned: they are to be found in the list too.
    Random random(kSeed + 1);
    find_by_walking(random);
    cursor_.set(examples_.front());
    if (walk(0) && has_examples()) return std::move(points_);
    points_.clear();
    if (spread(random) && has_examples()) return std::move(points_);
    return {};
  }

 private:
  /// Finds examples and, around them, which parameters each check reads. False when points are not
  /// rare, or so rare that no example is found.
  bool learn() {
    Random random(kSeed);
    std::vector<Point> refused;
    for (int i = 0; i < kDraws; ++i) {
      cursor_.jump(random);
      if (space_.allowed(cursor_.values()))
        examples_.push_back(cursor_.point());
      else if (i < kProbed)
        refused.push_back(cursor_.point());
    }
    if (examples_.size() > kRare) return false;
    find_by_walking(random);
    for (const auto* points : {&examples_, &refused})
      for (const Point& p : *points) probe(p);
    for (std::size_t c = 0; c < looks_at_.size(); ++c)
      for (std::size_t d = 0; d < space_.dimensions(); ++d)
        if (!tried_[c][d]) looks_at_[c][d] = true;  // for all that is known
    return !examples_.empty();
  }

  void find_by_walking(Random& random) {
    for (int i = 0; i < kWalks; ++i)
      if (auto found = space_.found_by_walking(random)) examples_.push_back(std::move(*found));
  }

  /// Checks are made in their order, each only where those before it hold: they may rely on that.
  /// So a change of one value that changes how many hold tells of the first that differs.
  void probe(const Point& point) {
    cursor_.set(point);
    const std::size_t held = space_.held(cursor_.values());
    for (std::size_t d = 0; d < space_.dimensions(); ++d) {
      for (std::size_t place = 0; place < space_.arity(d); ++place) {
        cursor_.set(d, place);
        const std::size_t now = space_.held(cursor_.values());
        if (place == point[d]) continue;
        for (std::size_t c = 0; c <= std::min({now, held, space_.checks() - 1}); ++c)
          tried_[c][d] = true;
        if (now != held) looks_at_[std::min(now, held)][d] = true;
      }
      cursor_.set(d, point[d]);
    }
  }

  /// Parameters in the order in which the walk gives them values: those first that let a check be
  /// made soonest.
  void arrange() {
    std::vector<bool> given(space_.dimensions(), false);
    std::vector<bool> made(space_.checks(), false);
    const auto combinations = [&](std::size_t check) {
      double count = 1;
      for (std::size_t d = 0; d < given.size(); ++d)
        if (looks_at_[check][d] && !given[d]) count *= static_cast<double>(space_.arity(d));
      return count;
    };
    complete_.assign(space_.dimensions(), made);
    for (std::size_t round = 0; round < made.size(); ++round) {
      std::size_t next = made.size();
      for (std::size_t c = 0; c < made.size(); ++c)
        if (!made[c] && (next == made.size() || combinations(c) < combinations(next))) next = c;
      for (std::size_t d = 0; d < given.size(); ++d)
        if (looks_at_[next][d] && !given[d]) {
          given[d] = true;
          order_.push_back(d);
        }
      made[next] = true;
    }
    for (std::size_t d = 0; d < given.size(); ++d)
      if (!given[d]) order_.push_back(d);

    std::vector<std::size_t> depth(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) depth[order_[i]] = i;
    for (std::size_t i = 0; i < order_.size(); ++i)
      for (std::size_t c = 0; c < made.size(); ++c) {
        bool all = true;
        for (std::size_t d = 0; d < order_.size(); ++d)
          all = all && (!looks_at_[c][d] || depth[d] <= i);
        complete_[i][c] = all;
      }
  }

  /// Parameters that have no value yet keep that of an allowed point. False when it takes too long.
  bool walk(std::size_t depth) {
    const std::size_t d = order_[depth];
    const std::size_t before = cursor_.point()[d];
    const bool last = depth + 1 == order_.size();
    const bool news = depth == 0 || complete_[depth] != complete_[depth - 1];
    for (std::size_t place = 0; place < space_.arity(d); ++place) {
      cursor_.set(d, place);
      if (last || news) {
        if (++looks_ > kMostLooks) return false;
        const std::size_t held = space_.held(cursor_.values());
        if (held < space_.checks() && complete_[depth][held]) continue;
      }
      if (!last) {
        if (!walk(depth + 1)) return false;
      } else {
        if (points_.size() == kMostPoints) return false;
        points_.push_back(cursor_.point());
      }
    }
    cursor_.set(d, before);
    return true;
  }

  /// Finds all points that can be reached from one example by changing one or two values at a time.
  /// False when that takes too long, or when too few other examples exist to confirm the result.
  bool spread(Random& random) {
    std::size_t each = 0, values = 0;
    for (std::size_t d = 0; d < space_.dimensions(); ++d) {
      each += (space_.arity(d) - 1) * (1 + values);
      values += space_.arity(d) - 1;
    }
    std::set<Point> reached(examples_.begin(), examples_.end());
    for (int i = 0; i < kWitnessDraws && reached.size() < kWitnesses; ++i) {
      cursor_.jump(random);
      if (!space_.allowed(cursor_.values())) continue;
      examples_.push_back(cursor_.point());
      reached.insert(cursor_.point());
    }
    if (reached.size() < kWitnesses) return false;
    reached = {examples_.front()};
    points_.push_back(examples_.front());
    for (std::size_t i = 0; i < points_.size(); ++i) {
      std::vector<Point> around = space_.neighbours(points_[i], Neighbourhood::hamming);
      for (Point& p : space_.pairs(points_[i], SIZE_MAX, random)) around.push_back(std::move(p));
      for (Point& p : around)
        if (reached.insert(p).second) points_.push_back(std::move(p));
      if (points_.size() * each > kSpreadLooks) return false;  // each will be looked around
    }
    return true;
  }

  bool has_examples() {
    std::sort(points_.begin(), points_.end());
    return std::all_of(examples_.begin(), examples_.end(), [&](const Point& p) {
      return std::binary_search(points_.begin(), points_.end(), p);
    });
  }

  const SearchSpace& space_;
  Cursor cursor_;
  std::vector<std::vector<bool>> looks_at_;  ///< by check and parameter
  std::vector<std::vector<bool>> tried_;     ///< the check was made before and after a change
  std::vector<Point> examples_;              ///< allowed
  std::vector<std::size_t> order_;           ///< parameters
  std::vector<std::vector<bool>> complete_;  ///< by depth and check: all that it looks at is given
  std::vector<Point> points_;
  std::size_t looks_ = 0;
};

}  // namespace

std::vector<Point> list_tight(const SearchSpace& space) { return Listing(space).run(); }

}  // namespace kiln::runtime
