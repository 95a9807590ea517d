// A runtime as a whole: its living handles and choices, and whether it is sealed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kiln/prepare.hpp"
#include "runtime/serve/served_choice.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// Thread-safe.
class Serving {
 public:
  /// A handle of a sealed runtime is sealed before it is launched.
  void add(const std::shared_ptr<ServedHandle>& handle);
  void add(const std::shared_ptr<ServedChoice>& choice);
  /// In the order in which they were made.
  std::vector<std::shared_ptr<ServedHandle>> handles() const;
  std::vector<std::shared_ptr<ServedChoice>> choices() const;
  /// The living handle that this is; null: it is not one of them, nor are a region's functions.
  std::shared_ptr<ServedHandle> find(const detail::TunableHandle& handle) const;

  void seal(OnUnprepared unprepared);
  void unseal() noexcept { phase_.store(kOpen, std::memory_order_release); }
  /// What happens to unprepared launches; nothing: the runtime is open. Takes no lock.
  std::optional<OnUnprepared> sealed() const noexcept {
    const int phase = phase_.load(std::memory_order_acquire);
    if (phase == kOpen) return {};
    return static_cast<OnUnprepared>(phase);
  }
  /// Takes in what has been loaded since seal(), where the runtime is sealed.
  void renew();

  /// One preparation at a time. Move-only.
  class Preparing {
   public:
    Preparing(Preparing&& other) noexcept : serving_(std::exchange(other.serving_, nullptr)) {}
    Preparing& operator=(Preparing&&) = delete;
    ~Preparing() {
      if (serving_) serving_->preparing_ = false;
    }

   private:
    friend Serving;
    explicit Preparing(Serving& serving) : serving_(&serving) {}
    Serving* serving_;
  };
  /// @throws UserError while another one is going on
  Preparing begin_preparing();

 private:
  static constexpr int kOpen = -1;

  mutable std::mutex mutex_;  ///< of the next two, and of changes of the phase
  std::vector<std::weak_ptr<ServedHandle>> handles_;
  std::vector<std::weak_ptr<ServedChoice>> choices_;
  std::atomic<int> phase_{kOpen};
  std::atomic<bool> preparing_{false};
};

}  // namespace kiln::runtime
