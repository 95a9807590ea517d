#include "runtime/together/measuring_together.hpp"

namespace kiln::runtime {

int& MeasuringTogether::depth() noexcept {
  static thread_local int depth = 0;
  return depth;
}

}  // namespace kiln::runtime
