#include "kiln/tensor_map.hpp"

#include "kiln/detail/format.hpp"

namespace kiln {

using detail::format;

namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 32;  // of a dimension
constexpr std::uint64_t kMostStride = std::uint64_t{1} << 40;    // bytes
constexpr std::uint32_t kMostBox = 256;                          // elements of a dimension

std::size_t span_bytes(Swizzle swizzle) {
  return swizzle == Swizzle::none ? 0 : std::size_t{16} << static_cast<int>(swizzle);
}

}  // namespace

TensorMap TensorMap::tiled(DataType type, const Tiled& tiled) {
  TensorMap map;
  map.type = type;
  map.rank = static_cast<int>(tiled.size.size());
  map.swizzle = tiled.swizzle;
  map.l2_bytes = tiled.l2_bytes;
  // A negative extent becomes one that is too large, and lists of other lengths leave a zero.
  for (std::size_t d = 0; d < tiled.size.size() && d < kMaxRank; ++d) {
    map.size[d] = static_cast<std::uint64_t>(tiled.size[d]);
    if (d < tiled.box.size() && tiled.box[d] > 0)
      map.box[d] =
          tiled.box[d] > kMostBox ? kMostBox + 1 : static_cast<std::uint32_t>(tiled.box[d]);
    if (d == 0) continue;
    if (tiled.stride.empty())
      map.stride[d] =
          d == 1 ? map.size[0] * map.element_bytes() : map.stride[d - 1] * map.size[d - 1];
    else if (d - 1 < tiled.stride.size())
      map.stride[d] = static_cast<std::uint64_t>(tiled.stride[d - 1]) * map.element_bytes();
  }
  return map;
}

std::size_t TensorMap::element_bytes() const noexcept {
  switch (type) {
    case DataType::i8:
    case DataType::u8:
    case DataType::fp8_e4m3:
    case DataType::fp8_e5m2:
      return 1;
    case DataType::i16:
    case DataType::u16:
    case DataType::f16:
    case DataType::bf16:
      return 2;
    case DataType::i32:
    case DataType::u32:
    case DataType::f32:
      return 4;
    case DataType::i64:
    case DataType::u64:
    case DataType::f64:
      return 8;
    case DataType::boolean:
    case DataType::bytes:
      break;
  }
  return 0;
}

std::size_t TensorMap::box_bytes() const noexcept {
  std::size_t bytes = element_bytes();
  for (int d = 0; d < rank && d < kMaxRank; ++d) bytes *= box[d];
  return bytes;
}

std::string TensorMap::obstacle() const {
  if (element_bytes() == 0) return "elements of a type that no map has";
  if (rank < 1 || rank > kMaxRank) return format("{} dimensions, but a map has 1 to 5", rank);
  for (int d = 0; d < rank; ++d) {
    if (size[d] == 0 || size[d] > kMostElements)
      return format("{} elements in dimension {}, but a map has 1 to 2^32",
                    static_cast<std::int64_t>(size[d]), d);
    if (box[d] == 0 || box[d] > kMostBox)
      return format("a box of {} elements in dimension {}, but a map allows 1 to {}",
                    box[d] > kMostBox ? format("more than {}", kMostBox) : format("{}", box[d]), d,
                    kMostBox);
    if (d == 0) continue;
    if (stride[d] == 0 || stride[d] % 16 != 0)
      return format("a stride of {} bytes in dimension {}, which is no multiple of 16", stride[d],
                    d);
    if (stride[d] >= kMostStride)
      return format("a stride of {} bytes in dimension {}, but a map allows less than 2^40",
                    stride[d], d);
  }
  const std::size_t inner = box[0] * element_bytes();
  if (inner % 16 != 0)
    return format("a box of {} bytes in dimension 0, which is no multiple of 16", inner);
  if (swizzle != Swizzle::none && inner > span_bytes(swizzle))
    return format("a box of {} bytes in dimension 0, but the swizzle spans {}", inner,
                  span_bytes(swizzle));
  if (l2_bytes != 0 && l2_bytes != 64 && l2_bytes != 128 && l2_bytes != 256)
    return format(
        "{} bytes fetched into the L2 cache at a time, but a map allows 0, 64, 128 or 256",
        l2_bytes);
  return {};
}

}  // namespace kiln
