#include "runtime/device/cuda/driver.hpp"

#include "codegen/dynamic_library.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/spare_memory.hpp"

namespace kiln::runtime {
namespace {

// The driver's interface as of CUDA 12.0: the oldest whose functions have the signatures used here.
constexpr int kInterface = 12000;
constexpr int kFuncLoadInterface = 12040;

class Loader {
 public:
  explicit Loader(const codegen::DynamicLibrary& library) : library_(library) {
    get_proc_address_ =
        reinterpret_cast<decltype(&::cuGetProcAddress)>(library.symbol("cuGetProcAddress_v2"));
  }

  bool usable() const { return get_proc_address_ != nullptr; }

  template <class F>
  void required(const char* name, F& function) {
    optional(name, kInterface, function);
    if (!function) missing_ += std::string(missing_.empty() ? "" : ", ") + name;
  }
  template <class F>
  void optional(const char* name, int version, F& function) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult found;
    if (get_proc_address_(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) ==
        CUDA_SUCCESS) {
      function = reinterpret_cast<F>(address);
    }
  }
  const std::string& missing() const { return missing_; }

 private:
  const codegen::DynamicLibrary& library_;
  decltype(&::cuGetProcAddress) get_proc_address_ = nullptr;
  std::string missing_;
};

std::string load(Loader& loader, DriverTable& t) {
  loader.required("cuGetErrorName", t.GetErrorName);
  loader.required("cuGetErrorString", t.GetErrorString);
  loader.required("cuInit", t.Init);
  loader.required("cuDriverGetVersion", t.DriverGetVersion);
  loader.required("cuDeviceGetCount", t.DeviceGetCount);
  loader.required("cuDeviceGet", t.DeviceGet);
  loader.required("cuDeviceGetName", t.DeviceGetName);
  loader.required("cuDeviceGetAttribute", t.DeviceGetAttribute);
  loader.required("cuDeviceTotalMem", t.DeviceTotalMem);
  loader.required("cuDevicePrimaryCtxRetain", t.DevicePrimaryCtxRetain);
  loader.required("cuDevicePrimaryCtxRelease", t.DevicePrimaryCtxRelease);
  loader.required("cuCtxGetCurrent", t.CtxGetCurrent);
  loader.required("cuCtxGetDevice", t.CtxGetDevice);
  loader.required("cuCtxPushCurrent", t.CtxPushCurrent);
  loader.required("cuCtxPopCurrent", t.CtxPopCurrent);
  loader.required("cuThreadExchangeStreamCaptureMode", t.ThreadExchangeStreamCaptureMode);
  loader.required("cuStreamCreate", t.StreamCreate);
  loader.required("cuStreamDestroy", t.StreamDestroy);
  loader.required("cuStreamSynchronize", t.StreamSynchronize);
  loader.required("cuStreamQuery", t.StreamQuery);
  loader.required("cuEventCreate", t.EventCreate);
  loader.required("cuEventDestroy", t.EventDestroy);
  loader.required("cuEventRecord", t.EventRecord);
  loader.required("cuEventSynchronize", t.EventSynchronize);
  loader.required("cuEventElapsedTime", t.EventElapsedTime);
  loader.required("cuModuleLoadData", t.ModuleLoadData);
  loader.required("cuModuleUnload", t.ModuleUnload);
  loader.required("cuModuleGetFunction", t.ModuleGetFunction);
  loader.required("cuModuleGetGlobal", t.ModuleGetGlobal);
  loader.required("cuFuncGetAttribute", t.FuncGetAttribute);
  loader.required("cuFuncSetAttribute", t.FuncSetAttribute);
  loader.required("cuOccupancyMaxActiveBlocksPerMultiprocessor",
                  t.OccupancyMaxActiveBlocksPerMultiprocessor);
  loader.required("cuMemAlloc", t.MemAlloc);
  loader.required("cuMemFree", t.MemFree);
  loader.required("cuMemcpyHtoDAsync", t.MemcpyHtoDAsync);
  loader.required("cuMemcpyDtoHAsync", t.MemcpyDtoHAsync);
  loader.required("cuMemcpyDtoDAsync", t.MemcpyDtoDAsync);
  loader.required("cuMemsetD8Async", t.MemsetD8Async);
  loader.required("cuLaunchKernel", t.LaunchKernel);
  loader.optional("cuLaunchKernelEx", kInterface, t.LaunchKernelEx);
  loader.optional("cuTensorMapEncodeTiled", kInterface, t.TensorMapEncodeTiled);
  loader.optional("cuTensorMapReplaceAddress", kInterface, t.TensorMapReplaceAddress);
  loader.optional("cuOccupancyMaxActiveClusters", kInterface, t.OccupancyMaxActiveClusters);
  loader.optional("cuMemGetInfo", kInterface, t.MemGetInfo);
  loader.optional("cuFuncLoad", kFuncLoadInterface, t.FuncLoad);
  loader.optional("cuStreamIsCapturing", kInterface, t.StreamIsCapturing);
  loader.optional("cuStreamBeginCapture", kInterface, t.StreamBeginCapture);
  loader.optional("cuStreamEndCapture", kInterface, t.StreamEndCapture);
  loader.optional("cuGraphGetNodes", kInterface, t.GraphGetNodes);
  loader.optional("cuGraphInstantiateWithFlags", kInterface, t.GraphInstantiateWithFlags);
  loader.optional("cuGraphLaunch", kInterface, t.GraphLaunch);
  loader.optional("cuGraphExecDestroy", kInterface, t.GraphExecDestroy);
  loader.optional("cuGraphDestroy", kInterface, t.GraphDestroy);
  loader.optional("cuStreamGetCaptureInfo", kInterface, t.StreamGetCaptureInfo);
  loader.optional("cuUserObjectCreate", kInterface, t.UserObjectCreate);
  loader.optional("cuUserObjectRelease", kInterface, t.UserObjectRelease);
  loader.optional("cuGraphRetainUserObject", kInterface, t.GraphRetainUserObject);
  loader.optional("cuGraphKernelNodeGetParams", kInterface, t.GraphKernelNodeGetParams);
  loader.optional("cuGraphExecKernelNodeSetParams", kInterface, t.GraphExecKernelNodeSetParams);
  loader.optional("cuDeviceCanAccessPeer", kInterface, t.DeviceCanAccessPeer);
  loader.optional("cuCtxEnablePeerAccess", kInterface, t.CtxEnablePeerAccess);
  loader.optional("cuIpcGetMemHandle", kInterface, t.IpcGetMemHandle);
  loader.optional("cuIpcOpenMemHandle", kInterface, t.IpcOpenMemHandle);
  loader.optional("cuIpcCloseMemHandle", kInterface, t.IpcCloseMemHandle);
  loader.optional("cuMemHostRegister", kInterface, t.MemHostRegister);
  loader.optional("cuMemHostGetDevicePointer", kInterface, t.MemHostGetDevicePointer);
  loader.optional("cuMemHostUnregister", kInterface, t.MemHostUnregister);
  return loader.missing();
}

const char* advice(CUresult result) {
  switch (result) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "Compile for exactly this device's architecture";
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "Free device memory, or tune smaller problems";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ASSERT:
      return "A kernel faulted and this process's CUDA context is lost: restart the process, and "
             "run the kernel under compute-sanitizer";
    case CUDA_ERROR_LAUNCH_TIMEOUT:
      return "A kernel ran too long for a device that drives a display";
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return "The block needs more registers or shared memory than there are: use fewer threads, "
             "or "
             "__launch_bounds__";
    case CUDA_ERROR_INVALID_VALUE:
      return "Check grid, block and shared memory against the device's limits";
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return "The context that was current when the device was opened must outlive it";
    case CUDA_ERROR_INVALID_HANDLE:
      return "Check that the stream belongs to the device's context";
    case CUDA_ERROR_NOT_FOUND:
      return "The binary was not made for this kernel: clear the store";
    case CUDA_ERROR_NO_DEVICE:
      return "Check nvidia-smi and CUDA_VISIBLE_DEVICES";
    case CUDA_ERROR_DEINITIALIZED:
      return "The process is ending; launch nothing from exit handlers";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "CUDA does not survive fork: open the device in the child";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "The driver's library and kernel module differ: reload the module or reboot";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
      return "Prepare the kernel before the capture begins";
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
      return "The hardware reports an error: see nvidia-smi -q and the system log";
    default:
      return "See the driver's documentation of this code, and the system log";
  }
}

}  // namespace

