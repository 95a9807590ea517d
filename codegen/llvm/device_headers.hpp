// The device headers, embedded at build time; see device_headers/ for their text.
#pragma once

#include <span>
#include <string_view>

namespace kiln::codegen::llvm_host {

struct DeviceHeader {
  const char* name;
  std::string_view text;  ///< followed by a zero byte
};

std::span<const DeviceHeader> device_headers();

}  // namespace kiln::codegen::llvm_host
