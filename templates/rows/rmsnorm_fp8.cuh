// Device half of rmsnorm_fp8.hpp.
#pragma once

#include "fp8_tiles.cuh"
#include "rmsnorm_fp8.hpp"
#include "row_squares.cuh"
#include "row_walk.cuh"

namespace kiln::templates {

struct JoinSumAndLargest {
  __device__ Statistics<2> operator()(const Statistics<2>& a, const Statistics<2>& b) const {
    return {{a.value[0] + b.value[0], fmaxf(a.value[1], b.value[1])}};
  }
};

template <int N, class T>
__device__ float largest_product(const Pack<T, N>& x, const Pack<T, N>& w, float of) {
#pragma unroll
  for (int e = 0; e < N; ++e) of = fmaxf(of, fabsf(to_float(x.value[e]) * to_float(w.value[e])));
  return of;
}

/// Rows of which all threads look at each piece, so that those of 128 elements find their scale
/// together; what is not kept is read again. `blocks`: scales of 128 elements, else of the row;
/// `added`: x is added to residual first.
template <RowConfig c, bool blocks, bool added, class T>
class NormedRow {
  static constexpr int kVector = c.vector;
  using Elements = Pack<T, kVector>;

 public:
  __device__ NormedRow(T* residual, const T* x, const T* w, int hidden, bool whole)
      : residual_(residual),
        x_(x),
        w_(w),
        end_(static_cast<unsigned>(hidden)),
        mine_(thread_of_row<c>() * kVector),
        whole_(whole && hidden % kVector == 0) {}

  __device__ void quantize(__nv_fp8_e4m3* q, float* scales, long long leading, float eps,
                           unsigned& turn) {
    Statistics<2> s{};
    Elements kept[c.kept], others[c.kept];
#pragma unroll
    for (int i = 0; i < c.kept; ++i) {
      kept[i] = load(x_, place(i));
      if constexpr (added) others[i] = load(residual_, place(i));
    }
#pragma unroll
    for (int i = 0; i < c.kept; ++i) {
      if constexpr (added) kept[i] = add(kept[i], others[i], place(i));
      count(kept[i], place(i), s);
    }
    each_other([&](unsigned h) {
      Elements x = load(x_, h);
      if constexpr (added) x = add(x, load(residual_, h), h);
      count(x, h, s);
    });
    s = over_row<c>(s, turn, JoinSumAndLargest{});
    norm_ = rms_scale_of(s.value[0], static_cast<int>(end_), eps);

    Statistics<c.kept> most{};
    // The norm is one factor of all, so the largest product is that of the largest element.
    Fp8Scale scale = fp8_scale_of(s.value[1] * norm_);
    if constexpr (blocks) {
#pragma unroll
      for (int i = 0; i < c.kept; ++i) {
        stay_packed(kept[i]);
        most.value[i] = largest_magnitude(normed(kept[i], place(i)), 0.0f);
      }
      most = over_lanes<kScaleBlock / kVector>(most, LargestOfEach{});
    } else if (thread_of_row<c>() == 0) {
      *scales = scale.scale;
    }
#pragma unroll
    for (int i = 0; i < c.kept; ++i) {
      stay_packed(kept[i]);
      if constexpr (blocks) scale = scale_of_block(most.value[i], scales, leading, place(i));
      store(q, normed(kept[i], place(i)), scale.factor, place(i));
    }
    each_other([&](unsigned h) {
      const Pack<float, kVector> v = normed(load(added ? residual_ : x_, h), h);
      if constexpr (blocks) {
        const Statistics<1> own{{largest_magnitude(v, 0.0f)}};
        scale = scale_of_block(over_lanes<kScaleBlock / kVector>(own, Largest{}).value[0], scales,
                               leading, h);
      }
      store(q, v, scale.factor, h);
    });
  }

