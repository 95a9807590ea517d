// What a runtime tells of calls that take longer than a candidate may.
#pragma once

#include <functional>
#include <string>

#include "runtime/measure/watched_bench.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

/// For a WatchedBench: into the log and the metrics. `subject` is called, for messages: `sum n=5`.
/// `also` gets the text as well; it may be empty. Both must outlive what is returned.
WatchedBench::Tell tell_of_calls(detail::Engine& engine, std::string subject,
                                 std::function<void(const std::string&)> also = {});

}  // namespace kiln::runtime
