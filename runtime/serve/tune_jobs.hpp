// Which bucket of a given problem is tuned.
#pragma once

#include "kiln/detail/handle_core.hpp"

namespace kiln::runtime {

/// The bucket that a problem is tuned as. @throws UserError when the default config of the handle's
/// device has nothing to do for it
Values bucket_to_tune(const detail::HandleCore& handle, const Values& problem);

}  // namespace kiln::runtime
