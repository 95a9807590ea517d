// How much the handles of a runtime may hold, and how what leaves them is unloaded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kiln/runtime_options.hpp"
#include "runtime/device/cuda/reaper.hpp"
#include "runtime/device/device.hpp"
#include "runtime/serve/handle_modules.hpp"

namespace kiln::runtime {

class Serving;

/// Of one runtime. Thread-safe. A handle asks it to keep to the bound, and it asks all handles to
/// let problems leave; what leaves a handle comes back here, to be destroyed.
class Bounds {
 public:
  /// `serving` must outlive it.
  Bounds(const RuntimeOptions& options, std::shared_ptr<Device> device, const Serving& serving);

  /// How long handles keep what they have loaded: always, where graphs are captured and the program
  /// has set no bound, and so does not say that it tells its graphs what to keep.
  HandleModules::Keep keep_modules() const noexcept { return keep_; }
  /// The bound on each handle, as RuntimeOptions::max_problems; 0: none.
  std::size_t max_problems() const noexcept { return max_problems_; }
  /// The bound on all modules, as RuntimeOptions::max_module_bytes; 0: none.
  std::uint64_t max_module_bytes() const noexcept { return max_module_bytes_; }
  /// Lets problems leave where more is loaded than that. On a sealed runtime nothing leaves, nor
  /// while a Hold lives.
  void keep_to_module_bytes();
  /// While it lives nothing leaves for its bytes, so that what is being timed stays loaded. The
  /// last one to end keeps to the bound again. The bounds must outlive it.
  class Hold {
   public:
    explicit Hold(Bounds& bounds) noexcept : bounds_(bounds) { ++bounds_.held_; }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold();

   private:
    Bounds& bounds_;
  };
  /// Destroys modules, on another thread where that may wait for running kernels.
  void dispose(std::shared_ptr<const void> what) noexcept;

 private:
  const std::shared_ptr<Device> device_;
  const Serving& serving_;
  const HandleModules::Keep keep_;
  const std::size_t max_problems_;
  const std::uint64_t max_module_bytes_;
  std::atomic<int> held_ = 0;
  std::mutex evicting_;
  std::int64_t stuck_at_ = 0;  ///< bytes over the bound when nothing could leave
  /// What the reaper is yet to destroy.
  const std::shared_ptr<std::atomic<int>> disposing_ = std::make_shared<std::atomic<int>>(0);
  Reaper reaper_;
};

}  // namespace kiln::runtime