 private:
  __device__ unsigned place(int i) const { return mine_ + static_cast<unsigned>(i) * c.step(); }
  __device__ int here(unsigned h) const { return h < end_ ? static_cast<int>(end_ - h) : 0; }
  __device__ Elements load(const T* from, unsigned h) const {
    return load_part<kVector>(from + h, here(h), whole_);
  }
  /// `f(h)` for what is not kept, by all threads of the row alike.
  template <class F>
  __device__ void each_other(F f) const {
#pragma unroll 1
    for (unsigned first = c.kept * c.step(); first < end_; first += c.step()) f(first + mine_);
  }
  __device__ Elements add(const Elements& x, const Elements& to, unsigned h) const {
    Elements sum;
#pragma unroll
    for (int e = 0; e < kVector; ++e)
      sum.value[e] = from_float<T>(to_float(to.value[e]) + to_float(x.value[e]));
    if (whole_) {
      if (h < end_) store_pack(residual_ + h, sum);
    } else {
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        if (e < here(h)) residual_[h + e] = sum.value[e];
    }
    return sum;
  }
  __device__ void count(const Elements& x, unsigned h, Statistics<2>& s) const {
    s.value[0] += sum_of_squares(x);
    if constexpr (!blocks) s.value[1] = largest_product(x, load(w_, h), s.value[1]);
  }
  __device__ Pack<float, kVector> normed(const Elements& x, unsigned h) const {
    return rms_normalized(x, norm_, load(w_, h));
  }
  __device__ Fp8Scale scale_of_block(float most, float* scales, long long leading,
                                     unsigned h) const {
    const Fp8Scale scale = fp8_scale_of(most);
    if (h % kScaleBlock == 0 && h < end_) scales[h / kScaleBlock * leading] = scale.scale;
    return scale;
  }
  __device__ void store(__nv_fp8_e4m3* q, const Pack<float, kVector>& v, float factor,
                        unsigned h) const {
    store_part(q + h, v, factor, here(h), whole_);
  }

  T* residual_;
  const T *x_, *w_;
  unsigned end_, mine_;
  bool whole_;
  float norm_ = 0.0f;
};

template <RowConfig c, bool blocks, bool added, class T>
__device__ void normed_rows_to_fp8(__nv_fp8_e4m3* q, float* scales, T* residual, const T* x,
                                   const T* w, int rows, int hidden, float eps) {
  check_row_config<c, T>();
  static_assert(c.vector >= 4 || !blocks, "vector: 128 elements are those of one warp at most");
  static_assert(!c.persistent && c.cluster == 1, "a row is one block's or warp's");
  unsigned turn = 0;
  const bool whole = aligned_to_accesses<c>(x, q) && misalignment<c.vector>(w) == 0 &&
                     (!added || misalignment<c.vector>(residual) == 0);
  each_row<c>(rows, [&](long long r) {
    NormedRow<c, blocks, added, T>(added ? residual + r * hidden : nullptr, x + r * hidden, w,
                                   hidden, whole)
        .quantize(q + r * hidden, scales + r, scale_leading(rows), eps, turn);
  });
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm_fp8_blocks(__nv_fp8_e4m3* q, float* scales, const T* x, const T* w, int rows,
                       int hidden, float eps) {
  normed_rows_to_fp8<c, true, false>(q, scales, static_cast<T*>(nullptr), x, w, rows, hidden, eps);
}
template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm_residual_fp8(__nv_fp8_e4m3* q, float* scales, T* residual, const T* x, const T* w,
                         int rows, int hidden, float eps) {
  normed_rows_to_fp8<c, false, true>(q, scales, residual, x, w, rows, hidden, eps);
}
template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm_residual_fp8_blocks(__nv_fp8_e4m3* q, float* scales, T* residual, const T* x,
                                const T* w, int rows, int hidden, float eps) {
  normed_rows_to_fp8<c, true, true>(q, scales, residual, x, w, rows, hidden, eps);
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm_fp8(__nv_fp8_e4m3* q, float* scales, const T* x, const T* w, int rows, int hidden,
                float eps) {
  check_row_config<c, T>();
  unsigned turn = 0;
  with_rows<c>(
      x, q, rows, hidden,
      [&](auto& row, long long r, auto& weights) {
        __nv_fp8_e4m3* const to = q + r * hidden;
        Statistics<2> s{};
        row.each(
            [&](const auto& pack, unsigned, const auto& weight) {
              s.value[0] += sum_of_squares(pack);
              s.value[1] = largest_product(pack, weight, s.value[1]);
            },
            weights);
        s = over_row<c>(s, turn, JoinSumAndLargest{});
        // The norm is one factor of all, so the largest product is that of the largest element.
        const float norm = rms_scale_of(s.value[0], hidden, eps);
        const Fp8Scale scale = fp8_scale_of(s.value[1] * norm);
        if (thread_of_row<c>() == 0) scales[r] = scale.scale;
        row.each(
            [&](const auto& pack, unsigned h, const auto& weight) {
              store_scaled(to + h, rms_normalized(pack, norm, weight), scale.factor);
            },
            weights);
      },
      w);
}

}  // namespace kiln::templates
