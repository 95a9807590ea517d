// What a runtime tells of trials that take longer than a candidate may, and that nothing can end.
#pragma once

#include <functional>
#include <string>

#include "runtime/measure/watched_bench.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

/// For a WatchedBench: into the log and the metrics. `subject` is tried, for messages: `sum n=5`.
/// `also` gets the text as well; it may be empty. Both must outlive what is returned.
WatchedBench::Tell tell_of_overdue(detail::Engine& engine, std::string subject,
                                   std::function<void(const std::string&)> also = {});

}  // namespace kiln::runtime
