// The roofline's kernels on the host target: right, also where tiles are cut off, and fast for the
// reason they are meant to be.
#include <cmath>

#include "template_test.hpp"
#include "templates/roofline/roofline_kernels.hpp"

using namespace kiln;
using namespace kiln::templates;
using template_test::HostInstance;

TEST_CASE("copy copies all of it and no more", "[templates][roofline]") {
  for (const RooflineCopy& c :
       {RooflineCopy{.block = 128, .items = 1, .vector = 16, .streaming = false},
        RooflineCopy{.block = 128, .items = 4, .vector = 16, .streaming = true},
        RooflineCopy{.block = 64, .items = 16, .vector = 4, .streaming = false}}) {
    const HostInstance<CopyKernel> copy(copy_kernel(), c);
    for (const int n : {1, 15, c.tile() - 1, c.tile(), c.tile() + 1, 5 * c.tile() + 17}) {
      const auto count = static_cast<std::size_t>(n);
      template_test::Array<float> out(count), in(count);
      in.reals(1);
      copy(CopyProblem{n}, out.data(), static_cast<const float*>(in.data()),
           static_cast<long long>(n));
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < count; ++i) wrong += out[i] != in[i];
      CAPTURE(n, c.streaming);
      CHECK(wrong == 0);
      CHECK(out.margins_intact());
    }
  }
}

TEST_CASE("fma takes every step of every chain", "[templates][roofline]") {
  const FmaKernel kernel = fma_kernel();
  for (const RooflineFma& c : {RooflineFma{.block = 64, .chains = 8, .vector = 16},
                               RooflineFma{.block = 128, .chains = 16, .vector = 8}}) {
    const HostInstance<FmaKernel> fma(kernel, c);
    for (const int n : {1, c.tile() - 3, c.tile(), 2 * c.tile() + 9})
      for (const int steps : {0, 1, 2, 777}) {
        const auto count = static_cast<std::size_t>(n);
        template_test::Array<float> out(count), in(count), want(count);
        in.reals(2);
        fma(FmaProblem{n, steps}, out.data(), static_cast<const float*>(in.data()),
            static_cast<long long>(n), steps);
        for (std::size_t i = 0; i < count; ++i) {
          float x = in[i];
          for (int s = 0; s < steps; ++s) x = std::fma(x, kFmaFactor, kFmaSummand);
          want[i] = x;
        }
        double worst = 0;
        for (std::size_t i = 0; i < count; ++i)
          worst = std::max(worst, std::abs(static_cast<double>(out[i]) - want[i]));
        CAPTURE(n, steps, worst);
        CHECK(worst < 1e-4);
        CHECK(out.margins_intact());
        // The closed form that candidates are held against agrees, and tells a step from none.
        template_test::Array<float> reference(count);
        kernel.reference(reference.data(), in.data(), n, steps);
        double closed = 0;
        for (std::size_t i = 0; i < count; ++i)
          closed = std::max(closed, std::abs(static_cast<double>(reference[i]) - want[i]));
        CHECK(closed < 1e-4);
        if (steps == 777) {
          kernel.reference(reference.data(), in.data(), n, steps - 1);
          double other = 0;
          for (std::size_t i = 0; i < count; ++i)
            other = std::max(other, std::abs(static_cast<double>(reference[i]) - want[i]));
          if (n > 100) CHECK(other > 5e-4);  // a missing step is more than the tolerance
        }
      }
  }
}

TEST_CASE("mma adds up products in the accumulators' layout", "[templates][roofline]") {
  const MmaKernel kernel = mma_kernel();
  const RooflineMma c{.block = 128, .tiles = 4};
  const HostInstance<MmaKernel> mma(kernel, c);
  for (const int tiles : {1, 16, 19}) {
    const auto count = static_cast<std::size_t>(tiles) * 128;
    template_test::Array<float> out(count), want(count);
    template_test::Array<bfloat16> a(256), b(128);
    a.integers(4, 3);
    b.integers(4, 4);
    const int steps = 3;
    mma(MmaProblem{tiles, steps}, out.data(), static_cast<const bfloat16*>(a.data()),
        static_cast<const bfloat16*>(b.data()), static_cast<long long>(tiles), steps);
    kernel.reference(want.data(), a.data(), b.data(), tiles, steps);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += out[i] != want[i];
    CAPTURE(tiles);
    CHECK(wrong == 0);
    CHECK(out.margins_intact());
  }
}
