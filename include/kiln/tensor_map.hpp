// An array as the tensor memory accelerator of sm_90 and later sees it: a kernel that gets a map in
// place of a pointer copies boxes of the array between global and shared memory with one
// instruction (kiln/hopper.cuh).
//
//   kernel.maps = {{.argument = 1,  // A, [m][k]
//                   .map = [](const Gemm& c, const GemmProblem& p) {
//                     return kiln::TensorMap::tiled<__half>({.size = {p.k, p.m}, .stride = {p.k},
//                                                            .box = {c.block_k, c.block_m},
//                                                            .swizzle = kiln::Swizzle::bytes128});
//                   },
//                   .only_if = [](const Gemm& c) { return c.body == GemmBody::tma; }}};
//
// Programs pass plain pointers as before. A map is made once for a problem; a launch only puts the
// pointer in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kiln/types.hpp"

namespace kiln {

/// How 16-byte pieces of a box change places in shared memory, so that a column of it lies in
/// different banks. They do so within spans of this many bytes, and the box's inner extent fits the
/// span.
enum class Swizzle : std::uint8_t { none, bytes32, bytes64, bytes128 };

/// Immutable once made; plain data.
struct TensorMap {
  static constexpr int kMaxRank = 5;

  DataType type = DataType::bytes;
  int rank = 0;                                  ///< 1 to 5
  std::array<std::uint64_t, kMaxRank> size{};    ///< elements, the innermost dimension first
  std::array<std::uint64_t, kMaxRank> stride{};  ///< bytes from one index to the next; [0] unused
  std::array<std::uint32_t, kMaxRank> box{};     ///< elements that one instruction moves
  Swizzle swizzle = Swizzle::none;
  int l2_bytes = 0;  ///< fetched into the L2 cache at a time: 0, 64, 128 or 256

  /// In elements. One stride fewer than dimensions; none if the array is contiguous.
  struct Tiled {
    std::vector<std::int64_t> size, stride{}, box;
    Swizzle swizzle = Swizzle::none;
    int l2_bytes = 0;
  };
  /// Values out of range are kept as they are, and `obstacle` reports them.
  static TensorMap tiled(DataType type, const Tiled& tiled);
  template <class T>
  static TensorMap tiled(const Tiled& description) {
    return tiled(data_type<T>(), description);
  }

  std::size_t element_bytes() const noexcept;
  /// Bytes that a box takes in shared memory, and that its barrier must expect.
  std::size_t box_bytes() const noexcept;
  /// Which of the hardware's rules the map breaks, with the figure; empty: it breaks none. The
  /// rules are those of cuTensorMapEncodeTiled (CUDA Driver API).
  std::string obstacle() const;
  bool operator==(const TensorMap&) const = default;
};

/// Pointers that become maps must be multiples of this.
constexpr std::size_t kTensorMapAlignment = 16;

/// An argument that some configs take as a map. Both functions are pure.
struct MapRule {
  using Span = std::span<const std::int64_t>;
  /// Its place in the signature, from 0; a pointer. Entries of configs that make it a map take a
  /// `const __grid_constant__ kiln::hopper::TensorMap` there.
  std::size_t argument = 0;
  std::function<TensorMap(Span config, Span problem)> map{};
  std::function<bool(Span config)> only_if{};  ///< empty: all configs take the map

  bool applies(Span config) const { return !only_if || only_if(config); }
};

/// The same over a typed kernel's structs.
template <class Config, class Problem>
struct TypedMapRule {
  std::size_t argument = 0;
  TensorMap (*map)(const Config&, const Problem&) = nullptr;
  bool (*only_if)(const Config&) = nullptr;
};

}  // namespace kiln
