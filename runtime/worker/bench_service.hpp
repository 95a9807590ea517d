// The worker's side: a bench in this process that answers requests.
#pragma once

#include "runtime/processes/serve.hpp"

namespace kiln::runtime {

/// The service of a process that runs trials: one problem's, on one device. Its descriptor 3 is the
/// memory file with the data. To be served by one thread.
Service bench_service();

}  // namespace kiln::runtime
