// Memory of other devices and processes, as the fake driver has it.
#include <cstring>

#include "fake_driver_calls.hpp"

void add_peers(kiln::runtime::DriverTable& t) {
  t.DeviceCanAccessPeer = [](int* can, CUdevice, CUdevice) {
    ENTER("cuDeviceCanAccessPeer");
    *can = current_fake->peers_reach;
    return CUDA_SUCCESS;
  };
  t.CtxEnablePeerAccess = [](CUcontext peer, unsigned flags) {
    ENTER_UNSAFE("cuCtxEnablePeerAccess");
    current_fake->require_context("cuCtxEnablePeerAccess");
    const CUcontext own = current_fake->stacks[std::this_thread::get_id()].back();
    if (own == peer || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return current_fake->peer_access.emplace(own, peer).second
               ? CUDA_SUCCESS
               : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  };
  t.IpcGetMemHandle = [](CUipcMemHandle* handle, CUdeviceptr memory) {
    ENTER_UNSAFE("cuIpcGetMemHandle");
    if (!current_fake->memory.count(memory)) return CUDA_ERROR_INVALID_VALUE;
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &memory, sizeof memory);
    return CUDA_SUCCESS;
  };
  t.IpcOpenMemHandle = [](CUdeviceptr* memory, CUipcMemHandle handle, unsigned flags) {
    ENTER_UNSAFE("cuIpcOpenMemHandle");
    current_fake->require_context("cuIpcOpenMemHandle");
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(&current_fake->opened_handle, &handle, sizeof current_fake->opened_handle);
    *memory = reinterpret_cast<CUdeviceptr>(current_fake->next_handle());
    current_fake->opened.insert(*memory);
    return CUDA_SUCCESS;
  };
  t.IpcCloseMemHandle = [](CUdeviceptr memory) {
    return destroy(current_fake->opened, memory, "cuIpcCloseMemHandle");
  };
  t.MemHostRegister = [](void* memory, std::size_t, unsigned flags) {
    ENTER_UNSAFE("cuMemHostRegister");
    current_fake->require_context("cuMemHostRegister");
    if (!(flags & CU_MEMHOSTREGISTER_DEVICEMAP)) return CUDA_ERROR_INVALID_VALUE;
    return current_fake->registered.insert(memory).second
               ? CUDA_SUCCESS
               : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  };
  t.MemHostGetDevicePointer = [](CUdeviceptr* address, void* memory, unsigned) {
    ENTER("cuMemHostGetDevicePointer");
    if (!current_fake->registered.count(memory)) return CUDA_ERROR_INVALID_VALUE;
    *address = reinterpret_cast<CUdeviceptr>(memory) + 1;  // elsewhere than for the host
    return CUDA_SUCCESS;
  };
  t.MemHostUnregister = [](void* memory) {
    return destroy(current_fake->registered, memory, "cuMemHostUnregister");
  };
}
