// What ranks tell each other outside of an agreement: plain structs, gathered from all ranks.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/communicator.hpp"
#include "runtime/support/fixed_text.hpp"
#include "runtime/support/foreign_exception.hpp"

namespace kiln::runtime {

/// What a rank says in one of these messages.
using ShortText = FixedText<400>;

/// Calls `step`, and returns what it throws as a text; empty: nothing.
template <class Step>
std::string failure_of(const Step& step) {
  try {
    step();
    return {};
  } catch (const std::exception& error) {
    return *error.what() ? error.what() : "unknown";
  } catch (...) {
    return kForeignException;
  }
}

/// Gathers what all ranks say. After the first failure the communicator is aborted, and each
/// further call fails.
class RankExchange {
 public:
  /// @param subject what it is about, for errors
  RankExchange(std::shared_ptr<Communicator> ranks, std::string subject)
      : ranks_(std::move(ranks)), subject_(std::move(subject)) {}

  int rank() const noexcept { return ranks_->rank(); }
  int size() const noexcept { return ranks_->size(); }
  auto turn() { return ranks_->turn(); }

  /// By rank. @throws EnvironmentError naming the ranks at fault
  template <class Message>
  std::vector<Message> all(const Message& mine, Deadline deadline) {
    static_assert(std::is_trivially_copyable_v<Message>);
    std::vector<Message> messages(static_cast<std::size_t>(size()));
    gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(messages)),
           deadline);
    return messages;
  }

 private:
  void gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline deadline);

  std::shared_ptr<Communicator> ranks_;
  std::string subject_;
  bool broken_ = false;
};

}  // namespace kiln::runtime
