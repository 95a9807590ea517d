#include "runtime/device/cuda/properties.hpp"

#include <array>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {
namespace {

// Reads a device's properties.
class Properties {
 public:
  explicit Properties(const CudaContext& context)
      : driver_(context.driver()), device_(context.device()) {}

  int operator[](CUdevice_attribute attribute) const {
    int value = 0;
    driver_.check(driver_.DeviceGetAttribute(&value, attribute, device_), "cuDeviceGetAttribute");
    return value;
  }
  unsigned dimension(CUdevice_attribute attribute) const {
    return static_cast<unsigned>((*this)[attribute]);
  }
  std::string name() const {
    std::array<char, 256> text{};
    driver_.check(driver_.DeviceGetName(text.data(), static_cast<int>(text.size()) - 1, device_),
                  "cuDeviceGetName");
    return text.data();
  }
  std::size_t memory() const {
    std::size_t bytes = 0;
    driver_.check(driver_.DeviceTotalMem(&bytes, device_), "cuDeviceTotalMem");
    return bytes;
  }
  int driver_version() const {
    int version = 0;
    driver_.check(driver_.DriverGetVersion(&version), "cuDriverGetVersion");
    return version;
  }

 private:
  const DriverTable& driver_;
  CUdevice device_;
};

// From Hopper on only the `a` targets have all of the chip's instructions.
Target exact_target(int capability) {
  return {Target::Kind::cuda, detail::format("sm_{}{}", capability, capability >= 90 ? "a" : "")};
}

// All devices with clusters take this many blocks; more would need an opt-in.
constexpr int kMaxClusterBlocks = 8;

DeviceLimits read_limits(const Properties& p) {
  DeviceLimits l;
  l.max_threads_per_block = p[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
  l.max_block = {p.dimension(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                 p.dimension(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                 p.dimension(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)};
  l.max_grid = {p.dimension(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                p.dimension(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                p.dimension(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)};
  l.shared_per_block = p[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
  l.shared_per_block_optin = p[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN];
  l.shared_per_multiprocessor = p[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR];
  l.reserved_shared_per_block = p[CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK];
  l.registers_per_block = p[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
  l.registers_per_multiprocessor = p[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR];
  l.max_threads_per_multiprocessor = p[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR];
  l.max_blocks_per_multiprocessor = p[CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR];
  l.multiprocessors = p[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
  l.warp_size = p[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
  l.l2_bytes = p[CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE];
  l.compute_capability = 10 * p[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] +
                         p[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
  l.cooperative = p[CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] != 0;
  if (p[CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] != 0) l.max_cluster_blocks = kMaxClusterBlocks;
  l.tensor_maps = l.compute_capability >= 90;
  return l;
}

DeviceInfo read_info(const CudaContext& context, int ordinal) {
  const Properties p(context);
  DeviceInfo info;
  info.id = detail::format("cuda:{}", ordinal);
  info.name = p.name();
  info.limits = read_limits(p);
  info.target = exact_target(info.limits.compute_capability);
  info.limits.memory_bytes = static_cast<std::int64_t>(p.memory());
  const auto megahertz = [&](CUdevice_attribute kilohertz) {
    return std::to_string(p[kilohertz] / 1000);
  };
  // No serial number or UUID: equal models share records. The driver names a MIG slice in the
  // device's name, and slices differ in multiprocessors and memory. The last GiB digit of memory
  // depends on the driver, so it is rounded.
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  info.fingerprint = {
      {"name", info.name},
      {"compute_capability", std::to_string(info.limits.compute_capability)},
      {"multiprocessors", std::to_string(info.limits.multiprocessors)},
      {"memory_gib", std::to_string((info.limits.memory_bytes + kGiB / 2) / kGiB)},
      {"l2_bytes", std::to_string(info.limits.l2_bytes)},
      {"clock_mhz", megahertz(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)},
      {"memory_clock_mhz", megahertz(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)},
      {"memory_bus_bits", std::to_string(p[CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH])},
  };
  info.software = {{"cuda_driver", version_text(p.driver_version())}};
  return info;
}

// Launches that leave multiprocessors free are other launches: their records are kept apart.
DeviceInfo reserved(DeviceInfo info, int multiprocessors) {
  if (multiprocessors < 0 || multiprocessors >= info.limits.multiprocessors)
    throw UserError(detail::format("{} multiprocessors cannot be reserved: {} has {}",
                                   multiprocessors, info.id, info.limits.multiprocessors));
  info.limits.reserved_multiprocessors = multiprocessors;
  if (multiprocessors > 0)
    info.fingerprint.push_back({"reserved_multiprocessors", std::to_string(multiprocessors)});
  return info;
}

}  // namespace

std::string version_text(int version) {
  return detail::format("{}.{}", version / 1000, version % 1000 / 10);
}

DeviceInfo read_device_info(const CudaContext& context, int ordinal, int reserved_multiprocessors) {
  return reserved(read_info(context, ordinal), reserved_multiprocessors);
}

}  // namespace kiln::runtime
