#include "read_floor.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr const char* kSource = R"(
__global__ void __launch_bounds__(BLOCK) read_floor(unsigned* sum, const unsigned* array, long long pieces) {
  uint4 all = {};
  const long long step = (long long)gridDim.x * BLOCK * LOADS;
  for (long long first = (long long)blockIdx.x * BLOCK * LOADS + threadIdx.x; first < pieces; first += step) {
    uint4 got[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      got[i] = uint4{};
      if (first + i * BLOCK < pieces)
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(got[i].x), "=r"(got[i].y), "=r"(got[i].z), "=r"(got[i].w)
                     : "l"(array + 4 * (first + i * BLOCK)));
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      all = {all.x ^ got[i].x, all.y ^ got[i].y, all.z ^ got[i].z, all.w ^ got[i].w};
  }
  const unsigned own = __reduce_xor_sync(~0u, all.x ^ all.y ^ all.z ^ all.w);
  if (threadIdx.x % 32 == 0) atomicXor(sum, own);
}
)";

}  // namespace

kiln::KernelDefinition read_floor() {
  kiln::KernelDefinition k;
  k.name = "read_floor";
  k.source.text = kSource;
  k.entry = "read_floor";
  k.passing = kiln::Passing::constants;
  k.arguments = {"unsigned int*", "const unsigned int*", "long long"};
  k.space.parameter("BLOCK", {128, 256, 512, 1024}, 512)
      .parameter("LOADS", {1, 2, 4, 8}, 4)
      .parameter("ROUNDS", {0, 1, 2, 4},
                 0);  // blocks per multiprocessor; 0: a block for each piece
  k.problem_fields = {"pieces"};
  k.launch = k.by_name([](auto config, auto problem, const kiln::DeviceLimits& limits) {
    const std::int64_t tile = config["BLOCK"] * config["LOADS"];
    const std::int64_t tiles = (problem["pieces"] + tile - 1) / tile;
    const std::int64_t at_once = config["ROUNDS"] * limits.usable_multiprocessors();
    return kiln::Launch{{unsigned(at_once == 0 ? tiles : std::min(tiles, at_once))},
                        {unsigned(config["BLOCK"])}};
  });
  k.relations = {{2, "pieces"}};
  k.workload = k.by_field([](auto problem, kiln::Workload& w) {
    const std::int64_t pieces = problem["pieces"];
    w.zeroed<unsigned>(1);
    w.input<unsigned>(4 * static_cast<std::size_t>(pieces));
    w.scalar(static_cast<long long>(pieces));
  });
  k.reference = k.by_field([](auto problem, std::span<void* const> args) {
    const auto* array = static_cast<const unsigned*>(args[1]);
    auto* sum = static_cast<unsigned*>(args[0]);
    for (std::int64_t i = 0; i < 4 * problem["pieces"]; ++i) *sum ^= array[i];
  });
  k.tolerance = {0, 0};
  return k;
}
