// A typed kernel for the fake device, as a user would write it.
#pragma once

#include <string>
#include <vector>

#include "engine_fixture.hpp"
#include "kiln/config.hpp"

struct DoublingConfig {
  int a, b;
};
KILN_CONFIG(DoublingConfig, a, b)
struct DoublingProblem {
  int n;
};
KILN_PROBLEM(DoublingProblem, n)

namespace kiln::test {

using Typed = Kernel<DoublingConfig, DoublingProblem, void(float*, const float*, int)>;

inline Typed typed_doubling() {
  return {.name = "doubling",
          .source = {.text = "..."},
          .entry = "k",
          .config_type = "DoublingConfig",
          .space = Space<DoublingConfig, DoublingProblem>{{2, 0}}.values(&DoublingConfig::a,
                                                                         {1, 2, 4, 8}),
          .launch =
              [](const DoublingConfig& c, const DoublingProblem& p) {
                return Launch{{unsigned((p.n + c.a - 1) / c.a)}, {unsigned(c.a)}, 0};
              },
          .problem = [](float*, const float*, int n) { return DoublingProblem{n}; },
          .workload =
              [](const DoublingProblem& p, Workload& w) {
                const auto n = std::size_t(p.n);
                w.output<float>(n).input<float>(n).scalar<int>(p.n);
              },
          .reference =
              [](float* y, const float* x, int n) {
                for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
              }};
}

inline std::string typed_entry(int a) {
  return "k<DoublingConfig{.a=" + std::to_string(a) + ", .b=0}>";
}

struct Buffers {
  explicit Buffers(int n) : x(std::size_t(n), 1.5f), y(std::size_t(n), 0.0f) {}
  bool doubled() const {
    for (std::size_t i = 0; i < x.size(); ++i)
      if (y[i] != 2 * x[i]) return false;
    return true;
  }
  std::vector<float> x, y;
};

}  // namespace kiln::test
