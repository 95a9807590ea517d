// Problems as they are given, and what of them is tuned.
#pragma once

#include "kiln/detail/handle_core.hpp"

namespace kiln::runtime {

/// The bucket of a problem that the default config of the handle's device has something to do for.
/// @throws UserError when it has not.
Values bucket_to_tune(const detail::HandleCore& handle, const Values& problem);

}  // namespace kiln::runtime