std::string DriverTable::describe(CUresult result, const char* call) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "unknown error";
  if (GetErrorString(result, &text) != CUDA_SUCCESS || !text) text = "no description";
  return detail::format("{} failed: {} ({}): {}. {}.", call, name, static_cast<int>(result), text,
                        advice(result));
}

void DriverTable::fail(CUresult result, const char* call) const {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfMemory(describe(result, call));
  throw EnvironmentError(describe(result, call));
}

DriverProbe open_driver(const std::string& library) {
  // The driver has threads and exit handlers of its own: it is never closed.
  auto opened = codegen::DynamicLibrary::open(library, codegen::DynamicLibrary::Lifetime::process);
  if (!opened.library) {
    return {nullptr,
            detail::format("the NVIDIA driver cannot be opened ({}); install it, or use the "
                           "host device",
                           opened.error)};
  }
  Loader loader(opened.library);
  if (!loader.usable()) {
    return {nullptr, detail::format("{} is older than CUDA 12.0; update the driver", library)};
  }
  auto table = std::make_shared<DriverTable>();
  const std::string missing = load(loader, *table);
  if (!missing.empty()) {
    return {nullptr, detail::format("{} has no {}; update the driver", library, missing)};
  }
  const CUresult result = table->Init(0);
  if (result != CUDA_SUCCESS) return {nullptr, table->describe(result, "cuInit")};
  return {std::move(table), {}};
}

}  // namespace kiln::runtime
