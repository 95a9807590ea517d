// The typed kernels of rope.hpp for C++ programs, and what they are without their signatures.
#pragma once

#include "kiln/detail/untyped_kernel.hpp"
#include "rope.hpp"

namespace kiln::templates {

/// `norm`: q and k are normalized first.
template <class T, class Table, class Position>
kiln::detail::UntypedKernel<RopeConfig, RopeProblem> rope_base(RopeOrder order, bool norm);
template <class T, class Table, class Position>
kiln::detail::UntypedKernel<RopeConfig, RopePagedProblem> rope_paged_base(RopeOrder order,
                                                                          bool norm);

namespace rope_detail {

template <class T, class Table, class Position, class... Norm>
RopeKernelOf<T, Table, Position, Norm...> apart(RopeOrder order) {
  using I = RopeStride;
  return rope_base<T, Table, Position>(order, sizeof...(Norm) != 0)
      .template typed<RopeKernelOf<T, Table, Position, Norm...>>(
          [](T*, T*, const T*, const T*, const Table*, const Position*, int tokens, int q_heads,
             int kv_heads, int head_dim, int rotary_dim, int, I q_out_stride, I k_out_stride,
             I q_stride, I k_stride, Norm...) {
            return RopeProblem{tokens,       q_heads,      kv_heads, head_dim, rotary_dim,
                               q_out_stride, k_out_stride, q_stride, k_stride};
          });
}

template <class T, class Table, class Position, class... Norm>
RopePagedKernelOf<T, Table, Position, Norm...> paged(RopeOrder order) {
  using I = RopeStride;
  return rope_paged_base<T, Table, Position>(order, sizeof...(Norm) != 0)
      .template typed<RopePagedKernelOf<T, Table, Position, Norm...>>(
          [](T*, T*, T*, const T*, const T*, const T*, const Table*, const Position*,
             const std::int64_t*, int tokens, int q_heads, int kv_heads, int head_dim,
             int rotary_dim, int, int, int block_size, I block_stride, I q_out_stride, I q_stride,
             I k_stride, I v_stride, Norm...) {
            return RopePagedProblem{tokens,     q_heads,    kv_heads,     head_dim,
                                    rotary_dim, block_size, block_stride, q_out_stride,
                                    q_stride,   k_stride,   v_stride};
          });
}

}  // namespace rope_detail

template <class T, class Table, class Position>
RopeKernel<T, Table, Position> rope_kernel(RopeOrder order) {
  return rope_detail::apart<T, Table, Position>(order);
}
template <class T, class Table, class Position>
RopeNormKernel<T, Table, Position> rope_norm_kernel(RopeOrder order) {
  return rope_detail::apart<T, Table, Position, const T*, const T*, float>(order);
}
template <class T, class Table, class Position>
RopePagedKernel<T, Table, Position> rope_paged_kernel(RopeOrder order) {
  return rope_detail::paged<T, Table, Position>(order);
}
template <class T, class Table, class Position>
RopeNormPagedKernel<T, Table, Position> rope_norm_paged_kernel(RopeOrder order) {
  return rope_detail::paged<T, Table, Position, const T*, const T*, float>(order);
}

}  // namespace kiln::templates
