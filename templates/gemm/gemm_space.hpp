// The space of gemm.hpp's kernels. It lives here and not in the header, so that a new value leaves
// the kernel's source, and with it every compiled binary, as it is.
#pragma once

#include "templates/gemm/gemm_values.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

/// Registers for a thread's sums, and an estimate of those for operands and addresses.
constexpr int registers(const Gemm& c, GemmOperands operands) {
  const int elements = c.tile_m * c.tile_n;
  switch (c.body) {
    case GemmBody::mma:
    case GemmBody::shift:
      return elements / 32 + (c.tile_m + c.tile_n) / 4 + 40;
    case GemmBody::wgmma:
      return elements / 128 + 60;
    default:
      break;
  }
  const int of_slice = operands == GemmOperands::fp8_scaled ? elements : 0;
  return elements + of_slice + (c.tile_m + 1) * c.vector + 40;
}

/// `most_host_columns`: of a block, so that its slices stay in a core's cache.
template <class T, GemmTranspose op, class Problem, int most_host_columns = 128>
constexpr Space<Gemm, Problem> constrained(Space<Gemm, Problem> space) {
  using P = const Problem&;
  using D = const DeviceLimits&;
  return space.values(&Gemm::block_m, {8, 16, 32, 64, 128, 192, 256})
      .values(&Gemm::block_n,
              {8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256})
      .values(&Gemm::block_k, {32, 64, 128, 256, 512, 1024, 2048, 4096})
      .values(&Gemm::stages, {1, 2, 3, 4, 5, 8})
      .values(&Gemm::group_m, {1, 4, 8, 16})
      .where("tiles divide blocks, and vector divides block_k",
             [](const Gemm& c, P, D) { return c.divides(GemmTypes<T>::kOperands); })
      .where(
          "the body takes operands as they lie, and TMA copies 64 rows of one that lies across k",
          [](const Gemm& c, P, D) { return c.takes(op); })
      .where(
          "bodies fed by tensor maps need sm_90, and leading dimensions and strides of A and B of "
          "multiples of 16 bytes",
          [](const Gemm& c, P p, D d) {
            return !c.uses_tma() || (d.compute_capability == 90 && d.tensor_maps && p.k > 0 &&
                                     gemm_shape<op>(p).operands_mappable(sizeof(GemmOperand<T>)));
          })
      .where(
          "bodies that store through tensor maps need an n, ldc and stride_c of multiples of 16 "
          "bytes",
          [](const Gemm& c, P p, D) {
            return !c.stores_by_map() || gemm_shape<op>(p).storable(sizeof(GemmOperand<T>));
          })
      .where(
          "the stream body takes at most block_m rows, and a k, lda and ldb that are multiples of "
          "8",
          [](const Gemm& c, P p, D d) {
            return c.body != GemmBody::stream ||
                   (p.m <= c.block_m && p.k > 0 && p.k % 8 == 0 &&
                    gemm_shape<op>(p).operands_mappable() &&
                    d.compute_capability >= (c.programmatic ? 90 : 80));
          })
      .where("the threads of a block fit the device, and are whole warps on a GPU",
             [](const Gemm& c, P, D d) {
               return c.threads() <= d.max_threads_per_block &&
                      (d.on_host() || c.threads() % d.warp_size == 0);
             })
      .where("the buffers of a block fit its shared memory",
             [](const Gemm& c, P, D d) {
               return c.shared_bytes(sizeof(GemmOperand<T>), op, GemmTypes<T>::kOperands) <=
                      static_cast<unsigned>(d.shared_per_block_optin);
             })
      .where(
          "bodies on tensor cores need sm_80 or later, those with wgmma sm_90, and each access "
          "has 8 elements",
          [](const Gemm& c, P, D d) {
            const int capability = d.compute_capability;
            return c.body == GemmBody::simt ||
                   (c.vector == 8 &&
                    (c.by_warp() || c.body == GemmBody::stream ? capability >= 80
                                                               : capability == 90));
          })
      .where(
          "the shift body is for GPUs, and a k, leading dimensions or strides that are no "
          "multiples "
          "of 8",
          [](const Gemm& c, P p, D d) {
            return c.body != GemmBody::shift ||
                   (!d.on_host() && gemm_shape<op>(p).has_unaligned_rows());
          })
      .where("2-byte elements are multiplied on tensor cores if the device has them",
             [](const Gemm& c, P, D d) {
               return c.body != GemmBody::simt || sizeof(GemmOperand<T>) != 2 ||
                      d.compute_capability < 80;
             })
      .where("a block of more than 64 rows (host: 16) has work for more than half of them",
             [](const Gemm& c, P p, D d) {
               return c.block_m <= (d.on_host() ? 16 : 64) || c.block_m < 2 * (c.swap ? p.n : p.m);
             })
      .where("an access of a GPU moves at most 16 bytes",
             [](const Gemm& c, P, D d) {
               return d.on_host() || c.vector * sizeof(GemmOperand<T>) <= 16;
             })
      .where("the sums and operands of a thread fit its registers",
             [](const Gemm& c, P, D d) {
               return d.on_host() || !c.plain() || [&] {
                 const int each = registers(c, GemmTypes<T>::kOperands);
                 return each <= 255 && each * c.threads() <= d.registers_per_block;
               }();
             })
      .where(
          "a thread of a GPU makes at most 32 copies per slice, because their addresses take "
          "registers",
          [](const Gemm& c, P, D d) {
            return d.on_host() || !c.plain() ||
                   (c.block_m + c.block_n) * (c.block_k / c.vector) <= 32 * c.threads();
          })
      .where(
          "a thread has at most 64 sums (simt), a warp's tile is at most 64 x 64 (mma), and there "
          "are at least 3 stages (wgmma)",
          [](const Gemm& c, P, D) {
            switch (c.body) {
              case GemmBody::simt:
                return c.tile_m * c.tile_n <= 64;
              case GemmBody::mma:
              case GemmBody::shift:
                return c.tile_m <= 64 && c.tile_n <= 64;
              case GemmBody::wgmma:
                return c.stages >= 3;
              default:
                return true;
            }
          })
      .where("the host has 1 stage, because its copies are immediate",
             [](const Gemm& c, P, D d) { return !d.on_host() || c.stages == 1; })
      .where("a slice has at most 128 elements of k on a GPU, and at least 128 on the host",
             [](const Gemm& c, P, D d) {
               return !c.plain() || (d.on_host() ? c.block_k >= 128 : c.block_k <= 128);
             })
      .where("a thread of the host has 4 to 32 sums, so that they stay in vector registers",
             [](const Gemm& c, P, D d) {
               return !d.on_host() || (c.tile_m * c.tile_n >= 4 && c.tile_m * c.tile_n <= 32);
             })
      .where(
          "a block of the host has at most 128 columns (products with scales of 128: 256), so that "
          "its slices stay in its core's cache",
          [](const Gemm& c, P, D d) { return !d.on_host() || c.block_n <= most_host_columns; })
      .where(
          "group_m is not 8 only where the order of blocks changes: a smaller one needs more block "
          "rows than itself, a larger one more than 8",
          [](const Gemm& c, P p, D) {
            return c.group_m == 8 || !c.plain() ||
                   c.tiles_m(p.m) > static_cast<unsigned>(c.group_m < 8 ? c.group_m : 8);
          });
}

/// The same for products whose grid is Gemm::grid().
template <class T, GemmTranspose op, class Problem, int most_host_columns = 128>
constexpr Space<Gemm, Problem> with_grid(Space<Gemm, Problem> space) {
  using P = const Problem&;
  using D = const DeviceLimits&;
  return constrained<T, op, Problem, most_host_columns>(space)
      .where("the grid fits the device",
             [](const Gemm& c, P p, D d) {
               const auto shape = gemm_shape<op>(p);
               return c.grid(shape.sizes(), d.usable_multiprocessors(), shape.batch) <=
                          d.max_grid.x &&
                      (!c.uses_tma() ||
                       1.0 * c.tma().tiles_m(p.m, p.n) * c.tma().tiles_n(p.m, p.n) * shape.batch <
                           2147483648.0);
             })
      .checked();
}

template <class T, GemmTranspose op, class Problem>
constexpr Space<Gemm, Problem> gemm_space() {
  return with_grid<T, op, Problem>(gemm_values<T, Problem, false, op == GemmTranspose::nt>());
}

}  // namespace kiln::templates
