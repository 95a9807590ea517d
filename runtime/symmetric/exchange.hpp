// What ranks tell each other about symmetric memory: plain structs, gathered from all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kiln/communicator.hpp"
#include "runtime/device/peer_access.hpp"

namespace kiln::runtime {

/// A text that fits a message; longer ones are cut.
struct ShortText {
  std::array<char, 400> characters{};

  ShortText() = default;
  explicit ShortText(std::string_view text) noexcept;
  std::string text() const { return characters.data(); }
  bool empty() const noexcept { return characters[0] == '\0'; }
};

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

/// Gathers what all ranks say. After the first failure the communicator is aborted, and each
/// further call fails.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Communicator> ranks) : ranks_(std::move(ranks)) {}

  int rank() const noexcept { return ranks_->rank(); }
  int size() const noexcept { return ranks_->size(); }
  bool broken() const noexcept { return broken_; }
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
  bool broken_ = false;
};

}  // namespace kiln::runtime
