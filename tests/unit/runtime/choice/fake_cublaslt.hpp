// A libcublasLt whose algorithms are those of a script. It multiplies on the host, by columns as
// the real one does. Of 8-bit floats it refuses what the real one refuses: other layouts than "TN",
// sizes that are no multiples of 16 bytes, e5m2 by e5m2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kiln::test {

struct FakeAlgorithm {
  std::uint32_t tile = 0;
  std::size_t workspace = 0;
  bool hidden = false;        ///< its public attributes do not restore it
  bool unreadable = false;    ///< the library does not tell them
  std::uint64_t variant = 0;  ///< what is not public
};

struct FakeProduct {
  int a = -1, b = -1, d = -1;  ///< cudaDataType_t
  const void *a_scale = nullptr, *b_scale = nullptr;
  int fast = 0;
};

struct FakeCublaslt {
  std::size_t version = 130000;
  std::vector<FakeAlgorithm> algorithms;  ///< best guess first; others are not known
  int create_status = 0, heuristic_status = 0, check_status = 0;
  bool knows_8_bits = true;             ///< and the attributes of their products
  std::function<void()> before_matmul;  ///< before it looks at anything that it was given
  std::function<void(std::uint32_t tile)> on_matmul;
  std::size_t largest_preference = 0;  ///< of workspaces, that the heuristic was asked for
  int handles = 0, descriptors = 0;    ///< that live
  /// What the heuristic, an algorithm's restoration, the check and a launch were told last. The
  /// library's A is the caller's B.
  FakeProduct asked, restored, checked, launched;
  std::uint64_t launched_variant = 0;
};

/// The library's script: `kiln_fake_cublaslt` in it.
using FakeCublasltScript = FakeCublaslt* (*)();

}  // namespace kiln::test
