// Ranges of the NVTX domain `kiln`, as profilers show them. Without a profiler, or where Kiln was
// built without NVTX's headers, nothing happens.
#pragma once

namespace kiln::runtime {

/// Whether a tool has loaded itself into this process (NVTX_INJECTION64_PATH) to hear of ranges.
bool nvtx_listens() noexcept;
/// Begins a range of this thread; ranges nest.
void nvtx_push(const char* text) noexcept;
void nvtx_pop() noexcept;

}  // namespace kiln::runtime
