#include "runtime/measure/verify.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include <tbb/blocked_range.h>
#include <tbb/parallel_reduce.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/measure/padding.hpp"
#include "runtime/support/type_names.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Calls `f` with a value of the element's C++ type.
template <class F>
auto with_type(DataType type, F&& f) {
  switch (type) {
    case DataType::i8:
      return f(std::int8_t{});
    case DataType::i16:
      return f(std::int16_t{});
    case DataType::u16:
      return f(std::uint16_t{});
    case DataType::i32:
      return f(std::int32_t{});
    case DataType::u32:
      return f(std::uint32_t{});
    case DataType::i64:
      return f(std::int64_t{});
    case DataType::u64:
      return f(std::uint64_t{});
    case DataType::f16:
      return f(float16{});
    case DataType::bf16:
      return f(bfloat16{});
    case DataType::f32:
      return f(float{});
    case DataType::f64:
      return f(double{});
    case DataType::fp8_e4m3:
      return f(float8_e4m3{});
    case DataType::fp8_e5m2:
      return f(float8_e5m2{});
    case DataType::boolean:
    case DataType::u8:
    case DataType::bytes:
      break;
  }
  return f(std::uint8_t{});
}

template <class T>
T element(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
double error_of(T got, T want, const Tolerance& tolerance) {
  if constexpr (std::is_integral_v<T>) {
    // Subtracted as integers: doubles cannot tell 2^60 from 2^60 + 1.
    const auto g = static_cast<std::uint64_t>(got), w = static_cast<std::uint64_t>(want);
    if (got == want) return 0;
    return static_cast<double>(got > want ? g - w : w - g) / tolerance.absolute;
  } else {
    const double g = got, w = want;
    if (g == w || (std::isnan(g) && std::isnan(w))) return 0;
    const double error = std::abs(g - w) / (tolerance.absolute + tolerance.relative * std::abs(w));
    return std::isnan(error) || std::isinf(w) ? std::numeric_limits<double>::infinity() : error;
  }
}

/// Sums of squares. Only floats have a norm.
struct Squares {
  double error = 0, want = 0;

  template <class T>
  void add(T got, T wanted) {
    if constexpr (!std::is_integral_v<T>) {
      const double g = got, w = wanted;
      if (g == w || (std::isnan(g) && std::isnan(w))) {
        if (std::isfinite(w)) want += w * w;
        return;
      }
      error += (g - w) * (g - w);
      want += w * w;
    }
  }
};

struct Compared {
  Comparison comparison;
  Squares squares;
};

void judge_norm(Compared& all, std::size_t count, const Tolerance& tolerance) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double error = std::sqrt(all.squares.error), want = std::sqrt(all.squares.want);
  const double root = std::sqrt(static_cast<double>(std::max<std::size_t>(count, 1)));
  Comparison& c = all.comparison;
  c.norm_error = error == 0 ? 0 : std::isfinite(error / want) ? error / want : kInfinity;
  // A norm of few elements scatters: that of one may be as far off as the element.
  const double few = tolerance.relative / root, besides = tolerance.absolute * root;
  c.norm_permitted = tolerance.norm == 0 || want == 0 || !std::isfinite(want)
                         ? kInfinity
                         : tolerance.norm + few + besides / want;
}

/// 29 % of 100 are 29, although 0.29 * 100 is less as a double.
std::size_t share_of(std::size_t count, double share) {
  return static_cast<std::size_t>(static_cast<double>(count) * share * (1 + 1e-12));
}

/// `got(T{}, i)` is element i, of type T.
template <class Got>
Comparison compare_elements(const Workload::Argument& argument, const Got& got,
                            std::span<const std::byte> want, const Tolerance& tolerance) {
  const bool bytes = argument.type == DataType::bytes;
  const Tolerance exact{0, 0};
  return with_type(argument.type, [&]<class T>(T type) {
    using Range = tbb::blocked_range<std::size_t>;
    const std::size_t count = bytes ? want.size() : argument.count;
    const std::size_t places = bytes ? argument.element_bytes : 1;  // of an element
    const bool padded = argument.padded();
    const auto compared = [&](const Range& range, Compared so_far) {
      Comparison& result = so_far.comparison;
      for (std::size_t i = range.begin(); i < range.end(); ++i) {
        if (padded && !argument.has(i / places)) continue;
        const T g = got(type, i), w = element<T>(want, i);
        const double error = error_of(g, w, bytes ? exact : tolerance);
        so_far.squares.add(g, w);
        if (error > 1) ++result.mismatches;
        if (error > result.max_error) {
          result.max_error = error;
          result.worst = i;
        }
      }
      return so_far;
    };
    // The first of the worst, however the ranges are cut: `left` always comes before `right`.
    const auto joined = [](const Compared& left, const Compared& right) {
      const Comparison &l = left.comparison, &r = right.comparison;
      Compared both{
          r.max_error > l.max_error ? r : l,
          {left.squares.error + right.squares.error, left.squares.want + right.squares.want}};
      both.comparison.mismatches = l.mismatches + r.mismatches;
      return both;
    };
    constexpr std::size_t kGrain = 1 << 15;
    Compared all = tbb::parallel_reduce(Range(0, count, kGrain), Compared{}, compared, joined);
    all.comparison.permitted = share_of(compared_elements(argument), tolerance.mismatches);
    judge_norm(all, compared_elements(argument), tolerance);
    return all.comparison;
  });
}

