// cuda_fp8.h on the host target, against kiln::float8_e4m3 and kiln::float8_e5m2, which are held
// against the formats' definitions in tests/unit/api.
#include <cmath>
#include <cstdint>
#include <limits>

#include "host_test.hpp"
#include "kiln/runtime.hpp"
#include "kiln/types.hpp"

using namespace host_test;

namespace {

std::string float8_text(const std::string& kind) {
  return "#include <cuda_fp8.h>\nusing T = __nv_fp8_" + kind + "; using T2 = __nv_fp8x2_" + kind +
         "; using T4 = __nv_fp8x4_" + kind + R"(;
    __global__ void widen(float* out, const T* in) {
      int i = threadIdx.x;
      T2 two; two.__x = (unsigned short)(in[i].__x | 0x38 << 8);
      float2 pair = (float2)two;
      float a = (float)in[i], b = __half2float((__half)in[i]), c = __bfloat162float((__nv_bfloat16)in[i]);
      out[i] = a != a ? a : a == b && a == c && a == pair.x && pair.y == (float)T(pair.y) ? a : -12345.0f;
    }
    __global__ void narrow(T* out, const float* in, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = T(in[i]);
    }
    __global__ void four(T4* out, const float4* in) { *out = T4(*in); }
    __global__ void narrow_double(T* out, const double* in, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = T(in[i]);
    })";
}

template <class T>
void check_float8_header(const std::string& kind) {
  const std::string text = float8_text(kind);
  std::vector<T> all(256);
  for (int i = 0; i < 256; ++i) all[std::size_t(i)].bits = static_cast<std::uint8_t>(i);
  std::vector<float> wide(256);
  Kernel(text, "widen")({1}, {256}, 0, wide.data(), all.data());
  for (std::size_t i = 0; i < 256; ++i) {
    CAPTURE(i);
    if (std::isnan(float(all[i])))
      CHECK(std::isnan(wide[i]));
    else
      CHECK(wide[i] == float(all[i]));
  }
  // Every value, every tie, their neighbours, and what is too large.
  std::vector<float> in{1e30f, 1e-30f, std::numeric_limits<float>::infinity(), std::nanf("")};
  for (std::size_t i = 0; i + 1 < 128; ++i) {
    const float low = all[i], high = all[i + 1];
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    for (const float v : {low, (low + high) / 2})
      for (const float next : {v, std::nextafter(v, -1.0f), std::nextafter(v, 1e30f)})
        in.insert(in.end(), {next, -next});
  }
  const auto check = [&](const char* entry, const auto& given, auto want) {
    std::vector<T> out(given.size());
    Kernel(text, entry)({unsigned(given.size() + 255) / 256}, {256}, 0, out.data(), given.data(),
                        int(given.size()));
    for (std::size_t i = 0; i < given.size(); ++i)
      if (out[i].bits != want(given[i]).bits) {
        CAPTURE(entry, given[i]);
        CHECK(out[i].bits == want(given[i]).bits);
      }
  };
  check("narrow", in, [](float v) { return T(v); });
  // A double that is no float is not rounded twice: just above a tie, it goes up.
  std::vector<double> doubles{1.0, 1 + 0x1p-4 + 0x1p-40, 1 + 0x1p-3 + 0x1p-40, 1e300, -1e300};
  check("narrow_double", doubles, [](double v) {
    return T(std::nextafter(static_cast<float>(v), v > static_cast<float>(v) ? 1e30f : -1e30f));
  });
  const float given[4] = {1.1f, -2.3f, 0.01f, 1e9f};
  std::vector<T> four(4);
  alignas(16) float in4[4];
  std::copy(given, given + 4, in4);
  alignas(4) T out4[4];
  Kernel(text, "four")({1}, {1}, 0, out4, in4);
  for (int i = 0; i < 4; ++i) CHECK(out4[i].bits == T(given[i]).bits);
}

}  // namespace

TEST_CASE("e4m3 on the host target", "[host][float8]") {
  check_float8_header<kiln::float8_e4m3>("e4m3");
}
TEST_CASE("e5m2 on the host target", "[host][float8]") {
  check_float8_header<kiln::float8_e5m2>("e5m2");
}

