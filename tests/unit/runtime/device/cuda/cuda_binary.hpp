// A binary as far as a fake driver looks at it.
#pragma once

#include <cstddef>
#include <vector>

#include "codegen/binary.hpp"

inline kiln::codegen::Binary binary() {
  kiln::codegen::Binary b;
  b.target = {kiln::Target::Kind::cuda, "sm_90a"};
  b.symbol = "kernel";
  b.resources.spill_stores = 7;
  b.resources.registers = 1;
  b.code = std::vector<std::byte>(16);
  return b;
}
