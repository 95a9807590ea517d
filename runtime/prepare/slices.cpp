#include "runtime/prepare/slices.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace kiln::runtime {

namespace {

/// The part of the budget that is divided by weight for the first slices; the rest of it equally.
/// Nothing is held back: a slice has a price, and what finishes early leaves enough.
constexpr double kByWeight = 0.5;
/// A slice makes the data of its problem anew and holds finals: a shorter one finds nothing.
constexpr double kLeastSlice = 0.05;
/// A search needs as long to compile candidates and to measure some. Where problems have less on
/// average, this part of the budget is for the searches of a few.
constexpr double kSearchSlice = 1.5, kForSearches = 0.4;
/// What a problem's second slice saves if nothing is known, and the factor by which each further
/// slice saves less.
constexpr double kUsualGain = 0.05, kDecay = 0.5;
/// How much a problem's own last gain, and those of its kernel, count against kUsualGain.
constexpr double kOwnWorth = 2, kMostNeighbours = 3;

/// What the slice at this place has saved; 0 where a final has put a noisy best right.
std::optional<double> gain(const TuningCourse& course, std::size_t place) {
  if (place == 0 || place >= course.slices.size()) return {};
  const double before = course.slices[place - 1].best, after = course.slices[place].best;
  if (!(before > 0) || !(after > 0)) return {};
  return std::max(1 - after / before, 0.0);
}

struct Mean {
  double sum = 0, count = 0;
};
using Gains = std::map<std::pair<std::size_t, std::size_t>, Mean>;  ///< by kernel and place

Gains gains_of(std::span<const TuningCourse> courses) {
  Gains gains;
  for (const TuningCourse& course : courses)
    for (std::size_t place = 1; place < course.slices.size(); ++place)
      if (const auto saved = gain(course, place)) {
        Mean& mean = gains[{course.kernel, place}];
        mean.sum += *saved;
        ++mean.count;
      }
  return gains;
}

double expected_gain(const TuningCourse& course, const Gains& gains) {
  const std::size_t place = course.slices.size();
  double sum = kUsualGain * std::pow(kDecay, static_cast<double>(place) - 1), count = 1;
  if (const auto found = gains.find({course.kernel, place}); found != gains.end()) {
    const double worth = std::min(found->second.count, kMostNeighbours);
    sum += worth * found->second.sum / found->second.count;
    count += worth;
  }
  if (const auto own = gain(course, place - 1)) {
    sum += kOwnWorth * kDecay * *own;
    count += kOwnWorth;
  }
  return sum / count;
}

/// i with its bits in the reverse order. Sorted by it, 0 to 7 become 0, 4, 2, 6, 1, 5, 3, 7: each
/// halves a gap.
std::uint32_t reversed(std::uint32_t i) {
  std::uint32_t bits = 0;
  for (int b = 0; b < 32; ++b) bits |= (i >> b & 1) << (31 - b);
  return bits;
}

/// The next problem of those without a slice: first those without a record, by turns of kernels.
std::optional<std::size_t> first_of(std::span<const TuningCourse> courses) {
  struct OfKernel {
    double heaviest = 0, begun = 0, count = 0;
    std::vector<std::size_t> courses{};
  };
  std::map<std::size_t, OfKernel> kernels;
  for (std::size_t i = 0; i < courses.size(); ++i) {
    OfKernel& kernel = kernels[courses[i].kernel];
    kernel.heaviest = std::max(kernel.heaviest, courses[i].weight);
    kernel.begun += courses[i].done || !courses[i].slices.empty() ? 1 : 0;
    ++kernel.count;
    kernel.courses.push_back(i);
  }
  std::optional<std::size_t> first;
  std::tuple<bool, double, double, std::size_t, double, double, std::size_t> least;
  for (const auto& [number, kernel] : kernels)
    for (std::size_t place = 0; place < kernel.courses.size(); ++place) {
      const std::size_t i = kernel.courses[place];
      const TuningCourse& course = courses[i];
      if (course.done || !course.slices.empty()) continue;
      const std::tuple rank(course.known, kernel.begun / kernel.count, -kernel.heaviest, number,
                            -course.weight,
                            static_cast<double>(reversed(static_cast<std::uint32_t>(place))), i);
      if (first && !(rank < least)) continue;
      first = i;
      least = rank;
    }
  return first;
}

/// How many problems of each kernel are searched before the others have a look, and how long each
/// search may take.
struct Scouts {
  std::size_t of_kernel = std::numeric_limits<std::size_t>::max();
  double seconds = 0;  ///< 0: the problem's part
};

Scouts scouts_of(std::span<const TuningCourse> courses, double total) {
  const double each = total / static_cast<double>(courses.size());
  if (each >= kSearchSlice || each < kLeastSlice) return {};
  std::set<std::size_t> kernels;
  for (const TuningCourse& course : courses) kernels.insert(course.kernel);
  const double of_kernel = kForSearches * total / static_cast<double>(kernels.size());
  const double count = std::max(1.0, std::floor(of_kernel / kSearchSlice));
  return {static_cast<std::size_t>(count), of_kernel / count};
}

/// Whether enough problems of its kernel have been searched for this one to have a look only.
bool only_looks(std::span<const TuningCourse> courses, std::size_t problem, const Scouts& scouts) {
  std::size_t searched = 0;
  for (const TuningCourse& course : courses)
    searched += course.kernel == courses[problem].kernel && (course.done || !course.slices.empty());
  return searched >= scouts.of_kernel;
}

/// The problem's part of the budget, or of what is left if earlier slices took more than theirs.
double first_slice(std::span<const TuningCourse> courses, std::size_t problem, double left,
                   double total) {
  double weights = 0, greatest = 0, ahead = 0;
  for (const TuningCourse& course : courses) greatest = std::max(greatest, course.weight);
  const auto relative = [&](const TuningCourse& course) {
    return greatest > 0 ? course.weight / greatest : 1;
  };
  for (const TuningCourse& course : courses) weights += relative(course);
  const auto part = [&](const TuningCourse& course) {
    return (1 - kByWeight) / static_cast<double>(courses.size()) +
           kByWeight * relative(course) / weights;
  };
  for (const TuningCourse& course : courses)
    if (!course.done && course.slices.empty()) ahead += part(course);
  return part(courses[problem]) * std::min(total, left / ahead);
}

}  // namespace

