// A kernel that somebody already has, unchanged: its parameters reach it as macros, the passing
// that is right for sources which set what nobody has set (`#ifndef BLOCK`). Passed as constants,
// the source's own macros would hide them; Kiln refuses that.
#include <cstdio>
#include <vector>

#include <kiln/kiln.hpp>

constexpr const char* kSource = R"(
#ifndef BLOCK
#define BLOCK 128
#define ITEMS 1
#endif
__constant__ float gain;
extern "C" __global__ void reverse(float* out, const float* in, int n) {
  const int first = (blockIdx.x * BLOCK + threadIdx.x) * ITEMS;
  for (int i = first; i < first + ITEMS && i < n; ++i) out[i] = gain * in[n - 1 - i];
})";

int main() {
  kiln::KernelDefinition reverse;
  reverse.name = "reverse";
  reverse.source.text = kSource;
  reverse.entry = "reverse";
  reverse.passing = kiln::Passing::macros;
  reverse.arguments = {"float*", "const float*", "int"};
  reverse.space.parameter("BLOCK", {64, 128, 256}, 128).parameter("ITEMS", {1, 2, 4}, 1);
  reverse.problem_fields = {"n"};
  reverse.launch = reverse.by_name([](kiln::Named config, kiln::Named problem) {
    const std::int64_t tile = config["BLOCK"] * config["ITEMS"];
    return kiln::Launch{.grid = {unsigned((problem["n"] + tile - 1) / tile)},
                        .block = {unsigned(config["BLOCK"])}};
  });
  reverse.workload = reverse.by_field([](kiln::Named problem, kiln::Workload& w) {
    const auto n = std::size_t(problem["n"]);
    w.output<float>(n).input<float>(n).scalar(int(n));
    w.symbol("gain", 3.0f);  // what candidates are tried with
  });

  kiln::Runtime runtime;
  auto tuned = runtime.tuned(reverse);
  tuned.symbol("gain", 2.0f);  // what launches use, of every problem
  const int n = 1000;
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = float(i);
  auto in = runtime.array(values), out = runtime.array<float>(n);
  tuned(kiln::Stream{}, {n}, out.data(), in.data(), n);
  runtime.synchronize();

  const std::vector<float> got = out.download();
  std::printf("first %g, last %g\n", got.front(), got.back());
  return got.front() == 1998.0f && got.back() == 0.0f ? 0 : 1;
}
