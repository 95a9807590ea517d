// Kiln's own communicators. None needs more than its name says; what is missing is said when asked.
#pragma once

#include <memory>
#include <vector>

#include "kiln/communicator.hpp"

namespace kiln {

/// One end per thread of this process (one per device, say); end r is rank r. They settle, and name
/// who is late. An end that is destroyed is gone for the others at once.
/// @throws UserError when size < 1
std::vector<std::unique_ptr<Communicator>> thread_communicators(int size);

}  // namespace kiln
