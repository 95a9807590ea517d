// Limits of devices for which spaces are planned.
#pragma once

#include "kiln/device.hpp"

namespace kiln::test {

inline DeviceLimits gpu(int compute_capability, int shared_kib) {
  DeviceLimits d;
  d.compute_capability = compute_capability;
  d.shared_per_block_optin = shared_kib * 1024 - 1024;
  d.multiprocessors = 108;
  return d;
}

inline DeviceLimits host() {
  DeviceLimits d;
  d.shared_per_block_optin = 227 * 1024;
  d.multiprocessors = 2;
  return d;
}

}  // namespace kiln::test
