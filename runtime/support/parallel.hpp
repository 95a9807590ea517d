// Many pieces of work on many threads.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>

namespace kiln::runtime {

/// Calls `work(i)` for every i below `count`, in this order, on `threads` threads of its own, and
/// `progress(done)` on the calling one. Once `stop` is requested nothing more is begun. Returns
/// when all that was begun has ended. @throws the first exception of any call; then, too, nothing
/// more is begun.
void for_each_index(unsigned threads, std::size_t count, std::stop_token stop,
                    const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& progress);

}  // namespace kiln::runtime
