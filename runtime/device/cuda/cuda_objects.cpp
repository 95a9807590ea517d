#include "runtime/device/cuda/cuda_objects.hpp"

namespace kiln::runtime {

CudaContext::CudaContext(std::shared_ptr<const DriverTable> driver, int ordinal)
    : driver_(std::move(driver)) {
  driver_->check(driver_->DeviceGet(&device_, ordinal), "cuDeviceGet");
  CUcontext current = nullptr;
  driver_->check(driver_->CtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current) {
    CUdevice owner = 0;
    driver_->check(driver_->CtxGetDevice(&owner), "cuCtxGetDevice");
    if (owner == device_) {
      context_ = current;
      return;
    }
  }
  driver_->check(driver_->DevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  retained_ = true;
}

CudaContext::~CudaContext() {
  if (retained_) driver_->DevicePrimaryCtxRelease(device_);
}

CudaStream create_stream(std::shared_ptr<const CudaContext> context) {
  const WorkingContext working(*context);
  CUstream stream = nullptr;
  const DriverTable& driver = context->driver();
  driver.check(driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return {std::move(context), stream};
}

CudaEvent create_timing_event(std::shared_ptr<const CudaContext> context) {
  const WorkingContext working(*context);
  CUevent event = nullptr;
  const DriverTable& driver = context->driver();
  driver.check(driver.EventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate");
  return {std::move(context), event};
}

CudaModule load_module(std::shared_ptr<const CudaContext> context,
                       std::span<const std::byte> image) {
  // The bytes of a file may begin at any address. The driver documents no alignment, but it reads
  // an ELF file.
  std::vector<std::byte> aligned;
  if (reinterpret_cast<std::uintptr_t>(image.data()) % alignof(std::max_align_t) != 0) {
    aligned.assign(image.begin(), image.end());
    image = aligned;
  }
  const WorkingContext working(*context);
  CUmodule module = nullptr;
  const DriverTable& driver = context->driver();
  driver.check(driver.ModuleLoadData(&module, image.data()), "cuModuleLoadData");
  return {std::move(context), module};
}

CudaMemory allocate_memory(std::shared_ptr<const CudaContext> context, std::size_t bytes) {
  const WorkingContext working(*context);
  CUdeviceptr memory = 0;
  const DriverTable& driver = context->driver();
  driver.check(driver.MemAlloc(&memory, bytes), "cuMemAlloc");
  return {std::move(context), memory};
}

}  // namespace kiln::runtime
