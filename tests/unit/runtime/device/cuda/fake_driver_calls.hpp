// What the fake driver's functions have in common.
#pragma once

#include <mutex>
#include <string>

#include "fake_driver.hpp"

extern FakeDriver* current_fake;

using Lock = std::lock_guard<std::mutex>;

// Opens each function: what was asked for, and whether it is refused.
#define ENTER(name)                     \
  const Lock lock(current_fake->mutex); \
  if (const CUresult refused = current_fake->enter(name); refused != CUDA_SUCCESS) return refused

// The same for what other threads' captures do not survive.
#define ENTER_UNSAFE(name) \
  ENTER(name);             \
  if (current_fake->breaks_captures(name)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED

template <class Set, class Handle>
CUresult destroy(Set& alive, Handle handle, const char* call) {
  const Lock lock(current_fake->mutex);
  const CUresult result = current_fake->enter(call);
  current_fake->breaks_captures(call);
  // Refused or not, the owner tried: that is what leaks() is to find out.
  if (alive.erase(handle) != 1)
    current_fake->misuse.push_back(std::string(call) + " of a dead handle");
  return result;
}

template <class Set>
void* create(Set& alive, const char* call) {
  current_fake->require_context(call);
  void* handle = current_fake->next_handle();
  alive.insert(handle);
  return handle;
}

/// Captures, graphs, and what these keep.
void add_graphs(kiln::runtime::DriverTable& t);
/// Memory of other devices and processes.
void add_peers(kiln::runtime::DriverTable& t);
