// Device memory from the program instead of the driver: an engine that has reserved the GPU serves
// Kiln from its pool.
//
//   kiln::RuntimeOptions options;
//   options.allocator = {.allocate = [&](std::size_t bytes) { return pool.allocate(bytes); },
//                        .release = [&](void* memory, std::size_t bytes) {
//                          pool.release(memory, bytes);
//                        }};
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kiln/version.hpp"

namespace kiln {

/// Serves all memory that a runtime allocates on a cuda or host device: workspaces, arrays, the
/// data of tunings, what empties caches. Communicators allocate theirs themselves. Both functions
/// may be called by several threads at once, on a CUDA device with its context current. `allocate`
/// may be called while a handle's launches that need a workspace wait for it, so it must not wait
/// for a lock that the program holds while it launches or refreshes a graph. Launches on a stream
/// that is being captured do not call them; other threads may meanwhile. They must stay callable as
/// long as the runtime and everything made from it exist: handles, arrays, graphs that
/// Runtime::retain or Runtime::refresh was called for. What such a graph kept is released on a
/// thread of Kiln's own.
struct Allocator {
  /// At least `bytes` > 0 bytes of the device's memory, aligned to 256 bytes, usable at once on
  /// every stream. Null or an exception means that there is none: while tuning, the candidate is
  /// then not tried; elsewhere it is an EnvironmentError.
  std::function<void*(std::size_t bytes)> allocate{};
  /// Takes back memory that `allocate` returned for the same number of bytes. Launches of the
  /// program that use it may still be running, unless the program has waited for them. Must not
  /// throw.
  std::function<void(void* memory, std::size_t bytes)> release{};
  /// Bytes that `allocate` can still give: a tuning then asks before it allocates, and leaves
  /// RuntimeOptions::reserve_bytes of them. Empty: unknown, and only `allocate` itself refuses.
  std::function<std::uint64_t()> available{};

  explicit operator bool() const noexcept { return allocate || release || available; }
};

}  // namespace kiln
