// Internal: libnvrtc, opened at run time: its functions, version and headers. Includes nvrtc.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nvrtc.h>

#include "codegen/dynamic_library.hpp"
#include "codegen/nvrtc.hpp"

namespace kiln::codegen {

/// The functions used, under their names without `nvrtc`.
struct NvrtcTable {
  decltype(&::nvrtcVersion) Version = nullptr;
  decltype(&::nvrtcGetErrorString) GetErrorString = nullptr;
  decltype(&::nvrtcGetNumSupportedArchs) GetNumSupportedArchs = nullptr;
  decltype(&::nvrtcGetSupportedArchs) GetSupportedArchs = nullptr;
  decltype(&::nvrtcCreateProgram) CreateProgram = nullptr;
  decltype(&::nvrtcDestroyProgram) DestroyProgram = nullptr;
  decltype(&::nvrtcCompileProgram) CompileProgram = nullptr;
  decltype(&::nvrtcGetCUBINSize) GetCUBINSize = nullptr;
  decltype(&::nvrtcGetCUBIN) GetCUBIN = nullptr;
  decltype(&::nvrtcGetProgramLogSize) GetProgramLogSize = nullptr;
  decltype(&::nvrtcGetProgramLog) GetProgramLog = nullptr;
  decltype(&::nvrtcAddNameExpression) AddNameExpression = nullptr;
  decltype(&::nvrtcGetLoweredName) GetLoweredName = nullptr;

  /// @throws EnvironmentError naming `call`, unless `result` is success.
  void check(nvrtcResult result, const char* call) const;
};

struct NvrtcLibrary {
  DynamicLibrary library;
  NvrtcTable table;
  int major = 0;
  int minor = 0;
  std::string path;
  std::string build;
  std::vector<int> archs;
  std::vector<std::string> include_dirs;
};

/// Opened once per process for the same options, and not closed again. Null, with the reason, when
/// there is no usable NVRTC.
std::shared_ptr<const NvrtcLibrary> opened_nvrtc(const NvrtcOptions& options, std::string& reason);

}  // namespace kiln::codegen
