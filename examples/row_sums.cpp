// What a kernel may say of its data: 8-bit inputs with scales, rows with padding, sums that begin
// as zeros, several draws of one problem, a reference on the device, and a space that differs by
// kind of target.
#include <cstdio>

#include <kiln/kiln.hpp>

constexpr const char* kSource = R"(
#include <cuda_fp8.h>
struct RowSums { int block, parts; };
template <RowSums c>
__global__ void row_sums(float* sums, const __nv_fp8_e4m3* x, const float* scales, int rows,
                         int columns, int leading) {
  const int row = blockIdx.x / c.parts, part = blockIdx.x % c.parts;
  float sum = 0;
  for (int i = part * c.block + threadIdx.x; i < columns; i += c.block * c.parts)
    sum += (float)x[(long long)row * leading + i];
  atomicAdd(&sums[row], sum * scales[row]);
})";

struct RowSums {
  int block;  // threads
  int parts;  // blocks per row
};
KILN_CONFIG(RowSums, block, parts)

struct Matrix {
  int rows, columns, leading;
};
KILN_PROBLEM(Matrix, rows, columns, leading)

constexpr auto space =
    kiln::Space<RowSums, Matrix>{{.block = 128, .parts = 1}}  // the default
        .values(&RowSums::block, {32, 64, 128, 256})
        .values(&RowSums::parts, {1, 2, 4, 8})
        .values_on(kiln::Target::Kind::host, &RowSums::block, {32, 64})  // instead of those above
        .where_on(kiln::Target::Kind::cuda, "every thread has an element",
                  [](const RowSums& c, const Matrix& p, const kiln::DeviceLimits&) {
                    return c.block * c.parts <= p.columns || c.parts == 1;
                  })
        .default_on(kiln::Target::Kind::host, {.block = 32, .parts = 1})
        .default_on(kiln::ComputeCapability{90}, {.block = 256, .parts = 1})  // sm_90 and later
        .checked();

using kiln::float8_e4m3;

using Kernel =
    kiln::Kernel<RowSums, Matrix, void(float*, const float8_e4m3*, const float*, int, int, int)>;

int main() {
  const Kernel row_sums{
      .name = "row_sums",
      .source = {.text = kSource},
      .entry = "row_sums",
      .config_type = "RowSums",
      .space = space,
      .launch =
          [](const RowSums& c, const Matrix& p) {
            return kiln::Launch{{unsigned(p.rows * c.parts)}, {unsigned(c.block)}};
          },
      .problem = [](float*, const float8_e4m3*, const float*, int rows, int columns,
                    int leading) { return Matrix{rows, columns, leading}; },
      .workload =
          [](const Matrix& p, kiln::Workload& w) {
            // The rows are full in the first draw, and half full in the second.
            const auto rows = std::size_t(p.rows), leading = std::size_t(p.leading);
            const std::size_t columns = std::size_t(p.columns) / (w.draw() == 0 ? 1 : 2);
            w.zeroed<float>(rows);
            w.input<float8_e4m3>(kiln::Rows{rows, columns, leading});
            w.input<float>(rows, {0.5, 2});
            w.scalar(p.rows).scalar(int(columns)).scalar(p.leading);
          },
      .draws = {3, 1},  // full rows count three times as much
      .reference =
          [](float* sums, const float8_e4m3* x, const float* scales, int rows, int columns,
             int leading) {
            for (int r = 0; r < rows; ++r) {
              double sum = 0;
              for (int i = 0; i < columns; ++i) sum += float(x[r * leading + i]);
              sums[r] += float(sum * scales[r]);
            }
          },
      .device_reference = {{.config = "block=32,parts=1",
                            .problem = {{"rows", 3}, {"columns", 70}, {"leading", 80}}}},
      .tolerance = {.relative = 1e-3, .absolute = 1e-3}};

  kiln::Runtime runtime;
  auto tuned = runtime.tuned(row_sums);
  const Matrix problem{64, 4000, 4096};
  kiln::TuneOptions options;
  options.max_seconds = 3;
  const kiln::TuneResult result = tuned.tune(problem, options);
  for (const std::string& warning : result.warnings) std::printf("%s\n", warning.c_str());
  std::printf("%s\n", result.describe(result.winner()).c_str());
  return tuned.verify(problem).right ? 0 : 1;
}
