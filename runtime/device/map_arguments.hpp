// Tensor maps in place of the pointers that a caller passes.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kiln/detail/launch_plan.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// What the entry of one kernel takes for one problem. The maps are made at the first use, for the
/// pointers of that use; a later one that passes the same pointers takes them as they are, without
/// a copy, and another one copies those that differ and puts its pointers in. Thread-safe; takes no
/// lock; allocates nothing after the first use for kernels of up to 32 arguments.
class MapArguments {
 public:
  /// `device` must outlive this. `arguments`: how many the kernel has.
  MapArguments(const Device& device, std::vector<detail::PlannedMap> maps, std::size_t arguments);
  ~MapArguments();
  MapArguments(const MapArguments&) = delete;
  MapArguments& operator=(const MapArguments&) = delete;

  /// Calls `use(void** entry_arguments)`; they last as long as the call.
  /// @throws UserError naming the argument whose pointer is not aligned, EnvironmentError when the
  /// device refuses a map
  template <class F>
  void with(void* const* args, F&& use) const {
    EncodedMaps own;
    if (count_ <= kFewArguments) {
      void* few[kFewArguments];
      fill(few, own, args);
      use(few);
    } else {
      std::vector<void*> many(count_);
      fill(many.data(), own, args);
      use(many.data());
    }
  }

 private:
  static constexpr std::size_t kMaxMaps = 8;
  static constexpr std::size_t kFewArguments = 32;

  /// One launch's own copies, where it needs any; not initialised.
  struct EncodedMaps {
    alignas(EncodedMap) std::byte bytes[kMaxMaps * sizeof(EncodedMap)];
  };
  struct Encoded;

  void fill(void** entry_args, EncodedMaps& own, void* const* args) const;
  const Encoded& encode(void* const* args) const;
  EncodedMap* moved(const Encoded& known, std::size_t map, void* address, EncodedMaps& own) const;

  const Device& device_;
  const std::vector<detail::PlannedMap> maps_;
  const std::size_t count_;
  mutable std::atomic<const Encoded*> encoded_{nullptr};  ///< published once
};

}  // namespace kiln::runtime