double TuningCourse::spent() const noexcept {
  double sum = 0;
  for (const Slice& slice : slices) sum += slice.seconds;
  return sum;
}

std::optional<NextSlice> next_slice(std::span<const TuningCourse> courses, double left,
                                    double total, bool may_look) {
  if (!(left > 0)) return {};
  const auto open = static_cast<std::size_t>(
      std::ranges::count_if(courses, [](const TuningCourse& c) { return !c.done; }));
  if (open == 0) return {};
  const bool begun =
      std::ranges::any_of(courses, [](const TuningCourse& c) { return !c.slices.empty(); });
  if (begun && left < kLeastSlice) return {};
  // What would be left is too short to be of use.
  const auto slice = [&](std::size_t problem, double seconds) {
    seconds = std::max(seconds, kLeastSlice);
    return NextSlice{problem, open == 1 || left - seconds < kLeastSlice ? left : seconds};
  };
  const double equal = total / static_cast<double>(courses.size());
  if (const auto first = first_of(courses)) {
    const Scouts scouts = may_look ? scouts_of(courses, total) : Scouts{};
    const bool look = only_looks(courses, *first, scouts);
    NextSlice next =
        slice(*first, look || scouts.seconds == 0 ? first_slice(courses, *first, left, total)
                                                  : std::min(scouts.seconds, left));
    next.look = look;
    return next;
  }

  double known = 0;
  bool alike = true;
  for (const TuningCourse& course : courses) {
    known = std::max(known, course.best());
    alike = alike && course.weight == 0;
  }
  const Gains gains = gains_of(courses);
  std::optional<std::size_t> next;
  double most = -1, seconds = 0;
  for (std::size_t i = 0; i < courses.size(); ++i) {
    const TuningCourse& course = courses[i];
    if (course.done) continue;
    // Where nothing was measured yet, it may be as slow as any.
    const double worth = alike ? 1
                               : course.weight * (course.best() > 0 ? course.best()
                                                  : known > 0       ? known
                                                                    : 1);
    const double length = std::max({course.spent(), equal / 2, kLeastSlice});
    const double value = worth * expected_gain(course, gains) / length;
    if (value <= most) continue;
    next = i;
    most = value;
    seconds = length;
  }
  return slice(*next, seconds);
}

}  // namespace kiln::runtime
