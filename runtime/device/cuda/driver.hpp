// Internal: the CUDA driver's functions, found at run time. Includes cuda.h; nothing of it is
// linked.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <cuda.h>

namespace kiln::runtime {

/// The functions used, under their names without `cu`. Filled by `open_driver`, or by a test.
/// Immutable once shared; safe to use from several threads.
struct DriverTable {
  decltype(&::cuGetErrorName) GetErrorName = nullptr;
  decltype(&::cuGetErrorString) GetErrorString = nullptr;
  decltype(&::cuInit) Init = nullptr;
  decltype(&::cuDriverGetVersion) DriverGetVersion = nullptr;
  decltype(&::cuDeviceGetCount) DeviceGetCount = nullptr;
  decltype(&::cuDeviceGet) DeviceGet = nullptr;
  decltype(&::cuDeviceGetName) DeviceGetName = nullptr;
  decltype(&::cuDeviceGetAttribute) DeviceGetAttribute = nullptr;
  decltype(&::cuDeviceTotalMem) DeviceTotalMem = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) DevicePrimaryCtxRetain = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) DevicePrimaryCtxRelease = nullptr;
  decltype(&::cuCtxGetCurrent) CtxGetCurrent = nullptr;
  decltype(&::cuCtxGetDevice) CtxGetDevice = nullptr;
  decltype(&::cuCtxPushCurrent) CtxPushCurrent = nullptr;
  decltype(&::cuCtxPopCurrent) CtxPopCurrent = nullptr;
  decltype(&::cuThreadExchangeStreamCaptureMode) ThreadExchangeStreamCaptureMode = nullptr;
  decltype(&::cuStreamCreate) StreamCreate = nullptr;
  decltype(&::cuStreamDestroy) StreamDestroy = nullptr;
  decltype(&::cuStreamSynchronize) StreamSynchronize = nullptr;
  decltype(&::cuStreamQuery) StreamQuery = nullptr;
  decltype(&::cuEventCreate) EventCreate = nullptr;
  decltype(&::cuEventDestroy) EventDestroy = nullptr;
  decltype(&::cuEventRecord) EventRecord = nullptr;
  decltype(&::cuEventSynchronize) EventSynchronize = nullptr;
  decltype(&::cuEventElapsedTime) EventElapsedTime = nullptr;
  decltype(&::cuModuleLoadData) ModuleLoadData = nullptr;
  decltype(&::cuModuleUnload) ModuleUnload = nullptr;
  decltype(&::cuModuleGetFunction) ModuleGetFunction = nullptr;
  decltype(&::cuModuleGetGlobal) ModuleGetGlobal = nullptr;
  decltype(&::cuFuncGetAttribute) FuncGetAttribute = nullptr;
  decltype(&::cuFuncSetAttribute) FuncSetAttribute = nullptr;
  decltype(&::cuLaunchKernelEx) LaunchKernelEx = nullptr;                          ///< may be null
  decltype(&::cuTensorMapEncodeTiled) TensorMapEncodeTiled = nullptr;              ///< may be null
  decltype(&::cuTensorMapReplaceAddress) TensorMapReplaceAddress = nullptr;        ///< may be null
  decltype(&::cuOccupancyMaxActiveClusters) OccupancyMaxActiveClusters = nullptr;  ///< may be null
  decltype(&::cuOccupancyMaxActiveBlocksPerMultiprocessor)
      OccupancyMaxActiveBlocksPerMultiprocessor = nullptr;
  decltype(&::cuMemAlloc) MemAlloc = nullptr;
  decltype(&::cuMemFree) MemFree = nullptr;
  decltype(&::cuMemcpyHtoDAsync) MemcpyHtoDAsync = nullptr;
  decltype(&::cuMemcpyDtoHAsync) MemcpyDtoHAsync = nullptr;
  decltype(&::cuMemcpyDtoDAsync) MemcpyDtoDAsync = nullptr;
  decltype(&::cuMemsetD8Async) MemsetD8Async = nullptr;
  decltype(&::cuLaunchKernel) LaunchKernel = nullptr;
  /// Without it, how much memory is free is not known.
  decltype(&::cuMemGetInfo) MemGetInfo = nullptr;
  /// Loads a function ahead of its first launch; null before CUDA 12.4.
  decltype(&::cuFuncLoad) FuncLoad = nullptr;
  decltype(&::cuStreamIsCapturing) StreamIsCapturing = nullptr;  ///< may be null
  // Graphs; without all of them launches are not replayed.
  decltype(&::cuStreamBeginCapture) StreamBeginCapture = nullptr;
  decltype(&::cuStreamEndCapture) StreamEndCapture = nullptr;
  decltype(&::cuGraphGetNodes) GraphGetNodes = nullptr;
  decltype(&::cuGraphInstantiateWithFlags) GraphInstantiateWithFlags = nullptr;
  decltype(&::cuGraphLaunch) GraphLaunch = nullptr;
  decltype(&::cuGraphExecDestroy) GraphExecDestroy = nullptr;
  decltype(&::cuGraphDestroy) GraphDestroy = nullptr;
  // Graphs of the program's; any may be null.
  /// In the form of CUDA 11.3, which later drivers have as well; today's header declares another.
  CUresult (*StreamGetCaptureInfo)(CUstream, CUstreamCaptureStatus*, cuuint64_t* id, CUgraph*,
                                   const CUgraphNode** dependencies, std::size_t* count) = nullptr;
  decltype(&::cuUserObjectCreate) UserObjectCreate = nullptr;
  decltype(&::cuUserObjectRelease) UserObjectRelease = nullptr;
  decltype(&::cuGraphRetainUserObject) GraphRetainUserObject = nullptr;
  decltype(&::cuGraphKernelNodeGetParams) GraphKernelNodeGetParams = nullptr;
  decltype(&::cuGraphExecKernelNodeSetParams) GraphExecKernelNodeSetParams = nullptr;

  // Memory that kernels of other devices and processes reach; any may be null.
  decltype(&::cuDeviceCanAccessPeer) DeviceCanAccessPeer = nullptr;
  decltype(&::cuCtxEnablePeerAccess) CtxEnablePeerAccess = nullptr;
  decltype(&::cuIpcGetMemHandle) IpcGetMemHandle = nullptr;
  decltype(&::cuIpcOpenMemHandle) IpcOpenMemHandle = nullptr;
  decltype(&::cuIpcCloseMemHandle) IpcCloseMemHandle = nullptr;
  decltype(&::cuMemHostRegister) MemHostRegister = nullptr;
  decltype(&::cuMemHostGetDevicePointer) MemHostGetDevicePointer = nullptr;
  decltype(&::cuMemHostUnregister) MemHostUnregister = nullptr;

  bool can_share() const noexcept {
    return DeviceCanAccessPeer && CtxEnablePeerAccess && IpcGetMemHandle && IpcOpenMemHandle &&
           IpcCloseMemHandle && MemHostRegister && MemHostGetDevicePointer && MemHostUnregister;
  }
  bool can_retain() const noexcept {
    return UserObjectCreate && UserObjectRelease && GraphRetainUserObject;
  }
  bool can_change_nodes() const noexcept {
    return GraphGetNodes && GraphKernelNodeGetParams && GraphExecKernelNodeSetParams;
  }
  bool has_graphs() const noexcept {
    return StreamBeginCapture && StreamEndCapture && GraphGetNodes && GraphInstantiateWithFlags &&
           GraphLaunch && GraphExecDestroy && GraphDestroy;
  }

  /// @throws EnvironmentError naming `call`, the code, the driver's description and what to do,
  /// unless `result` is success.
  void check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) fail(result, call);
  }
  /// The message of such an error.
  std::string describe(CUresult result, const char* call) const;

 private:
  [[noreturn]] void fail(CUresult result, const char* call) const;
};

struct DriverProbe {
  std::shared_ptr<const DriverTable> driver;  ///< initialised; null when there is none
  std::string reason;                         ///< why there is none, and what to do
};

/// Opens the driver's library and initialises it. Its absence is an ordinary outcome.
DriverProbe open_driver(const std::string& library = "libcuda.so.1");

}  // namespace kiln::runtime
