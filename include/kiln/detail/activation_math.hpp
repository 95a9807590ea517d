// Functions of an epilogue's activations, for the host compiler and for kernel compilers. On GPUs
// they use the fast instruction for powers, so that activations are right to a few units in the
// last place of x / 2.
#pragma once

#if !defined(KILN_DEVICE_PASS)
#include <cmath>
#endif

namespace kiln::epilogue::detail {

/// 2^x of an x from -126 to 127.
inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}
/// x / (1 + e^y). On GPUs 0 where y is above 88.7.
inline float over_one_plus_exp(float x, float y) {
#if defined(__CUDA_ARCH__)
  return x * __frcp_rn(1 + power_of_two(1.44269504f * y));
#else
  return x / (1 + expf(y));
#endif
}
/// Minus 2 u, where GeluTanh(x) is x / 2 * (1 + tanh(u)).
inline float gelu_tanh_exponent(float x) { return -1.59576912f * (x + 0.044715f * x * x * x); }
/// x * Phi(x), with the normal distribution's Phi.
inline float gelu(float x) {
  // max(x, 0) - |x| * Phi(-|x|), where log2(Phi(-t)) is a polynomial in t, fitted to t <= 6; what
  // is left beyond is less than 6e-9.
  const float t = fminf(fabsf(x), 6.0f);
  float p = 1.51973239e-07f;
  p = p * t - 3.82849294e-06f;
  p = p * t + 3.80044330e-05f;
  p = p * t - 1.59905903e-04f;
  p = p * t - 2.19350710e-04f;
  p = p * t + 7.17775198e-03f;
  p = p * t - 5.25718816e-02f;
  p = p * t - 4.59186375e-01f;
  p = p * t - 1.15110719e+00f;
  p = p * t - 1.0f;
  return (x < 0 ? 0.0f : x) - t * power_of_two(p);
}

}  // namespace kiln::epilogue::detail
