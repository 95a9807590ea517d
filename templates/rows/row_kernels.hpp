// The typed kernels over rows for C++ programs, which the headers beside this one declare, and what
// they are without their signatures. T is float, kiln::float16 or kiln::bfloat16.
#pragma once

#include "../elementwise/activation.hpp"
#include "cross_entropy.hpp"
#include "gated_fp8.hpp"
#include "kiln/detail/untyped_kernel.hpp"
#include "layernorm.hpp"
#include "quantize.hpp"
#include "quantize_blocks_masked.hpp"
#include "quantize_tensor_dynamic.hpp"
#include "quantize_weights.hpp"
#include "rmsnorm.hpp"
#include "rmsnorm_fp8.hpp"
#include "rmsnorm_residual.hpp"
#include "softmax.hpp"

namespace kiln::templates {

template <class Problem>
using RowKernel = kiln::detail::UntypedKernel<RowConfig, Problem>;

template <class T>
RowKernel<HiddenRows> layernorm_base();
template <class T>
RowKernel<HiddenRows> rmsnorm_base();
template <class T>
RowKernel<HiddenRows> rmsnorm_residual_base();
template <class T>
RowKernel<HiddenRows> rmsnorm_fp8_base();
template <class T>
RowKernel<HiddenRows> rmsnorm_fp8_blocks_base();
template <class T>
RowKernel<HiddenRows> rmsnorm_residual_fp8_base();
template <class T>
RowKernel<HiddenRows> rmsnorm_residual_fp8_blocks_base();
template <class T>
RowKernel<LogitRows> softmax_base();
template <class T>
RowKernel<LogitRows> cross_entropy_base();
template <class T>
RowKernel<HiddenRows> quantize_rows_base();
template <class T>
RowKernel<HiddenRows> quantize_blocks_base();
template <class T>
RowKernel<HiddenRows> quantize_tensor_base();
template <class T>
RowKernel<HiddenRows> quantize_tensor_dynamic_base();
template <class T>
RowKernel<MaskedRows> quantize_blocks_masked_base();
template <class T>
RowKernel<WeightGroups> quantize_weights_base();
template <class T>
RowKernel<HiddenRows> gated_fp8_rows_base(const HostActivation& activation);
template <class T>
RowKernel<HiddenRows> gated_fp8_blocks_base(const HostActivation& activation);
template <class T>
RowKernel<HiddenRows> gated_fp8_tensor_base(const HostActivation& activation);

template <class T>
LayerNormKernel<T> layernorm_kernel() {
  return layernorm_base<T>().template typed<LayerNormKernel<T>>(
      [](T*, const T*, const T*, const T*, int rows, int hidden, float) {
        return HiddenRows{rows, hidden};
      });
}
template <class T>
RmsNormKernel<T> rmsnorm_kernel() {
  return rmsnorm_base<T>().template typed<RmsNormKernel<T>>(
      [](T*, const T*, const T*, int rows, int hidden, float) { return HiddenRows{rows, hidden}; });
}
template <class T>
RmsNormResidualKernel<T> rmsnorm_residual_kernel() {
  return rmsnorm_residual_base<T>().template typed<RmsNormResidualKernel<T>>(
      [](T*, T*, const T*, const T*, int rows, int hidden, float) {
        return HiddenRows{rows, hidden};
      });
}
template <class T>
SoftmaxKernel<T> softmax_kernel() {
  return softmax_base<T>().template typed<SoftmaxKernel<T>>(
      [](T*, const T*, int rows, int columns) { return LogitRows{rows, columns}; });
}
template <class T>
CrossEntropyKernel<T> cross_entropy_kernel() {
  return cross_entropy_base<T>().template typed<CrossEntropyKernel<T>>(
      [](float*, const T*, const int*, int rows, int columns, int) {
        return LogitRows{rows, columns};
      });
}

namespace row_detail {

/// The typed form of kernels whose results are 8-bit floats.
template <class T>
QuantizeRowsKernel<T> with_scales(const RowKernel<HiddenRows>& base) {
  return base.typed<QuantizeRowsKernel<T>>([](float8_e4m3*, float*, const T*, int rows,
                                              int hidden) { return HiddenRows{rows, hidden}; });
}
template <class T>
QuantizeTensorKernel<T> with_scale(const RowKernel<HiddenRows>& base) {
  return base.typed<QuantizeTensorKernel<T>>([](float8_e4m3*, const T*, const float*, int rows,
                                                int hidden) { return HiddenRows{rows, hidden}; });
}

template <class T>
RmsNormFp8Kernel<T> of_norm(const RowKernel<HiddenRows>& base) {
  return base.typed<RmsNormFp8Kernel<T>>([](float8_e4m3*, float*, const T*, const T*, int rows,
                                            int hidden,
                                            float) { return HiddenRows{rows, hidden}; });
}
template <class T>
RmsNormResidualFp8Kernel<T> of_sum(const RowKernel<HiddenRows>& base) {
  return base.typed<RmsNormResidualFp8Kernel<T>>([](float8_e4m3*, float*, T*, const T*, const T*,
                                                    int rows, int hidden,
                                                    float) { return HiddenRows{rows, hidden}; });
}

}  // namespace row_detail

template <class T>
RmsNormFp8Kernel<T> rmsnorm_fp8_kernel() {
  return row_detail::of_norm<T>(rmsnorm_fp8_base<T>());
}
template <class T>
RmsNormFp8Kernel<T> rmsnorm_fp8_blocks_kernel() {
  return row_detail::of_norm<T>(rmsnorm_fp8_blocks_base<T>());
}
template <class T>
RmsNormResidualFp8Kernel<T> rmsnorm_residual_fp8_kernel() {
  return row_detail::of_sum<T>(rmsnorm_residual_fp8_base<T>());
}
template <class T>
RmsNormResidualFp8Kernel<T> rmsnorm_residual_fp8_blocks_kernel() {
  return row_detail::of_sum<T>(rmsnorm_residual_fp8_blocks_base<T>());
}
template <class T>
QuantizeRowsKernel<T> quantize_rows_kernel() {
  return row_detail::with_scales<T>(quantize_rows_base<T>());
}
template <class T>
QuantizeBlocksKernel<T> quantize_blocks_kernel() {
  return row_detail::with_scales<T>(quantize_blocks_base<T>());
}
template <class T>
QuantizeTensorKernel<T> quantize_tensor_kernel() {
  return row_detail::with_scale<T>(quantize_tensor_base<T>());
}
template <class T>
QuantizeTensorDynamicKernel<T> quantize_tensor_dynamic_kernel() {
  return row_detail::with_scales<T>(quantize_tensor_dynamic_base<T>());
}
template <class T>
QuantizeBlocksMaskedKernel<T> quantize_blocks_masked_kernel() {
  return quantize_blocks_masked_base<T>().template typed<QuantizeBlocksMaskedKernel<T>>(
      [](float8_e4m3*, float*, const T*, const int*, int m, int hidden, int groups) {
        return MaskedRows{m, hidden, groups};
      });
}
template <class T>
QuantizeWeightsKernel<T> quantize_weights_kernel() {
  return quantize_weights_base<T>().template typed<QuantizeWeightsKernel<T>>(
      [](float8_e4m3*, float*, const T*, int n, int k, int groups) {
        return WeightGroups{n, k, groups};
      });
}
template <class T, class Activation>
GatedFp8Kernel<T> gated_fp8_rows_kernel() {
  return row_detail::with_scales<T>(gated_fp8_rows_base<T>(known_activation<Activation>()));
}
template <class T, class Activation>
GatedFp8Kernel<T> gated_fp8_blocks_kernel() {
  return row_detail::with_scales<T>(gated_fp8_blocks_base<T>(known_activation<Activation>()));
}
template <class T, class Activation>
GatedFp8TensorKernel<T> gated_fp8_tensor_kernel() {
  return row_detail::with_scale<T>(gated_fp8_tensor_base<T>(known_activation<Activation>()));
}

}  // namespace kiln::templates
