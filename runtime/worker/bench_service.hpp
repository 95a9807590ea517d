// The worker's side: a bench in this process that answers requests.
#pragma once

#include <functional>
#include <memory>

#include "runtime/device/device.hpp"
#include "runtime/processes/serve.hpp"
#include "runtime/worker/messages.hpp"

namespace kiln::runtime {

/// The device that a program uses, opened anew. @throws EnvironmentError when that cannot be done
std::shared_ptr<Device> open_for_trials(const WorkerDevice& wanted);

using OpenDevice = std::function<std::shared_ptr<Device>(const WorkerDevice& wanted)>;

/// The service of a process that runs trials: one problem's, on one device. Its descriptor 3 is the
/// memory file with the data. To be served by one thread.
Service bench_service(OpenDevice open = open_for_trials);

}  // namespace kiln::runtime
