#include "runtime/prepare/before_agreement.hpp"

#include <exception>
#include <vector>

#include "runtime/prepare/prepare_items.hpp"
#include "runtime/serve/tune_one.hpp"

namespace kiln::runtime {

void remember_absence(const detail::Engine& engine, const Manifest& manifest,
                      const TuneOptions& options, const std::exception_ptr& why) noexcept {
  try {
    std::vector<PreparedProblem> report;
    for (const PrepareItem& item : prepare_items(engine, manifest, false, report).kernels)
      remember_absence(engine, item.handle->problems(), item.problem, options, why);
  } catch (...) {  // no memory: the program has the first exception
  }
}

}  // namespace kiln::runtime
