#include "fake_cublaslt.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "kiln/types.hpp"

namespace {

using kiln::test::FakeAlgorithm;
using kiln::test::FakeCublaslt;
using kiln::test::FakeProduct;

constexpr int kSuccess = 0, kInvalid = 7, kNotSupported = 15;
/// How an algorithm hides itself in its 64 bytes.
constexpr std::uint64_t kMark = 0x616c676f;
constexpr std::int32_t kId = 66;

FakeCublaslt script;
std::mutex launched;  ///< guards what launches write down

enum DataType : int { f32 = 0, f16 = 2, bf16 = 14, e4m3 = 28, e5m2 = 29 };
bool is_8_bits(int type) { return type == e4m3 || type == e5m2; }
std::size_t bytes_of(int type) { return is_8_bits(type) ? 1 : type == f32 ? 4 : 2; }

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
  std::int8_t fast = 0;
  const float *a_scale = nullptr, *b_scale = nullptr;
};
struct Layout {
  int type;
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

template <class T>
float number(const void* matrix, std::int64_t i) {
  return static_cast<const T*>(matrix)[i];
}
float at(const void* matrix, const Layout& layout, std::int64_t batch, bool transposed,
         std::int64_t row, std::int64_t column) {
  if (transposed) std::swap(row, column);
  const std::int64_t i = batch * layout.stride + column * layout.leading + row;
  switch (layout.type) {
    case f16:
      return number<kiln::float16>(matrix, i);
    case bf16:
      return number<kiln::bfloat16>(matrix, i);
    case e4m3:
      return number<kiln::float8_e4m3>(matrix, i);
    case e5m2:
      return number<kiln::float8_e5m2>(matrix, i);
    default:
      return number<float>(matrix, i);
  }
}
void store(void* matrix, int type, std::int64_t i, float value) {
  if (type == f16)
    static_cast<kiln::float16*>(matrix)[i] = kiln::float16(value);
  else if (type == bf16)
    static_cast<kiln::bfloat16*>(matrix)[i] = kiln::bfloat16(value);
  else
    static_cast<float*>(matrix)[i] = value;
}

FakeProduct told(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  return {a.type, b.type, d.type, desc.a_scale, desc.b_scale, desc.fast};
}
/// Of operands of two types, and of 8-bit floats.
bool multiplies(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  if (is_8_bits(d.type)) return false;
  if (!is_8_bits(a.type) && !is_8_bits(b.type))
    return a.type == b.type && (d.type == a.type || d.type == f32) && !desc.a_scale &&
           !desc.b_scale;
  if (!is_8_bits(a.type) || !is_8_bits(b.type) || (a.type == e5m2 && b.type == e5m2)) return false;
  if (!script.knows_8_bits || desc.transa != 1 || desc.transb != 0) return false;
  const auto fits = [](const Layout& layout) {
    const std::size_t bytes = bytes_of(layout.type);
    return layout.rows * bytes % 16 == 0 &&
           static_cast<std::size_t>(layout.leading) * bytes % 16 == 0 &&
           (layout.batch == 1 || static_cast<std::size_t>(layout.stride) * bytes % 16 == 0);
  };
  return fits(a) && fits(b) && fits(d);
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
int cublasLtMatmulDescInit_internal(void* place, std::size_t bytes, int compute, int scale) {
  if (bytes < sizeof(Desc)) return 3;  // CUBLAS_STATUS_ALLOC_FAILED
  if (compute != 68 || scale != 0) return kInvalid;
  new (place) Desc;
  return kSuccess;
}
int cublasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value,
                                   std::size_t bytes) {
  const auto set = [&](auto& field) {
    if (bytes != sizeof(field)) return kInvalid;
    std::memcpy(&field, value, bytes);
    return kSuccess;
  };
  if (attribute == 3) return set(desc->transa);
  if (attribute == 4) return set(desc->transb);
  if (!script.knows_8_bits) return kInvalid;
  if (attribute == 17) return set(desc->a_scale);
  if (attribute == 18) return set(desc->b_scale);
  if (attribute == 25) return set(desc->fast);
  return kInvalid;
}
int cublasLtMatrixLayoutCreate(Layout** layout, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t leading) {
  if (leading < static_cast<std::int64_t>(rows)) return kInvalid;
  ++script.descriptors;
  *layout = new Layout{type, rows, columns, leading};
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
int cublasLtMatmulAlgoGetHeuristic(void*, Desc* desc, Layout* a, Layout* b, Layout*, Layout* d,
                                   Preference* preference, int requested, Result* results,
                                   int* returned) {
  *returned = 0;
  script.asked = told(*desc, *a, *b, *d);
  if (script.heuristic_status != kSuccess) return script.heuristic_status;
  script.largest_preference =
      std::max<std::size_t>(script.largest_preference, preference->workspace);
  if (preference->alignment != 16 || preference->reductions != 2) return kInvalid;
  if (!multiplies(*desc, *a, *b, *d)) return kNotSupported;
  for (const FakeAlgorithm& algorithm : script.algorithms)
    if (*returned < requested && algorithm.workspace <= preference->workspace)
      results[(*returned)++] = Result{{kMark, kId, algorithm.tile, 1, algorithm.variant, {}},
                                      algorithm.workspace,
                                      kSuccess,
                                      1,
                                      {}};
  return *returned > 0 ? kSuccess : kNotSupported;
}
int cublasLtMatmulAlgoInit(void*, int, int, int a, int b, int, int d, int id, Algo* algo) {
  if (id != kId) return kInvalid;
  script.restored = {a, b, d};
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
int cublasLtMatmulAlgoCheck(void*, Desc* desc, Layout* a, Layout* b, Layout*, Layout* d,
                            const Algo* algo, Result* result) {
  script.checked = told(*desc, *a, *b, *d);
  const FakeAlgorithm* found = known(*algo);
  if (!found || !multiplies(*desc, *a, *b, *d)) return kNotSupported;
  if (script.check_status != kSuccess) return script.check_status;
  *result = Result{*algo, found->workspace, kSuccess, 1, {}};
  return kSuccess;
}
int cublasLtMatmul(void*, Desc* desc, const float* alpha, const void* a, Layout* la, const void* b,
                   Layout* lb, const float* beta, const void*, Layout*, void* d, Layout* ld,
                   const Algo* algo, void* workspace, std::size_t bytes, void*) {
  if (script.before_matmul) script.before_matmul();
  const FakeAlgorithm* found = known(*algo);
  if (!found || bytes < found->workspace || (found->workspace > 0 && !workspace)) return kInvalid;
  if (*alpha != 1 || *beta != 0 || la->batch != ld->batch || lb->batch != ld->batch)
    return kInvalid;
  if (!multiplies(*desc, *la, *lb, *ld)) return kInvalid;
  if (found->workspace > 0) std::memset(workspace, 1, found->workspace);
  const auto k = static_cast<std::int64_t>(desc->transa ? la->rows : la->columns);
  if (k != static_cast<std::int64_t>(desc->transb ? lb->columns : lb->rows)) return kInvalid;
  const float scale = (desc->a_scale ? *desc->a_scale : 1) * (desc->b_scale ? *desc->b_scale : 1);
  for (std::int64_t batch = 0; batch < ld->batch; ++batch)
    for (std::int64_t column = 0; column < static_cast<std::int64_t>(ld->columns); ++column)
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(ld->rows); ++row) {
        float sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
          sum += at(a, *la, batch, desc->transa == 1, row, l) *
                 at(b, *lb, batch, desc->transb == 1, l, column);
        store(d, ld->type, batch * ld->stride + column * ld->leading + row, scale * sum);
      }
  {
    const std::lock_guard lock(launched);
    script.launched_variant = algo->variant;
    script.launched = told(*desc, *la, *lb, *ld);
  }
  if (script.on_matmul) script.on_matmul(static_cast<std::uint32_t>(algo->tile));
  return kSuccess;
}
}
