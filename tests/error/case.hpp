// The kernel that the mistakes are made with.
#pragma once

#include <kiln/kiln.hpp>

struct Scale {
  int block;
  int items;
};
KILN_CONFIG(Scale, block, items)

struct Line {
  int n;
};
KILN_PROBLEM(Line, n)

using ScaleSpace = kiln::Space<Scale, Line>;
using ScaleKernel = kiln::Kernel<Scale, Line, void(float*, const float*, float, int)>;

inline ScaleKernel scale() {
  return {.name = "scale",
          .source = {.text = "..."},
          .entry = "scale",
          .config_type = "Scale",
          .space = ScaleSpace{{256, 4}},
          .launch = [](const Scale&, const Line&) { return kiln::Launch{}; },
          .problem = [](float*, const float*, float, int n) { return Line{n}; }};
}
