// The host half of saxpy: space, geometry, data and reference.
#pragma once

#include <kiln/kiln.hpp>

#include "saxpy.hpp"

using SaxpyKernel = kiln::Kernel<Saxpy, SaxpyProblem, void(float*, const float*, float, int)>;

// A default outside the space, an unlisted field or an empty list would not compile.
inline constexpr auto saxpy_space =
    kiln::Space<Saxpy, SaxpyProblem>{{256, 4}}
        .values(&Saxpy::block, {64, 128, 256, 512})
        .values(&Saxpy::items, {1, 2, 4, 8})
        .where("a tile has at most 2048 elements",
               [](const Saxpy& c, const SaxpyProblem&, const kiln::DeviceLimits&) {
                 return c.tile() <= 2048;
               })
        .checked();

inline SaxpyKernel saxpy_kernel() {
  return {.name = "saxpy",
          .source = {.file = std::filesystem::path(EXAMPLES_DIR) / "saxpy.cuh"},
          .entry = "saxpy",
          .config_type = "Saxpy",
          .types = {"float"},
          .space = saxpy_space,
          .launch =
              [](const Saxpy& c, const SaxpyProblem& p) {
                return kiln::Launch{.grid = {unsigned((p.n + c.tile() - 1) / c.tile())},
                                    .block = {unsigned(c.block)}};
              },
          .problem = [](float*, const float*, float, int n) { return SaxpyProblem{n}; },
          .workload =
              [](const SaxpyProblem& p, kiln::Workload& w) {
                w.in_out<float>(p.n).input<float>(p.n).scalar(2.5f).scalar(p.n);
              },
          .reference =
              [](float* y, const float* x, float a, int n) {
                for (int i = 0; i < n; ++i) y[i] = a * x[i] + y[i];
              },
          .flops = [](const SaxpyProblem& p) { return 2.0 * p.n; },
          .bytes = [](const SaxpyProblem& p) { return 12.0 * p.n; }};
}
