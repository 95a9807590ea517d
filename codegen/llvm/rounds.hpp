// Loops inside a thread that the threads of a row turn together, round by round.
#pragma once

#include <llvm/IR/Function.h>

namespace kiln::codegen::llvm_host {

/// LLVM vectorises innermost loops, so a loop inside a thread hides the loop over threads. Where
/// the two may change places with profit, this puts a *pause* at the loop's head and one behind its
/// exit: a suspension that does not wait for other threads and is handled inside the region's
/// function. There all threads come to the head first; then each round turns the loop once for
/// every thread that waits there; then all go on behind it.
///
/// No thread does anything else or in another order than before; only the order among threads
/// changes, of which a kernel may assume nothing between two barriers. A loop qualifies only if no
/// thread can reach it twice between two suspensions. Then all threads that wait at its head have
/// turned it equally often, and a counter that grows by a fixed step is `start + round * step`.
void pause_in_loops(llvm::Function& kernel);

}  // namespace kiln::codegen::llvm_host
