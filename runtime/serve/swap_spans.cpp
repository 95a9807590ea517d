#include "runtime/serve/swap_spans.hpp"

namespace kiln::runtime {

std::function<void(const Values& problem, const Values& config, const Values* before)> swap_spans(
    Spans& spans, const KernelDefinition& kernel) {
  return [&spans, &kernel](const Values& problem, const Values& config, const Values* before) {
    if (!spans.listened()) return;
    SpanScope span(&spans, "kiln.swap",
                   {{"kernel", kernel.name},
                    {"problem", kernel.describe_problem(problem)},
                    {"config", kernel.space.describe(config)}});
    if (before) span.set("before", kernel.space.describe(*before));
    span.end();
  };
}

}  // namespace kiln::runtime