namespace {

struct SplitConfig {
  int block, parts;
};
struct SplitProblem {
  int rows, columns, leading;
};

}  // namespace
KILN_CONFIG(SplitConfig, block, parts)
KILN_PROBLEM(SplitProblem, rows, columns, leading)

TEST_CASE("8-bit inputs with scales, rows with padding, sums that begin as zeros, two draws",
          "[host][float8]") {
  using kiln::float8_e4m3;
  using Split = kiln::Kernel<SplitConfig, SplitProblem,
                             void(float*, const float8_e4m3*, const float*, int, int, int)>;
  int on_host = 0;
  const Split sums{
      .name = "row_sums",
      .source = {.text = R"(
        #include <cuda_fp8.h>
        struct SplitConfig { int block, parts; };
        template <SplitConfig c>
        __global__ void row_sums(float* out, const __nv_fp8_e4m3* x, const float* scale, int rows,
                                 int columns, int leading) {
          const int row = blockIdx.x / c.parts, part = blockIdx.x % c.parts;
          float sum = 0;
          for (int i = part * c.block + threadIdx.x; i < columns; i += c.block * c.parts)
            sum += (float)x[(long long)row * leading + i];
          atomicAdd(&out[row], sum * scale[row]);
        })"},
      .entry = "row_sums",
      .config_type = "SplitConfig",
      .space = kiln::Space<SplitConfig, SplitProblem>{{32, 1}}
                   .values(&SplitConfig::block, {32, 64})
                   .values_on(kiln::Target::Kind::host, &SplitConfig::parts, {1, 4})
                   .where_on(kiln::Target::Kind::cuda, "not on the host",
                             [](const SplitConfig&, const SplitProblem&,
                                const kiln::DeviceLimits&) { return false; }),
      .launch =
          [](const SplitConfig& c, const SplitProblem& p) {
            return kiln::Launch{{unsigned(p.rows * c.parts)}, {unsigned(c.block)}};
          },
      .problem = [](float*, const float8_e4m3*, const float*, int rows, int columns,
                    int leading) { return SplitProblem{rows, columns, leading}; },
      .workload =
          [](const SplitProblem& p, kiln::Workload& w) {
            const auto rows = std::size_t(p.rows), leading = std::size_t(p.leading);
            const auto columns = std::size_t(p.columns) / (1 + w.draw());
            w.zeroed<float>(rows).input<float8_e4m3>(kiln::Rows{rows, columns, leading});
            w.input<float>(rows, {0.5, 2}).scalar(p.rows).scalar(int(columns)).scalar(p.leading);
          },
      .draws = {2, 1},
      .reference =
          [&](float* out, const float8_e4m3* x, const float* scale, int rows, int columns,
              int leading) {
            ++on_host;
            for (int r = 0; r < rows; ++r) {
              double sum = 0;
              for (int i = 0; i < columns; ++i) sum += float(x[r * leading + i]);
              out[r] += static_cast<float>(sum * scale[r]);
            }
          },
      .device_reference = {{.config = "block=32,parts=1",
                            .problem = {{"rows", 3}, {"columns", 40}, {"leading", 48}}}},
      .tolerance = {.relative = 1e-3, .absolute = 1e-3}};
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  kiln::Runtime runtime(options);
  auto tuned = runtime.tuned(sums);
  kiln::TuneOptions tuning;
  tuning.max_seconds = 5;
  const kiln::TuneResult r = tuned.tune({8, 1000, 1008}, tuning);
  for (const std::string& text : r.warnings) UNSCOPED_INFO(text);
  for (const kiln::Candidate& c : r.candidates) UNSCOPED_INFO(r.describe(c) << ": " << c.reason);
  CHECK(r.candidates.size() == 4);
  CHECK(r.count(kiln::CandidateStatus::measured) == 4);
  CHECK(on_host == 2);  // the small problem's draws
  CHECK(tuned.verify({8, 1000, 1008}).right);
}
