// Epilogues on the host, where they are references of kernels.
#include <cmath>
#include <limits>

#include "kiln/epilogue.hpp"
#include "kiln_test.hpp"

using namespace kiln::epilogue;

namespace {

/// The largest error of an activation in units in the last place of x / 2.
template <class Activation, class Exact>
double worst(const Exact& exact) {
  double most = 0;
  for (double x = -30; x <= 30; x += 1.7e-4)
    for (const float value : {static_cast<float>(x), static_cast<float>(x * 1e-6)}) {
      const float half = std::abs(value) / 2;
      const double unit = double(std::nextafter(half, 1e9f)) - half;
      most = std::max(most, std::abs(Activation{}(value, Place{}) - exact(double(value))) / unit);
    }
  return most;
}

}  // namespace

TEST_CASE("activations are right to a few units in the last place of half their argument",
          "[epilogue]") {
  CHECK(worst<Gelu>([](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }) <= 4);
  CHECK(worst<GeluTanh>([](double x) {
          const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
          return x / 2 * (1 + std::tanh(u));
        }) <= 4);
  CHECK(worst<Silu>([](double x) { return x / (1 + std::exp(-x)); }) <= 4);
}

TEST_CASE("activations of NaN are NaN, and of infinities their limits", "[epilogue]") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  CHECK(std::isnan(Gelu{}(nan, Place{})));
  CHECK(std::isnan(GeluTanh{}(nan, Place{})));
  CHECK(std::isnan(Silu{}(nan, Place{})));
  CHECK(Gelu{}(kInfinity, Place{}) == kInfinity);
  CHECK(std::abs(Gelu{}(-kInfinity, Place{})) < 6e-9f);
  CHECK(GeluTanh{}(kInfinity, Place{}) == kInfinity);
  CHECK(Silu{}(kInfinity, Place{}) == kInfinity);
}

TEST_CASE("an element that has been fetched is not read again", "[epilogue]") {
  const float array[] = {1, 2, 3};
  const Place second{0, 1, 0, 1};
  CHECK(EveryElement<float>(array)[second] == 2);
  CHECK(EveryElement<float>::fetched(7)[second] == 7);
  CHECK(Residual<float>{}(5, second, array) == 7);
}
