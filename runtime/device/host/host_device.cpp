#include "runtime/device/host/host_device.hpp"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/detail/host_tensor_map.hpp"
#include "kiln/error.hpp"
#include "runtime/device/host/host_module.hpp"
#include "runtime/device/host/shared_memory.hpp"
#include "runtime/device/host_memory_device.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {

namespace {

/// As wide as any vector access and any slot array needs. cudaMalloc guarantees the same.
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// The placement of arrays changes a time about as much as a config does, and a kernel's time must
/// not depend on what the process has allocated before.
constexpr std::size_t alignment_of(std::size_t bytes) {
  return bytes >= kHugePage ? kHugePage : bytes >= kPage ? kPage : kAlignment;
}

Extent extent(const Dim3& d) { return {d.x, d.y, d.z}; }

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0)
      if (const auto colon = line.find(": "); colon != std::string::npos)
        return line.substr(colon + 2);
  return "unknown CPU";
}

class LoadedHostKernel final : public Module {
 public:
  LoadedHostKernel(const codegen::Binary& binary, std::shared_ptr<HostWorkers> workers)
      : LoadedHostKernel(HostModule::load(binary, std::move(workers)), binary.resources) {
    for (std::size_t i = 0; i < binary.steps.size(); ++i)
      steps_.push_back(LoadedHostKernel(module.step(i), binary.steps[i].resources));
  }
  const codegen::ResourceUsage& resources() const noexcept override { return resources_; }
  const Module& step(std::size_t index) const override { return steps_.at(index); }
  bool has_variables() const noexcept override { return module.kernel().variable_count > 0; }

  HostModule module;

 private:
  LoadedHostKernel(HostModule loaded, const codegen::ResourceUsage& resources)
      : module(std::move(loaded)), resources_(resources) {}

  codegen::ResourceUsage resources_;
  std::vector<LoadedHostKernel> steps_;
};

detail::HostElement element_of(const TensorMap& map) {
  switch (map.type) {
    case DataType::f16:
      return detail::HostElement::f16;
    case DataType::bf16:
      return detail::HostElement::bf16;
    case DataType::f32:
      return detail::HostElement::f32;
    case DataType::f64:
      return detail::HostElement::f64;
    case DataType::i32:
      return detail::HostElement::s32;
    case DataType::u32:
      return detail::HostElement::u32;
    case DataType::i64:
      return detail::HostElement::s64;
    case DataType::u64:
      return detail::HostElement::u64;
    default:
      return map.element_bytes() == 1 ? detail::HostElement::u8 : detail::HostElement::u16;
  }
}

EncodedMap encode_host_map(const TensorMap& map, const void* address) {
  if (const std::string why = map.obstacle(); !why.empty())
    throw EnvironmentError("a tensor map of the host device with " + why);
  detail::HostTensorMap host;
  host.element = element_of(map);
  host.rank = static_cast<std::uint8_t>(map.rank);
  host.swizzle = map.swizzle == Swizzle::none
                     ? std::uint8_t{0}
                     : static_cast<std::uint8_t>(16 << static_cast<int>(map.swizzle));
  host.address = reinterpret_cast<std::uint64_t>(address);
  for (int d = 0; d < map.rank; ++d) {
    host.size[d] = map.size[d];
    host.box[d] = static_cast<std::uint16_t>(map.box[d]);
    if (d > 0) host.stride[d - 1] = map.stride[d];
  }
  EncodedMap encoded;
  static_assert(sizeof host == sizeof encoded.bytes);
  std::memcpy(encoded.bytes.data(), &host, sizeof host);
  return encoded;
}

class HostDevice final : public HostMemoryDevice {
 public:
  explicit HostDevice(CallerAllocator allocator) : allocator_(std::move(allocator)) {}

  const DeviceInfo& info() const noexcept override { return info_; }

  std::shared_ptr<Module> load(const codegen::Binary& binary, const Launch& launch,
                               std::span<const Launch> steps) override {
    check_shared(launch);
    for (const Launch& step : steps) check_shared(step);
    return std::make_shared<LoadedHostKernel>(binary, workers_);
  }

  void launch(const Module& kernel, const Launch& g, Stream, void** args) const override {
    static_cast<const LoadedHostKernel&>(kernel).module.launch(
        extent(g.grid), extent(g.block), g.shared_bytes, args, extent(g.cluster));
  }

