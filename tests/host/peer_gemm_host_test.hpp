// What tests of GEMMs of ranks on the host share: ranks, and how the bodies for Hopper are
// emulated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gemm_tma_test.hpp"
#include "peer_gemm_test.hpp"

namespace kiln::test {

inline std::vector<std::string> hosts(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks), "host");
}

/// The config of one launch as an expression in a kernel's source.
inline std::string text_of(const templates::PeerGemm& c) {
  std::string text =
      "kiln::templates::PeerGemm{kiln::templates::GemmBody(" + std::to_string(int(c.body)) + ")";
  for (int value :
       {c.block_m, c.block_n, c.block_k, c.stages, c.tile_m, c.tile_n, c.vector, c.group_m})
    text += ", " + std::to_string(value);
  return text + ", kiln::templates::GemmCluster(" + std::to_string(int(c.cluster)) + "), " +
         (c.along_n ? "true" : "false") + ", true, " + std::to_string(c.chunks) + ", " +
         std::to_string(c.senders) + (c.late ? ", true}" : ", false}");
}

/// A map of a bf16 array, in boxes of `columns` x `rows`.
inline host_test::HostTensorMap map_of(const void* array, const std::vector<int>& sizes,
                                       int columns, int rows, int span = 128) {
  std::vector<std::uint64_t> size(sizes.begin(), sizes.end());
  return host_test::tensor_map(array, host_test::HostElement::bf16, size,
                               {unsigned(columns), unsigned(std::min(rows, sizes[1])), 1},
                               unsigned(span));
}

}  // namespace kiln::test
