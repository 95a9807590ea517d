// Many pieces of work on many threads.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>

namespace kiln::runtime {

/// Calls `work(i)` for every i below `count`, in this order, on `threads` threads of its own, and
/// `progress(done)` on the calling one. Where the system starts fewer threads, those do the work,
/// or the calling one. Once `stop` is requested nothing more is begun. Returns
/// when all that was begun has ended. @throws the first exception of any call; then, too, nothing
/// more is begun.
void for_each_index(unsigned threads, std::size_t count, std::stop_token stop,
                    const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& progress);

/// Calls `work(begin, end)` for blocks that together are all places below `count`: on all cores if
/// there are several blocks, else on the calling thread. For arrays: a block takes long enough to
/// be worth a turn.
void for_each_block(std::size_t count,
                    const std::function<void(std::size_t begin, std::size_t end)>& work);

}  // namespace kiln::runtime
