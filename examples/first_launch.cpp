// A first launch: the kernel is tuned for this problem, then runs; later launches only look it up.
#include <cstdio>
#include <vector>

#include "saxpy_kernel.hpp"

int main() {
  kiln::Runtime runtime;  // the CUDA device if there is one, else the host
  auto saxpy = runtime.tuned(saxpy_kernel());

  const int n = 1 << 20;
  auto x = runtime.array(std::vector<float>(n, 1.0f));
  auto y = runtime.array(std::vector<float>(n, 2.0f));
  saxpy(kiln::Stream{}, y.data(), x.data(), 3.0f, n);  // typed: a wrong argument does not compile
  runtime.synchronize();

  const float got = y.download()[n - 1];
  std::printf("y = %g on %s with block=%d\n", got, runtime.device().name.c_str(),
              saxpy.config({n}).block);
  return got == 5.0f ? 0 : 1;
}
