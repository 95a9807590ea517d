// A library with the driver's way in and nothing behind it: every function is there, and
// initialisation reports that there is no device. Built also without one of the functions.
#include <cstring>

#include <cuda.h>

namespace {

CUresult nothing() { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult init(unsigned) { return CUDA_ERROR_NO_DEVICE; }
CUresult error_name(CUresult, const char** text) {
  *text = "CUDA_ERROR_NO_DEVICE";
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(
    const char* name, void** function, int version, cuuint64_t, CUdriverProcAddressQueryResult*) {
  *function = nullptr;
#ifdef KILN_TEST_WITHOUT
  if (std::strcmp(name, KILN_TEST_WITHOUT) == 0) return CUDA_ERROR_NOT_FOUND;
#endif
  if (version < 12000) return CUDA_ERROR_NOT_FOUND;
  if (std::strcmp(name, "cuInit") == 0) {
    *function = reinterpret_cast<void*>(&init);
  } else if (std::strncmp(name, "cuGetError", 10) == 0) {
    *function = reinterpret_cast<void*>(&error_name);
  } else {
    *function = reinterpret_cast<void*>(&nothing);
  }
  return CUDA_SUCCESS;
}
