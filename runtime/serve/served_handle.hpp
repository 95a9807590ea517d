// A handle as prepare and seal see it.
#pragma once

#include "kiln/detail/handle_core.hpp"

namespace kiln::runtime {

class Provisions;

class ServedHandle : public detail::HandleCore {
 public:
  virtual Provisions& provisions() noexcept = 0;
};

}  // namespace kiln::runtime
