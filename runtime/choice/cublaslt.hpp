// cuBLASLt's algorithms as the candidates of an alternative.
#pragma once

#include <memory>

#include "runtime/choice/contender.hpp"

namespace kiln::runtime {

/// Takes no part where the device is no GPU, or libcublasLt cannot be used.
std::unique_ptr<Contender> make_cublaslt(std::shared_ptr<Device> device,
                                         const KernelDefinition& operation,
                                         const detail::AlternativeDescription& what,
                                         Workspaces& workspaces);

}  // namespace kiln::runtime
