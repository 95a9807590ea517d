// What ranks tell each other about symmetric memory: plain structs, gathered from all ranks.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/device/peer_access.hpp"
#include "runtime/support/rank_exchange.hpp"

namespace kiln::runtime {

/// A process, and the machine it runs on. A fork is another process.
struct ProcessIdentity {
  std::uint64_t machine = 0, process = 0, id = 0;
  bool operator==(const ProcessIdentity&) const = default;
  static ProcessIdentity mine();
};

/// What a rank asks for.
struct SymmetricRequest {
  std::uint64_t bytes = 0;
  std::uint32_t flags = 0;
  std::array<char, 12> device{};  ///< its kind: `host`, `cuda`
  ProcessIdentity process{};
  ShortText mistake{};  ///< why this rank cannot take part; empty: it can
};

/// What it has, and how others get at it.
struct SymmetricOffer {
  ShortText failure{};   ///< empty: none
  std::uint64_t id = 0;  ///< in its process
  PeerHandle data{}, control{};
};

}  // namespace kiln::runtime