  void launch_checked(const Module& kernel, const Launch& g, Stream, void** args) const override {
    static_cast<const LoadedHostKernel&>(kernel).module.launch_checked(
        extent(g.grid), extent(g.block), g.shared_bytes, args, extent(g.cluster));
  }

  EncodedMap encode(const TensorMap& map, void* address) const override {
    return encode_host_map(map, address);
  }
  void move(EncodedMap& map, void* address) const override {
    const auto value = reinterpret_cast<std::uint64_t>(address);
    std::memcpy(map.bytes.data() + offsetof(detail::HostTensorMap, address), &value, sizeof value);
  }

  std::vector<ModuleVariable> variables(const Module& kernel) const override {
    const codegen::HostKernel& host = static_cast<const LoadedHostKernel&>(kernel).module.kernel();
    std::vector<ModuleVariable> found;
    for (const codegen::HostVariable& v : std::span(host.variables, host.variable_count))
      found.push_back({v.name, v.address, v.bytes});
    return found;
  }

  int occupancy(const Module&, int, unsigned) const override { return 1; }

  std::optional<std::int64_t> available() const override {
    return allocator_ ? allocator_.available() : available_memory();
  }

  void* allocate(std::size_t bytes) override {
    if (allocator_) return allocator_.allocate(bytes);
    require_memory("an array on the host device", bytes);
    const std::size_t alignment = alignment_of(bytes);
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* memory = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
    if (!memory)
      throw EnvironmentError(detail::format("{} bytes of memory cannot be allocated", bytes));
    // Huge pages cause fewer TLB misses, and times depend less on where pages happen to be.
    if (alignment == kHugePage) ::madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
  }
  void release(void* memory, std::size_t bytes) noexcept override {
    if (allocator_) return allocator_.release(memory, bytes);
    HostMemoryDevice::release(memory, bytes);
  }
  void synchronize(Stream) override {}
  Stream tuning_stream() override { return {}; }

  double time(Stream, const std::function<void()>& enqueue) override {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    enqueue();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  bool shares_cpu() const noexcept override { return true; }

  PeerAccess* peer_access() noexcept override { return peer_access_.get(); }

 private:
  void check_shared(const Launch& launch) const {
    if (launch.shared_bytes > static_cast<unsigned>(info_.limits.shared_per_block_optin))
      throw UserError(detail::format(
          "the kernel needs {} bytes of dynamic shared memory, but the host device has {}",
          launch.shared_bytes, info_.limits.shared_per_block_optin));
  }

  const CallerAllocator allocator_;
  const DeviceInfo info_ = host_info();
  const std::shared_ptr<HostWorkers> workers_ = HostWorkers::create();
  const std::unique_ptr<PeerAccess> peer_access_ = make_host_peer_access();
};

}  // namespace

DeviceInfo host_info() {
  DeviceInfo info;
  info.id = "host";
  info.name = cpu_model();
  info.target = Target::this_host();
  info.limits.multiprocessors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  info.limits.max_threads_per_block = kHostMaxThreads;
  info.limits.shared_per_block_optin = kHostMaxShared;
  info.limits.shared_per_multiprocessor = kHostMaxShared;
  info.limits.max_threads_per_multiprocessor = kHostMaxThreads;
  info.limits.max_blocks_per_multiprocessor = 1;
  info.limits.max_cluster_blocks = codegen::kMostClusterBlocks;
  info.limits.tensor_maps = true;
  info.limits.l2_bytes =
      std::max<std::int64_t>({0, sysconf(_SC_LEVEL2_CACHE_SIZE), sysconf(_SC_LEVEL3_CACHE_SIZE)});
  info.limits.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  info.fingerprint = {{"cpu", info.name},
                      {"level", info.target.arch},
                      {"threads", std::to_string(info.limits.multiprocessors)}};
  utsname os{};
  if (uname(&os) == 0) info.software = {{"os", std::string(os.sysname) + " " + os.release}};
  return info;
}

std::shared_ptr<Device> make_host_device(CallerAllocator allocator) {
  return std::make_shared<HostDevice>(std::move(allocator));
}

}  // namespace kiln::runtime
