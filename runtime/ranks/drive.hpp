// Performs what the agreement asks for, on a communicator and the clock.
#pragma once

#include <functional>
#include <span>

#include "kiln/communicator.hpp"
#include "kiln/log.hpp"
#include "runtime/ranks/agreement.hpp"

namespace kiln::runtime::ranks {

struct Tasks {
  /// Times or builds candidates until `deadline`. If it throws, this rank is in trouble: the others
  /// are told, and all ranks use the defaults.
  std::function<Worked(const Work& work, Deadline deadline)> work;
  /// Writes the records of these problems. Exceptions are only logged: a plan needs no disk.
  std::function<void(std::span<const std::size_t> problems, const Plan& plan)> save;
  LogSink log{};
};

/// Blocks until it is decided. Rank, size, nonce and `settles` of the input are filled in. Aborts
/// the communicator when the conclusion says that it is broken.
/// @throws UserError on input that makes no sense; nothing else.
Conclusion agree(Communicator& communicator, AgreementInput input, const Tasks& tasks);

}  // namespace kiln::runtime::ranks
