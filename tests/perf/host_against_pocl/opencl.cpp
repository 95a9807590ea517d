#include "opencl.hpp"

#ifdef KILN_HAS_OPENCL
#define CL_TARGET_OPENCL_VERSION 120
#include <stdexcept>
#include <string_view>
#include <vector>

#include <CL/cl.h>
#include <stdlib.h>

namespace host_against_pocl {
namespace {

void require(cl_int code, const char* call) {
  if (code != CL_SUCCESS)
    throw std::runtime_error(std::string(call) + " failed with code " + std::to_string(code));
}

class LoadedPoclKernel final : public PoclKernel {
 public:
  LoadedPoclKernel(cl_context context, cl_device_id device, cl_command_queue queue,
                   const Case& work, float* out, float* a, float* b)
      : queue_(queue) {
    const std::string text = std::string(kOpenClWords) + work.text;
    const char* source = text.c_str();
    cl_int code = 0;
    program_ = clCreateProgramWithSource(context, 1, &source, nullptr, &code);
    require(code, "clCreateProgramWithSource");
    if (clBuildProgram(program_, 1, &device, "", nullptr, nullptr) != CL_SUCCESS) {
      std::vector<char> log(1 << 16);
      clGetProgramBuildInfo(program_, device, CL_PROGRAM_BUILD_LOG, log.size() - 1, log.data(),
                            nullptr);
      throw std::runtime_error(std::string("PoCL does not compile ") + work.name + ":\n" +
                               log.data());
    }
    kernel_ = clCreateKernel(program_, work.name, &code);
    require(code, "clCreateKernel");
    const std::size_t sizes[3] = {work.out, work.a, work.b};
    float* const arrays[3] = {out, a, b};
    for (cl_uint i = 0; i < 3; ++i) {
      arrays_[i] = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                  sizes[i] * sizeof(float), arrays[i], &code);
      require(code, "clCreateBuffer");
      require(clSetKernelArg(kernel_, i, sizeof(cl_mem), &arrays_[i]), "clSetKernelArg");
    }
    require(clSetKernelArg(kernel_, 3, sizeof(int), &work.m), "clSetKernelArg");
    require(clSetKernelArg(kernel_, 4, sizeof(int), &work.n), "clSetKernelArg");
    const std::uint32_t grid[3] = {work.grid.x, work.grid.y, work.grid.z};
    const std::uint32_t block[3] = {work.block.x, work.block.y, work.block.z};
    for (int d = 0; d < 3; ++d) {
      local_[d] = block[d];
      global_[d] = std::size_t{grid[d]} * block[d];
    }
  }
  ~LoadedPoclKernel() override {
    for (cl_mem array : arrays_) clReleaseMemObject(array);
    clReleaseKernel(kernel_);
    clReleaseProgram(program_);
  }
  LoadedPoclKernel(const LoadedPoclKernel&) = delete;
  LoadedPoclKernel& operator=(const LoadedPoclKernel&) = delete;

  void launch() override {
    require(
        clEnqueueNDRangeKernel(queue_, kernel_, 3, nullptr, global_, local_, 0, nullptr, nullptr),
        "clEnqueueNDRangeKernel");
    require(clFinish(queue_), "clFinish");
  }

 private:
  cl_command_queue queue_;
  cl_program program_ = nullptr;
  cl_kernel kernel_ = nullptr;
  cl_mem arrays_[3] = {};
  std::size_t global_[3] = {}, local_[3] = {};
};

class OpenPocl final : public Pocl {
 public:
  OpenPocl(cl_platform_id platform, cl_device_id device) : platform_(platform), device_(device) {
    cl_int code = 0;
    context_ = clCreateContext(nullptr, 1, &device_, nullptr, nullptr, &code);
    require(code, "clCreateContext");
    queue_ = clCreateCommandQueue(context_, device_, 0, &code);
    require(code, "clCreateCommandQueue");
  }
  ~OpenPocl() override {
    clReleaseCommandQueue(queue_);
    clReleaseContext(context_);
  }
  OpenPocl(const OpenPocl&) = delete;
  OpenPocl& operator=(const OpenPocl&) = delete;

  std::string version() const override {
    char text[256] = {};
    require(clGetPlatformInfo(platform_, CL_PLATFORM_VERSION, sizeof text - 1, text, nullptr),
            "clGetPlatformInfo");
    return text;
  }
  std::unique_ptr<PoclKernel> load(const Case& work, float* out, float* a, float* b) override {
    return std::make_unique<LoadedPoclKernel>(context_, device_, queue_, work, out, a, b);
  }

 private:
  cl_platform_id platform_;
  cl_device_id device_;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
};

}  // namespace

std::unique_ptr<Pocl> open_pocl(const std::string& folder, std::string& reason) {
  ::setenv("POCL_CACHE_DIR", folder.c_str(), 1);
  ::setenv("POCL_MAX_PTHREAD_COUNT", "2", 1);
  cl_platform_id platforms[16];
  cl_uint count = 0;
  if (clGetPlatformIDs(16, platforms, &count) != CL_SUCCESS) count = 0;
  for (cl_uint i = 0; i < count; ++i) {
    char name[256] = {};
    clGetPlatformInfo(platforms[i], CL_PLATFORM_NAME, sizeof name - 1, name, nullptr);
    if (std::string_view(name) != "Portable Computing Language") continue;
    cl_device_id device = nullptr;
    if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_CPU, 1, &device, nullptr) == CL_SUCCESS)
      return std::make_unique<OpenPocl>(platforms[i], device);
  }
  reason = "there is no PoCL among " + std::to_string(count) +
           " OpenCL platforms; Debian's package is pocl-opencl-icd";
  return nullptr;
}

}  // namespace host_against_pocl

#else

namespace host_against_pocl {

std::unique_ptr<Pocl> open_pocl(const std::string&, std::string& reason) {
  reason =
      "OpenCL was not found when this was built; Debian's packages are pocl-opencl-icd and "
      "ocl-icd-opencl-dev";
  return nullptr;
}

}  // namespace host_against_pocl

#endif
