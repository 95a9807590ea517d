// Arrays of more than 2^31 elements, and arrays without any, on the host target.
#include <algorithm>
#include <stdexcept>

#include <sys/mman.h>
#include <unistd.h>

#include "kiln/runtime.hpp"
#include "template_test.hpp"

using namespace kiln::templates;
using template_test::HostInstance;

namespace {

/// Addresses for more elements than there is memory for: the same piece of memory again and again,
/// and behind it a last piece of its own, where it shows whether a kernel has come to the end.
template <class T>
class Repeated {
 public:
  static constexpr std::size_t kPiece = (std::size_t{64} << 20) / sizeof(T);  // elements

  explicit Repeated(std::size_t count) : pieces_(count / kPiece + 1) {
    const std::size_t piece = kPiece * sizeof(T);
    const int file = memfd_create("repeated", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(2 * piece)) != 0)
      throw std::runtime_error("no memory file");
    void* const place = mmap(nullptr, pieces_ * piece, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) throw std::runtime_error("no addresses");
    data_ = static_cast<T*>(place);
    for (std::size_t i = 0; i < pieces_; ++i)
      if (mmap(data_ + i * kPiece, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
               i + 1 == pieces_ ? static_cast<off_t>(piece) : 0) == MAP_FAILED)
        throw std::runtime_error("no mapping");
    close(file);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  ~Repeated() { munmap(data_, pieces_ * kPiece * sizeof(T)); }

  T* data() { return data_; }
  T* last_piece() { return data_ + (pieces_ - 1) * kPiece; }
  /// Small integers, the same in both pieces.
  Repeated& integers(int step) {
    for (std::size_t i = 0; i < kPiece; ++i)
      data_[i] = last_piece()[i] = T(static_cast<float>(static_cast<int>(i * step % 7) - 3));
    return *this;
  }

 private:
  std::size_t pieces_;
  T* data_ = nullptr;
};

bool no_compiler() { return !kiln::codegen::has_llvm(); }

}  // namespace

TEST_CASE("residual_add: more than 2^31 elements", "[templates][host][slow]") {
  if (no_compiler()) KILN_SKIP("built without LLVM");
  using T = kiln::bfloat16;
  constexpr int kRows = 32769, kHidden = 65536;
  constexpr std::size_t kCount = std::size_t{kRows} * kHidden;
  const HostInstance<ResidualAddKernel<T>> add(residual_add_kernel<T>(), {256, 8});
  Repeated<T> out(kCount), x(kCount), residual(kCount);
  x.integers(3);
  residual.integers(5);
  add({kRows, kHidden}, out.data(), static_cast<const T*>(x.data()),
      static_cast<const T*>(residual.data()), kRows, kHidden);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < out.kPiece; ++i) {
    const float sum = static_cast<float>(x.data()[i]) + static_cast<float>(residual.data()[i]);
    wrong += static_cast<float>(out.data()[i]) != sum;
    const float last = i < kCount % out.kPiece ? sum : 0;  // nothing is written behind the end
    wrong += static_cast<float>(out.last_piece()[i]) != last;
  }
  CHECK(wrong == 0);
}

TEST_CASE("rmsnorm: more than 2^31 elements", "[templates][host][slow]") {
  if (no_compiler()) KILN_SKIP("built without LLVM");
  using T = kiln::bfloat16;
  constexpr int kRows = 32769, kHidden = 65536;
  constexpr std::size_t kCount = std::size_t{kRows} * kHidden;
  const HostInstance<RmsNormKernel<T>> norm(rmsnorm_kernel<T>(), {.block = 512,
                                                                  .rows_per_block = 1,
                                                                  .vector = 8,
                                                                  .kept = 1,
                                                                  .online = false,
                                                                  .persistent = false});
  Repeated<T> y(kCount), x(kCount);
  x.integers(3);
  const std::vector<T> weight(kHidden, T(1.5f));
  const auto run = [&](T* out, const T* in, int rows) {
    norm({rows, kHidden}, out, in, weight.data(), rows, kHidden, 1e-5f);
  };
  run(y.data(), x.data(), kRows);
  std::vector<T> row(kHidden);
  for (const std::size_t r : {std::size_t{0}, std::size_t{kRows} / 2, std::size_t{kRows} - 1}) {
    run(row.data(), x.data() + r * kHidden, 1);
    CHECK(std::memcmp(y.data() + r * kHidden, row.data(), kHidden * sizeof(T)) == 0);
  }
  CHECK(static_cast<float>(y.data()[kCount]) == 0);
}

TEST_CASE("gemm: an operand of more than 2^31 elements", "[templates][host][slow]") {
  if (no_compiler()) KILN_SKIP("built without LLVM");
  constexpr int kM = 65538, kK = 32768;
  const HostInstance<GemmKernel<float>> gemm(gemm_kernel<float>(),
                                             {GemmBody::simt, 64, 4, 512, 1, 4, 4, 16, 8});
  Repeated<float> a(std::size_t{kM} * kK);
  a.integers(3);
  std::vector<float> c(kM, -1), b(kK);
  for (int l = 0; l < kK; ++l) b[static_cast<std::size_t>(l)] = static_cast<float>(l % 5 - 2);
  gemm({kM, 1, kK}, c.data(), static_cast<const float*>(a.data()),
       static_cast<const float*>(b.data()), kM, 1, kK);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < c.size(); i = i < 8 || i + 8 > c.size() ? i + 1 : i + 997) {
    float sum = 0;  // of integers: exact
    for (std::size_t l = 0; l < b.size(); ++l) sum += a.data()[i * b.size() + l] * b[l];
    wrong += c[i] != sum;
  }
  CHECK(wrong == 0);
}

TEST_CASE("shipped kernels: nothing is touched where there are no elements", "[templates][host]") {
  if (no_compiler()) KILN_SKIP("built without LLVM");
  kiln::RuntimeOptions options;
  options.device = "host";
  options.mode = kiln::Mode::untuned;
  options.store.disk = false;
  const kiln::Runtime runtime(options);
  float* const none = nullptr;
  const float* const in = nullptr;
  const auto gemm = runtime.tuned(gemm_kernel<float>());
  CHECK_NOTHROW(gemm({}, none, in, in, 0, 4, 8));
  CHECK_NOTHROW(gemm({}, none, in, in, 3, 0, 8));
  CHECK_NOTHROW(gemm({}, none, in, in, 0, 0, 0));
  CHECK_NOTHROW(gemm.at({0, 4, 8})({}, none, in, in, 0, 4, 8));
  CHECK_NOTHROW(runtime.tuned(vector_add_kernel<float>())({}, none, in, in, 0));
  const auto add = runtime.tuned(residual_add_kernel<float>());
  CHECK_NOTHROW(add({}, none, in, in, 0, 5));
  CHECK_NOTHROW(add({}, none, in, in, 5, 0));
  const auto norm = runtime.tuned(rmsnorm_kernel<float>());
  CHECK_NOTHROW(norm({}, none, in, in, 0, 64, 1e-5f));
  CHECK_NOTHROW(norm({}, none, in, in, 5, 0, 1e-5f));
  // Without k, C is zero.
  std::vector<float> c(12, -1);
  gemm({}, c.data(), in, in, 3, 4, 0);
  CHECK(c == std::vector<float>(12, 0));
}
