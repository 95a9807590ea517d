// Internal: what Kiln uses of libcublasLt, found at run time. The names and values are those of
// NVIDIA's cublasLt.h, without `cublasLt`: they have been the same since CUDA 12.0, and nothing is
// linked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace kiln::runtime::cublaslt {

enum class Status : int { success = 0, invalid_value = 7, not_supported = 15 };
enum class DataType : int { r_32f = 0, r_16f = 2, r_16bf = 14, r_8f_e4m3 = 28, r_8f_e5m2 = 29 };
enum class ComputeType : int { c_32f = 68 };
enum class DescAttribute : int {
  transa = 3,
  transb = 4,
  a_scale_pointer = 17,
  b_scale_pointer = 18,
  fast_accum = 25
};
enum class LayoutAttribute : int { batch_count = 5, strided_batch_offset = 6 };
enum class PreferenceAttribute : int {
  max_workspace_bytes = 1,
  reduction_scheme_mask = 3,
  min_alignment_a = 5,
  min_alignment_b = 6,
  min_alignment_c = 7,
  min_alignment_d = 8
};
inline constexpr std::int32_t kTransposed = 1;  ///< CUBLAS_OP_T
/// CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: parts of a sum are not rounded to the output's type.
inline constexpr std::uint32_t kReducedInComputeType = 2;

using Handle = struct HandleOf*;
using Layout = struct LayoutOf*;
using Preference = struct PreferenceOf*;
using StreamHandle = void*;

/// cublasLtMatmulDescOpaque_t: a description that lies where its user wants it. That is half as
/// large in CUDA 13, and what the library does not need stays unused.
struct DescOpaque {
  std::array<std::uint64_t, 64> data{};
};
using Desc = DescOpaque*;

struct Algo {
  std::array<std::uint64_t, 8> data{};
};
struct HeuristicResult {
  Algo algo;
  std::size_t workspace = 0;
  Status state{};
  float waves = 0;
  std::array<int, 4> reserved{};
};

/// The public attributes that make an algorithm what it is (cublasLtMatmulAlgoConfigAttributes_t).
struct AlgoAttribute {
  int id;
  std::size_t bytes;
  const char* name;
};
inline constexpr std::array kAlgoAttributes{
    AlgoAttribute{0, 4, "algo"},    AlgoAttribute{1, 4, "tile"},
    AlgoAttribute{2, 4, "split_k"}, AlgoAttribute{3, 4, "reduction"},
    AlgoAttribute{4, 4, "swizzle"}, AlgoAttribute{5, 4, "custom"},
    AlgoAttribute{6, 4, "stages"},  AlgoAttribute{7, 2, "inner_shape"},
    AlgoAttribute{8, 2, "cluster"}};

/// Immutable; safe to use from several threads.
struct Library {
  std::size_t (*GetVersion)() = nullptr;
  Status (*Create)(Handle*) = nullptr;
  Status (*Destroy)(Handle) = nullptr;
  /// What the header's inline function cublasLtMatmulDescInit calls.
  Status (*MatmulDescInit_internal)(Desc, std::size_t, ComputeType, DataType scale) = nullptr;
  Status (*MatmulDescSetAttribute)(Desc, DescAttribute, const void*, std::size_t) = nullptr;
  Status (*MatrixLayoutCreate)(Layout*, DataType, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t leading) = nullptr;
  Status (*MatrixLayoutDestroy)(Layout) = nullptr;
  Status (*MatrixLayoutSetAttribute)(Layout, LayoutAttribute, const void*, std::size_t) = nullptr;
  Status (*MatmulPreferenceCreate)(Preference*) = nullptr;
  Status (*MatmulPreferenceDestroy)(Preference) = nullptr;
  Status (*MatmulPreferenceSetAttribute)(Preference, PreferenceAttribute, const void*,
                                         std::size_t) = nullptr;
  Status (*MatmulAlgoGetHeuristic)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference,
                                   int requested, HeuristicResult*, int* returned) = nullptr;
  Status (*MatmulAlgoInit)(Handle, ComputeType, DataType scale, DataType a, DataType b, DataType c,
                           DataType d, int id, Algo*) = nullptr;
  Status (*MatmulAlgoCheck)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, const Algo*,
                            HeuristicResult*) = nullptr;
  Status (*MatmulAlgoConfigGetAttribute)(const Algo*, int attribute, void*, std::size_t,
                                         std::size_t* written) = nullptr;
  Status (*MatmulAlgoConfigSetAttribute)(Algo*, int attribute, const void*, std::size_t) = nullptr;
  Status (*Matmul)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algo*,
                   void* workspace, std::size_t, StreamHandle) = nullptr;

  std::size_t version = 0;  ///< 130000 is 13.0.0
};

struct Probe {
  std::shared_ptr<const Library> library;  ///< null when there is none
  std::string reason;                      ///< why there is none, and what to do
};

/// $KILN_CUBLASLT, else what is loaded already or the loader finds, else the toolkits' (as
/// NVRTC's). Its absence is an ordinary outcome. A library stays loaded.
Probe open();

}  // namespace kiln::runtime::cublaslt
