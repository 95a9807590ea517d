#include "fake_cublaslt.hpp"

#include <algorithm>
#include <cstring>

namespace {

using kiln::test::FakeAlgorithm;
using kiln::test::FakeCublaslt;

constexpr int kSuccess = 0, kInvalid = 7, kNotSupported = 15;
/// How an algorithm hides itself in its 64 bytes.
constexpr std::uint64_t kMark = 0x616c676f;
constexpr std::int32_t kId = 66;

FakeCublaslt script;

struct Algo {
  std::uint64_t mark, id, tile, whole, variant, rest[3];
};
static_assert(sizeof(Algo) == 64);
struct Result {
  Algo algo;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
struct Desc {
  std::int32_t transa = 0, transb = 0;
};
struct Layout {
  std::uint64_t rows, columns;
  std::int64_t leading;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t alignment = 256, reductions = 7;
};

const FakeAlgorithm* known(const Algo& algo) {
  if (algo.mark != kMark || algo.id != kId) return nullptr;
  const auto found = std::ranges::find_if(script.algorithms, [&](const FakeAlgorithm& a) {
    return a.tile == algo.tile && (!algo.whole || a.variant == algo.variant);
  });
  return found == script.algorithms.end() || (found->hidden && !algo.whole) ? nullptr : &*found;
}

float at(const float* matrix, const Layout& layout, bool transposed, std::int64_t row,
         std::int64_t column) {
  if (transposed) std::swap(row, column);
  return matrix[column * layout.leading + row];
}

}  // namespace

extern "C" {

FakeCublaslt* kiln_fake_cublaslt() { return &script; }
std::size_t cublasLtGetVersion() { return script.version; }
int cublasLtCreate(void** handle) {
  if (script.create_status != kSuccess) return script.create_status;
  ++script.handles;
  *handle = &script;
  return kSuccess;
}
int cublasLtDestroy(void*) { return --script.handles, kSuccess; }
int cublasLtMatmulDescCreate(Desc** desc, int compute, int scale) {
  if (compute != 68 || scale != 0) return kInvalid;
  ++script.descriptors;
  *desc = new Desc;
  return kSuccess;
}
int cublasLtMatmulDescDestroy(Desc* desc) {
  --script.descriptors;
  delete desc;
  return kSuccess;
}
int cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value,
                                   std::size_t bytes) {
  if (bytes != 4 || (attribute != 3 && attribute != 4)) return kInvalid;
  std::memcpy(attribute == 3 ? &desc->transa : &desc->transb, value, bytes);
  return kSuccess;
}
int cublasLtMatrixLayoutCreate(Layout** layout, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t leading) {
  if (type != 0 || leading < static_cast<std::int64_t>(rows)) return kInvalid;
  ++script.descriptors;
  *layout = new Layout{rows, columns, leading};
  return kSuccess;
}
int cublasLtMatrixLayoutDestroy(Layout* layout) {
  --script.descriptors;
  delete layout;
  return kSuccess;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                     std::size_t bytes) {
  if (attribute == 5 && bytes == 4)
    std::memcpy(&layout->batch, value, bytes);
  else if (attribute == 6 && bytes == 8)
    std::memcpy(&layout->stride, value, bytes);
  else
    return kInvalid;
  return kSuccess;
}
int cublasLtMatmulPreferenceCreate(Preference** preference) {
  ++script.descriptors;
  *preference = new Preference;
  return kSuccess;
}
int cublasLtMatmulPreferenceDestroy(Preference* preference) {
  --script.descriptors;
  delete preference;
  return kSuccess;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value,
                                         std::size_t bytes) {
  if (attribute == 1 && bytes == 8)
    std::memcpy(&preference->workspace, value, bytes);
  else if (attribute == 3 && bytes == 4)
    std::memcpy(&preference->reductions, value, bytes);
  else if (attribute >= 5 && attribute <= 8 && bytes == 4)
    std::memcpy(&preference->alignment, value, bytes);
  else
    return kInvalid;
  return kSuccess;
}
int cublasLtMatmulAlgoGetHeuristic(void*, Desc*, Layout*, Layout*, Layout*, Layout*,
                                   Preference* preference, int requested, Result* results,
                                   int* returned) {
  *returned = 0;
  if (script.heuristic_status != kSuccess) return script.heuristic_status;
  script.largest_preference =
      std::max<std::size_t>(script.largest_preference, preference->workspace);
  if (preference->alignment != 16 || preference->reductions != 2) return kInvalid;
  for (const FakeAlgorithm& algorithm : script.algorithms)
    if (*returned < requested && algorithm.workspace <= preference->workspace)
      results[(*returned)++] = Result{{kMark, kId, algorithm.tile, 1, algorithm.variant, {}},
                                      algorithm.workspace,
                                      kSuccess,
                                      1,
                                      {}};
  return *returned > 0 ? kSuccess : kNotSupported;
}
int cublasLtMatmulAlgoInit(void*, int, int, int, int, int, int, int id, Algo* algo) {
  if (id != kId) return kInvalid;
  *algo = Algo{kMark, kId, 0, 0, 0, {}};
  return kSuccess;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algo* algo, int attribute, void* value,
                                         std::size_t bytes, std::size_t* written) {
  if (bytes != (attribute >= 7 ? 2u : 4u)) return kInvalid;
  if (const FakeAlgorithm* asked = known(*algo); asked && asked->unreadable) return kNotSupported;
  const auto found = static_cast<std::uint32_t>(attribute == 0   ? algo->id
                                                : attribute == 1 ? algo->tile
                                                                 : 0);
  std::memcpy(value, &found, bytes);
  *written = bytes;
  return kSuccess;
}
int cublasLtMatmulAlgoConfigSetAttribute(Algo* algo, int attribute, const void* value,
                                         std::size_t bytes) {
  if (attribute == 0 || bytes != (attribute >= 7 ? 2u : 4u)) return kInvalid;
  std::uint32_t given = 0;
  std::memcpy(&given, value, bytes);
  if (attribute == 1) algo->tile = given;
  return kSuccess;
}
int cublasLtMatmulAlgoCheck(void*, Desc*, Layout*, Layout*, Layout*, Layout*, const Algo* algo,
                            Result* result) {
  const FakeAlgorithm* found = known(*algo);
  if (!found) return kNotSupported;
  if (script.check_status != kSuccess) return script.check_status;
  *result = Result{*algo, found->workspace, kSuccess, 1, {}};
  return kSuccess;
}
int cublasLtMatmul(void*, Desc* desc, const float* alpha, const float* a, Layout* la,
                   const float* b, Layout* lb, const float* beta, const float*, Layout*, float* d,
                   Layout* ld, const Algo* algo, void* workspace, std::size_t bytes, void*) {
  const FakeAlgorithm* found = known(*algo);
  if (!found || bytes < found->workspace || (found->workspace > 0 && !workspace)) return kInvalid;
  if (*alpha != 1 || *beta != 0 || la->batch != ld->batch || lb->batch != ld->batch)
    return kInvalid;
  if (found->workspace > 0) std::memset(workspace, 1, found->workspace);
  const auto k = static_cast<std::int64_t>(desc->transa ? la->rows : la->columns);
  if (k != static_cast<std::int64_t>(desc->transb ? lb->columns : lb->rows)) return kInvalid;
  for (std::int64_t batch = 0; batch < ld->batch; ++batch)
    for (std::int64_t column = 0; column < static_cast<std::int64_t>(ld->columns); ++column)
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(ld->rows); ++row) {
        float sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
          sum += at(a + batch * la->stride, *la, desc->transa == 1, row, l) *
                 at(b + batch * lb->stride, *lb, desc->transb == 1, l, column);
        d[batch * ld->stride + column * ld->leading + row] = sum;
      }
  script.launched_variant = algo->variant;
  if (script.on_matmul) script.on_matmul(static_cast<std::uint32_t>(algo->tile));
  return kSuccess;
}
}
