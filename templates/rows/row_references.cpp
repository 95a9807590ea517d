// What references of the kernels over rows share, and the judgement of 8-bit results.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <tbb/parallel_for.h>

#include "kiln/detail/format.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

void scale_to_fp8(float8_e4m3* q, std::span<const float> values, float scale) {
  const float factor = fp8_factor(scale);
  for (const float value : values) *q++ = float8_e4m3(value * factor);
}

}  // namespace

void for_each_row(int rows, const OfRow& f) {
  tbb::parallel_for(0, rows, [&](int r) { f(static_cast<std::ptrdiff_t>(r)); });
}

float quantize(float8_e4m3* q, std::span<const float> values) {
  float most = 0;
  for (const float value : values) most = std::fmax(most, std::fabs(value));
  const float scale = fp8_scale(most);
  scale_to_fp8(q, values, scale);
  return scale;
}

void quantize_by_rows(float8_e4m3* q, float* scales, int rows, int hidden, const RowValues& row) {
  for_each_row(rows, [&](std::ptrdiff_t r) { scales[r] = quantize(q + r * hidden, row(r)); });
}

void quantize_by_blocks(float8_e4m3* q, float* scales, int rows, int hidden, const RowValues& row,
                        long long leading) {
  if (leading == 0) leading = scale_leading(rows);
  for_each_row(rows, [&](std::ptrdiff_t r) {
    const std::vector<float> values = row(r);
    for (int h = 0; h < hidden; h += kScaleBlock) {
      const auto count = static_cast<std::size_t>(std::min(kScaleBlock, hidden - h));
      scales[h / kScaleBlock * leading + r] = quantize(
          q + r * hidden + h, std::span(values).subspan(static_cast<std::size_t>(h), count));
    }
  });
}

void quantize_by_scale(float8_e4m3* q, float scale, int rows, int hidden, const RowValues& row) {
  for_each_row(rows, [&](std::ptrdiff_t r) { scale_to_fp8(q + r * hidden, row(r), scale); });
}

std::string wrong_fp8(const HiddenRows& p, Fp8Scales scales, const NeighboursAllowed& allowed,
                      kiln::detail::HostArguments got, kiln::detail::HostArguments expected) {
  const auto* const q = got.get<const float8_e4m3*>(0);
  const auto* const right_q = expected.get<const float8_e4m3*>(0);
  const bool one = scales.of == Fp8Scales::Of::all;  // which is given
  const auto* const right_scales = expected.get<const float*>(scales.argument);
  const auto* const its_scales = one ? right_scales : got.get<const float*>(scales.argument);
  const std::ptrdiff_t of_block = scales.of == Fp8Scales::Of::blocks ? scale_leading(p.rows) : 0;
  const auto scale_at = [=](std::ptrdiff_t r, int h) {
    return one ? 0 : h / kScaleBlock * of_block + r;
  };
  const auto order = [](float8_e4m3 x) { return x.bits & 0x80 ? -(x.bits & 0x7f) : x.bits & 0x7f; };
  std::ptrdiff_t neighbours = 0, of_row = 0;
  float least = 0;
  if (allowed.least_scale > 0)
    for (std::ptrdiff_t r = 0; r < p.rows; ++r)
      for (int h = 0; h < p.hidden; h += kScaleBlock)
        if (const float scale = right_scales[scale_at(r, h)]; std::isfinite(scale))
          least = std::fmax(least, scale);
  least *= static_cast<float>(allowed.least_scale);
  for (std::ptrdiff_t r = 0; r < p.rows; ++r) {
    std::ptrdiff_t compared = -1;
    of_row = 0;
    for (int h = 0; h < p.hidden; ++h) {
      if (const std::ptrdiff_t s = scale_at(r, h); s != std::exchange(compared, s)) {
        const float right = right_scales[s];
        const auto off = static_cast<double>(std::fabs(its_scales[s] - right));
        if (its_scales[s] != right &&
            !(off <= allowed.of_scale * static_cast<double>(std::fmax(right, least))))
          return detail::format("scales[{}] is {}, not {}", s, its_scales[s], right);
      }
      const std::ptrdiff_t i = r * p.hidden + h;
      const int steps = std::abs(order(q[i]) - order(right_q[i]));
      const bool both = std::isnan(q[i]) == std::isnan(right_q[i]);
      of_row += steps > 0;
      const auto off =
          static_cast<double>(std::fabs(static_cast<float>(q[i]) - static_cast<float>(right_q[i])));
      if (!both || (steps > 1 && !(off <= allowed.near_zero)))
        return detail::format("q[{}][{}] is {}, not {}", r, h, static_cast<float>(q[i]),
                              static_cast<float>(right_q[i]));
    }
    neighbours += of_row;
    if (allowed.of_each_row && static_cast<double>(of_row) > allowed.of(p.hidden))
      return detail::format("{} elements of row {} are rounded to a neighbour", of_row, r);
  }
  if (!allowed.of_each_row &&
      static_cast<double>(neighbours) > allowed.of(std::ptrdiff_t{p.rows} * p.hidden))
    return detail::format("{} elements are rounded to a neighbour", neighbours);
  return "";
}

}  // namespace kiln::templates