std::string describe_norm(const Comparison& comparison, std::size_t argument_index) {
  return format(
      "all elements of argument {} together differ by {:.2g} of their norm, {:.2g} allowed",
      argument_index, comparison.norm_error, comparison.norm_permitted);
}

}  // namespace

Comparison compare(const Workload::Argument& argument, std::span<const std::byte> got,
                   std::span<const std::byte> want, const Tolerance& tolerance) {
  const auto downloaded = [got]<class T>(T, std::size_t i) { return element<T>(got, i); };
  return compare_elements(argument, downloaded, want, tolerance);
}

Verdict judge_norms(std::span<const Workload::Argument> arguments, std::span<void* const> got,
                    const Tolerance& tolerance) {
  Verdict verdict;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Workload::Argument& argument = arguments[i];
    if (argument.direction == Direction::in || argument.bytes.empty()) continue;
    const std::span its(static_cast<const std::byte*>(got[i]), argument.bytes.size());
    Comparison comparison = compare(argument, its, argument.bytes, tolerance);
    verdict.norm_error = std::max(verdict.norm_error, comparison.norm_error);
    if (!verdict.right || comparison.norm_error <= comparison.norm_permitted) continue;
    verdict.right = false;
    verdict.max_error = std::numeric_limits<double>::infinity();
    verdict.why = describe_norm(comparison, i);
  }
  return verdict;
}

std::byte most_wrong_byte(const Workload::Argument& argument, std::span<const std::byte> want,
                          const Tolerance& tolerance) {
  std::byte chosen{};
  std::size_t most = 0;
  for (const std::byte byte :
       {std::byte{0xff}, std::byte{0x5a}, std::byte{0xa5}, std::byte{0x7e}, std::byte{0x03}}) {
    std::array<std::byte, sizeof(std::uint64_t)> pattern;
    pattern.fill(byte);
    const auto unwritten = [&pattern]<class T>(T, std::size_t) { return element<T>(pattern, 0); };
    const std::size_t wrong = compare_elements(argument, unwritten, want, tolerance).mismatches;
    if (wrong > most || most == 0) {
      chosen = byte;
      most = wrong;
    }
    if (most == compared_elements(argument)) break;
  }
  return chosen;
}

std::string describe(const Comparison& comparison, std::size_t argument_index,
                     const Workload::Argument& argument, std::span<const std::byte> got,
                     std::span<const std::byte> want) {
  if (comparison.mismatches <= comparison.permitted)
    return describe_norm(comparison, argument_index);
  return with_type(argument.type, [&]<class T>(T) {
    const std::string count =
        comparison.permitted == 0
            ? format("{} of {} differ", comparison.mismatches, compared_elements(argument))
            : format("{} of {} outside the tolerance, {} allowed", comparison.mismatches,
                     compared_elements(argument), comparison.permitted);
    // Plus: 8-bit integers print as numbers, and the 16-bit types become floats.
    return format("{} {} of argument {} is {}, expected {} ({})",
                  argument.type == DataType::bytes ? "byte" : "element", comparison.worst,
                  argument_index, +element<T>(got, comparison.worst),
                  +element<T>(want, comparison.worst), count);
  });
}

std::string describe_changed_input(std::size_t index, std::size_t argument_index,
                                   const Workload::Argument& argument,
                                   std::span<const std::byte> got,
                                   std::span<const std::byte> want) {
  return with_type(argument.type, [&]<class T>(T) {
    return format("wrote {} {} of argument {}, an input: {} instead of {}",
                  argument.type == DataType::bytes ? "byte" : "element", index, argument_index,
                  +element<T>(got, 0), +element<T>(want, 0));
  });
}

std::string describe_outside(std::ptrdiff_t offset, std::size_t argument_index,
                             const Workload::Argument& argument) {
  const auto size = static_cast<std::ptrdiff_t>(argument.element_bytes);
  // Rounded down, so that the bytes before the array belong to negative elements.
  const std::ptrdiff_t element = offset >= 0 ? offset / size : -((-offset + size - 1) / size);
  return format("wrote outside argument {}, {} its {} elements: element {}", argument_index,
                offset < 0 ? "before" : "after", argument.count, element);
}

void check_workload(const KernelDefinition& kernel, const Workload& workload) {
  const auto& given = workload.arguments();
  if (given.size() != kernel.arguments.size())
    throw UserError(format("kernel {}: `workload` makes {} arguments, but the signature has {}",
                           kernel.name, given.size(), kernel.arguments.size()));
  bool writes = false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string type = canonical_type(kernel.arguments[i]);
    const bool pointer = type.find('*') != std::string::npos;
    const bool read_only = type.rfind("const ", 0) == 0;
    if (pointer && given[i].address) continue;
    if (pointer != given[i].pointer)
      throw UserError(
          format("kernel {}: `workload` makes argument {} {}, but the signature has `{}`",
                 kernel.name, i, given[i].pointer ? "an array" : "a value", type));
    if (pointer && read_only && given[i].direction != Direction::in)
      throw UserError(
          format("kernel {}: `workload` declares argument {} as written by the kernel, but its "
                 "type is `{}`",
                 kernel.name, i, type));
    writes = writes || (pointer && given[i].direction != Direction::in);
    const std::optional<DataType> element = element_type(type);
    if (element && *element != given[i].type)
      throw UserError(
          format("kernel {}: `workload` makes argument {} of {}, but the signature has `{}`",
                 kernel.name, i, to_string(given[i].type), kernel.arguments[i]));
  }
  if (!writes)
    throw UserError(
        format("kernel {}: `workload` has no output, so nothing could be verified", kernel.name));
}

}  // namespace kiln::runtime
