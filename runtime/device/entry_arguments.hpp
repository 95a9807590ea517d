// What entries take for what a caller passes: tensor maps in the place of pointers, and the
// workspace behind all arguments.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kiln/detail/launch_plan.hpp"
#include "kiln/workspace.cuh"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// What the entry of one kernel takes for one problem. The maps are made at the first use, for the
/// pointers of that use; a later one that passes the same pointers takes them as they are, without
/// a copy, and another one copies those that differ and puts its pointers in. Thread-safe; takes no
/// lock; allocates nothing after the first use for kernels of up to 31 arguments, and without maps
/// nothing at all.
class EntryArguments {
 public:
  /// `device` must outlive this. `arguments`: how many the kernel has for its callers.
  EntryArguments(const Device& device, std::vector<detail::PlannedMap> maps, std::size_t arguments);
  ~EntryArguments();
  EntryArguments(const EntryArguments&) = delete;
  EntryArguments& operator=(const EntryArguments&) = delete;

  /// Calls `use(void** entry_arguments)`; they last as long as the call. `workspace`: what entries
  /// take as their last parameter; null: nothing.
  /// @throws UserError naming the argument whose pointer is not aligned, EnvironmentError when the
  /// device refuses a map
  template <class F>
  void with(void* const* args, const Workspace* workspace, F&& use) const {
    if (maps_.empty() && !workspace) return use(const_cast<void**>(args));
    EncodedMaps own;
    if (count_ < kFewArguments) {
      void* few[kFewArguments];
      fill(few, own, args, workspace);
      use(few);
    } else {
      std::vector<void*> many(count_ + 1);
      fill(many.data(), own, args, workspace);
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

  void fill(void** entry_args, EncodedMaps& own, void* const* args,
            const Workspace* workspace) const;
  const Encoded& encode(void* const* args) const;
  EncodedMap* moved(const Encoded& known, std::size_t map, void* address, EncodedMaps& own) const;

  const Device& device_;
  const std::vector<detail::PlannedMap> maps_;
  const std::size_t count_;
  mutable std::atomic<const Encoded*> encoded_{nullptr};  ///< published once
};

}  // namespace kiln::runtime
