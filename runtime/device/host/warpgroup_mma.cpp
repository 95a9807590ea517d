#include "runtime/device/host/warpgroup_mma.hpp"

#include <cstring>

#include "kiln/detail/format.hpp"
#include "kiln/detail/host_tensor_map.hpp"
#include "runtime/device/host/small_float.hpp"

namespace kiln::runtime {
namespace {

using codegen::HostProduct;

constexpr unsigned kRowBytes = 32;  // of A and of a column of B, along k

unsigned element_bytes(HostProduct type) {
  return type == HostProduct::tf32                               ? 4
         : type == HostProduct::bf16 || type == HostProduct::f16 ? 2
                                                                 : 1;
}

float product_value(const std::byte* from, HostProduct type) {
  std::uint32_t word = 0;
  std::memcpy(&word, from, element_bytes(type));
  switch (type) {
    case HostProduct::bf16:
      return bf16_to_float(static_cast<std::uint16_t>(word));
    case HostProduct::f16:
      return f16_to_float(static_cast<std::uint16_t>(word));
    case HostProduct::tf32:
      return std::bit_cast<float>(word & ~0x1fffu);
    case HostProduct::e4m3:
      return small_to_float(word, 4, 3, true);
    case HostProduct::e5m2:
      return small_to_float(word, 5, 2);
  }
  return 0;
}

/// A matrix in shared memory as its descriptor says.
class Operand {
 public:
  Operand(std::uint64_t descriptor, HostProduct type, bool by_row)
      : start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4),
        moved_((descriptor >> 49 & 7) != 0),
        type_(type),
        by_row_(by_row) {
    constexpr unsigned spans[4] = {0, 128, 64, 32};
    swizzle_ = spans[descriptor >> 62];
  }

  std::string unusable() const {
    if (moved_) return "a descriptor with a base offset, which the host target does not know";
    if (by_row_ && element_bytes(type_) != 2)
      return "an operand of this type whose rows or columns are not along k";
    return {};
  }

  /// Values along k of row or column `outer`. False: outside of the block's shared memory.
  bool read(float (&values)[kRowBytes], unsigned outer, const std::byte* shared,
            std::uint64_t bytes) const {
    const unsigned size = element_bytes(type_);
    for (unsigned k = 0; k < kRowBytes / size; ++k) {
      const std::uint64_t place = detail::swizzled(start_ + offset(outer, k, size), swizzle_);
      if (place + size > bytes) return false;
      values[k] = product_value(shared + place, type_);
    }
    return true;
  }

 private:
  // Canonical layouts of the PTX ISA, in bytes.
  std::uint64_t offset(unsigned outer, unsigned k, unsigned size) const {
    const unsigned along = (by_row_ ? outer : k) * size, other = by_row_ ? k : outer;
    if (swizzle_ == 0) {
      const std::uint64_t eight = other / 8, sixteen = along / 16;
      return other % 8 * 16 + along % 16 +
             (by_row_ ? eight * leading_ + sixteen * stride_
                      : eight * stride_ + sixteen * leading_);
    }
    const std::uint64_t spans = along / swizzle_;
    return other / 8 * stride_ + other % 8 * swizzle_ +
           (by_row_ ? spans * leading_ + along % swizzle_ : along);
  }

  std::uint64_t start_, leading_, stride_;
  unsigned swizzle_ = 0;
  bool moved_;
  HostProduct type_;
  bool by_row_;
};

}  // namespace

std::string multiply(const codegen::HostWarpgroupMma& product, std::uint32_t thread,
                     const std::byte* shared, std::uint64_t bytes) {
  const Operand a(product.a, product.type, product.a_by_row != 0);
  const Operand b(product.b, product.type, product.b_by_row != 0);
  std::string wrong = b.unusable();
  if (wrong.empty() && !product.a_in_registers) wrong = a.unusable();
  if (!wrong.empty()) return wrong;
  const unsigned size = element_bytes(product.type), depth = kRowBytes / size;
  const unsigned lane = thread % 32, row = thread / 32 % 4 * 16 + lane / 4;
  float rows[2][kRowBytes];
  for (unsigned i = 0; i < 2; ++i) {
    if (!product.a_in_registers) {
      if (!a.read(rows[i], row + 8 * i, shared, bytes))
        return detail::format("A of 64 rows reaches beyond the {} bytes of shared memory", bytes);
    } else {
      const auto* values = reinterpret_cast<const std::byte*>(product.rows[i]);
      for (unsigned k = 0; k < depth; ++k)
        rows[i][k] = product_value(values + k * size, product.type);
    }
    if (product.negate & 1)
      for (unsigned k = 0; k < depth; ++k) rows[i][k] = -rows[i][k];
  }
  for (unsigned j = 0; j < product.n / 8; ++j) {
    for (unsigned c = 0; c < 2; ++c) {
      float column[kRowBytes];
      if (!b.read(column, 8 * j + lane % 4 * 2 + c, shared, bytes))
        return detail::format("B of {} columns reaches beyond the {} bytes of shared memory",
                              product.n, bytes);
      for (unsigned i = 0; i < 2; ++i) {
        float& d = product.d[4 * j + 2 * i + c];
        float sum = product.zero ? 0.0f : d;
        for (unsigned k = 0; k < depth; ++k)
          sum += product.negate & 2 ? -(rows[i][k] * column[k]) : rows[i][k] * column[k];
        d = sum;
      }
    }
  }
  return {};
}

}  // namespace kiln::runtime
