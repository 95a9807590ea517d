// Kiln's GEMM with epilogues for scripts/gemm_against.py; see gemm_rows.cpp.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "for_python.hpp"
#include "kiln/epilogue.hpp"
#include "kiln/kernels/gemm.hpp"
#include "kiln/kiln.hpp"

namespace {

using kiln::bfloat16;
using kiln::templates::GemmProblem;
using BiasGelu = kiln::epilogue::Chain<kiln::epilogue::Bias<bfloat16>, kiln::epilogue::Gelu>;
using Residual = kiln::epilogue::Residual<bfloat16>;

/// A GEMM whose epilogue takes one array.
class Fused {
 public:
  virtual ~Fused() = default;
  virtual kiln::TuneResult tune(const GemmProblem& problem, const kiln::TuneOptions& options) = 0;
  virtual std::string describe(const kiln::Values& config) const = 0;
  virtual void launch(kiln::Stream stream, bfloat16* c, const bfloat16* a, const bfloat16* b,
                      const bfloat16* more) const = 0;
};

template <class Epilogue>
class FusedWith final : public Fused {
 public:
  kiln::TuneResult tune(const GemmProblem& problem, const kiln::TuneOptions& options) override {
    problem_ = problem;
    kiln::TuneResult result = tuned_.tune(problem, options);
    bound_.emplace(tuned_.at(problem));
    return result;
  }
  std::string describe(const kiln::Values& config) const override {
    return kernel().definition().space.describe(config);
  }
  void launch(kiln::Stream stream, bfloat16* c, const bfloat16* a, const bfloat16* b,
              const bfloat16* more) const override {
    (*bound_)(stream, c, a, b, problem_.m, problem_.n, problem_.k, more);
  }

 private:
  static auto kernel() {
    return kiln::templates::gemm_kernel<bfloat16, kiln::templates::GemmTranspose::nt, Epilogue>();
  }

  kiln::Runtime runtime_{for_python::options_of(kiln::Mode::tune_now)};
  decltype(runtime_.tuned(kernel())) tuned_ = runtime_.tuned(kernel());
  std::optional<decltype(tuned_.at(GemmProblem{}))> bound_;
  GemmProblem problem_{};
};

std::string fused_failure;

}  // namespace

extern "C" {

const char* gemm_fused_failure() { return fused_failure.c_str(); }

/// `residual`: adds an array like C; else a bias per column comes first, and GELU behind it.
void* gemm_fused_open(int residual) {
  Fused* fused = nullptr;
  for_python::attempt(fused_failure, [&] {
    if (residual)
      fused = new FusedWith<Residual>;
    else
      fused = new FusedWith<BiasGelu>;
  });
  return fused;
}

void gemm_fused_close(void* handle) { delete static_cast<Fused*>(handle); }

/// `text` receives the winner.
int gemm_fused_tune(void* handle, int m, int n, int k, double max_seconds, char* text,
                    std::size_t size) {
  return for_python::attempt(fused_failure, [&] {
    Fused& fused = *static_cast<Fused*>(handle);
    kiln::TuneOptions options;
    options.max_seconds = max_seconds;
    const kiln::TuneResult result = fused.tune({m, n, k}, options);
    std::snprintf(text, size, "%s", fused.describe(result.winner().config).c_str());
  });
}

/// Asynchronous on `stream`. `more`: the bias, or the array that is added.
int gemm_fused_launch(void* handle, void* stream, void* c, const void* a, const void* b,
                      const void* more) {
  return for_python::attempt(fused_failure, [&] {
    static_cast<const Fused*>(handle)->launch(
        kiln::Stream{stream}, static_cast<bfloat16*>(c), static_cast<const bfloat16*>(a),
        static_cast<const bfloat16*>(b), static_cast<const bfloat16*>(more));
  });
}
}
