// A user's own template, in a project outside Kiln's tree. Usage: scale FOLDER-OF-scale.cuh
#include "scale.hpp"

#include <cstdio>
#include <vector>

#include <kiln/kiln.hpp>

int main(int argc, char** argv) try {
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  const kiln::Kernel<Scale, Matrix, void(float*, float, int)> scale{
      .name = "scale",
      .source = {.file = folder / "scale.cuh"},
      .entry = "scale",
      .config_type = "Scale",
      .space = kiln::Space<Scale, Matrix>{{128}}.values(&Scale::block, {32, 64, 128, 256}),
      .launch =
          [](const Scale& c, const Matrix& p) {
            return kiln::Launch{.grid = {unsigned(p.rows)}, .block = {unsigned(c.block)}};
          },
      // The number of rows is not among the arguments: problems are given with `at`.
      .problem = [](float*, float, int columns) { return Matrix{1, columns}; },
      .workload =
          [](const Matrix& p, kiln::Workload& w) {
            w.in_out<float>(p.rows * p.columns).scalar(2.0f).scalar(p.columns);
          }};

  kiln::Runtime runtime;
  const Matrix problem{64, 1000};
  const auto run = runtime.tuned(scale).at(problem);
  auto x = runtime.array(std::vector<float>(problem.rows * problem.columns, 3.0f));
  run(kiln::Stream{}, x.data(), 2.0f, problem.columns);
  runtime.synchronize();
  const float got = x.download().back();
  std::printf("%g on %s\n", got, runtime.device().id.c_str());
  return got == 6.0f ? 0 : 1;
} catch (const kiln::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
