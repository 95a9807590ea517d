#include "runtime/device/cuda/launch.hpp"

#include <cstring>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {
namespace {

void require(bool there, const char* call) {
  if (!there)
    throw EnvironmentError(detail::format("the NVIDIA driver has no {}; update the driver", call));
}

CUtensorMapDataType data_type_of(const TensorMap& map) {
  switch (map.type) {
    case DataType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DataType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DataType::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DataType::f64:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DataType::i32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DataType::u32:
      return CU_TENSOR_MAP_DATA_TYPE_UINT32;
    case DataType::i64:
      return CU_TENSOR_MAP_DATA_TYPE_INT64;
    case DataType::u64:
      return CU_TENSOR_MAP_DATA_TYPE_UINT64;
    default:  // copies do not look at the elements; their size is what counts
      return map.element_bytes() == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                      : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  }
}

CUtensorMapSwizzle swizzle_of(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::bytes32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::bytes64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::bytes128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case Swizzle::none:
      break;
  }
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

CUtensorMapL2promotion promotion_of(int bytes) {
  return bytes == 256   ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
         : bytes == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
         : bytes == 64  ? CU_TENSOR_MAP_L2_PROMOTION_L2_64B
                        : CU_TENSOR_MAP_L2_PROMOTION_NONE;
}

static_assert(sizeof(EncodedMap) == sizeof(CUtensorMap) &&
              alignof(EncodedMap) >= alignof(CUtensorMap));

}  // namespace

LaunchConfig::LaunchConfig(const Launch& launch, CUstream stream) {
  config_.gridDimX = launch.grid.x;
  config_.gridDimY = launch.grid.y;
  config_.gridDimZ = launch.grid.z;
  config_.blockDimX = launch.block.x;
  config_.blockDimY = launch.block.y;
  config_.blockDimZ = launch.block.z;
  config_.sharedMemBytes = launch.shared_bytes;
  config_.hStream = stream;
  config_.attrs = attributes_.data();
  if (launch.cluster != Dim3{}) {
    CUlaunchAttribute& attribute = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    attribute.value.clusterDim.x = launch.cluster.x;
    attribute.value.clusterDim.y = launch.cluster.y;
    attribute.value.clusterDim.z = launch.cluster.z;
  }
  if (launch.cooperative) add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).value.cooperative = 1;
  if (launch.programmatic)
    add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        .value.programmaticStreamSerializationAllowed = 1;
}

CUlaunchAttribute& LaunchConfig::add(CUlaunchAttributeID id) {
  CUlaunchAttribute& attribute = attributes_[config_.numAttrs++];
  attribute = {};
  attribute.id = id;
  return attribute;
}

LaunchByConfig::LaunchByConfig(const CudaContext& context, CUfunction function,
                               const Launch& launch)
    : context_(context),
      launch_(context.driver().LaunchKernelEx),
      function_(function),
      config_(launch, nullptr) {
  require(launch_, "cuLaunchKernelEx");
}

void LaunchByConfig::again(CUresult refused, Stream stream, void** args) const {
  again_in_context(refused, context_, "cuLaunchKernelEx", [&] { return once(stream, args); });
}

void CudaFixedLaunch::operator()(const Launch&, Stream stream, void** args) const {
  arguments_.with(args, nullptr, [&](void** entry_args) { launch_(stream, entry_args); });
}

void CudaFixedLaunch::take(const Launch&, Stream stream, void** args) const {
  arguments_.in_place(args, [this, stream](void** entry_args) { launch_(stream, entry_args); });
}

void prepare_function(const DriverTable& driver, CUfunction function, int static_shared,
                      const Launch& launch, const DeviceLimits& limits) {
  const auto set = [&](CUfunction_attribute attribute, int value) {
    driver.check(driver.FuncSetAttribute(function, attribute, value), "cuFuncSetAttribute");
  };
  // Static and dynamic shared memory share one limit; above the default it must be asked for.
  if (std::int64_t{static_shared} + launch.shared_bytes > limits.shared_per_block)
    set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(launch.shared_bytes));
  if (launch.shared_carveout >= 0)
    set(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, launch.shared_carveout);
  if (launch.cluster == Dim3{} || !driver.OccupancyMaxActiveClusters) return;
  int clusters = 0;
  Launch one = launch;
  one.grid = launch.cluster;  // the question does not depend on it, but an empty grid is refused
  const LaunchConfig config(one, nullptr);
  driver.check(driver.OccupancyMaxActiveClusters(&clusters, function, config.get()),
               "cuOccupancyMaxActiveClusters");
  if (clusters == 0)
    throw UserError(
        detail::format("the device cannot hold one cluster of {}x{}x{} blocks of {} "
                       "threads with {} bytes of dynamic shared memory each",
                       launch.cluster.x, launch.cluster.y, launch.cluster.z,
                       launch.block.x * launch.block.y * launch.block.z, launch.shared_bytes));
}

EncodedMap encode_map(const DriverTable& driver, const TensorMap& map, void* address) {
  require(driver.TensorMapEncodeTiled, "cuTensorMapEncodeTiled");
  std::array<cuuint64_t, TensorMap::kMaxRank> size{}, stride{};
  std::array<cuuint32_t, TensorMap::kMaxRank> box{}, step{};
  for (std::size_t d = 0; d < TensorMap::kMaxRank; ++d) {
    size[d] = map.size[d];
    box[d] = map.box[d];
    step[d] = 1;
    if (d > 0) stride[d - 1] = map.stride[d];
  }
  EncodedMap encoded;
  driver.check(driver.TensorMapEncodeTiled(
                   reinterpret_cast<CUtensorMap*>(&encoded), data_type_of(map),
                   static_cast<cuuint32_t>(map.rank), address, size.data(), stride.data(),
                   box.data(), step.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(map.swizzle),
                   promotion_of(map.l2_bytes), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return encoded;
}

void move_map(const DriverTable& driver, EncodedMap& map, void* address) {
  require(driver.TensorMapReplaceAddress, "cuTensorMapReplaceAddress");
  driver.check(driver.TensorMapReplaceAddress(reinterpret_cast<CUtensorMap*>(&map), address),
               "cuTensorMapReplaceAddress");
}

}  // namespace kiln::runtime
