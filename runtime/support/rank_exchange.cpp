#include "runtime/support/rank_exchange.hpp"

#include "kiln/error.hpp"

namespace kiln::runtime {

void RankExchange::gather(std::span<const std::byte> mine, std::span<std::byte> all,
                          Deadline deadline) {
  if (broken_) throw EnvironmentError(subject_ + ": its ranks have lost each other before");
  const Communicator::Failure failure = ranks_->gather(mine, all, deadline);
  if (!failure) return;
  broken_ = true;
  ranks_->abort(*failure);
  throw EnvironmentError(subject_ + ": " + failure->describe());
}

}  // namespace kiln::runtime
