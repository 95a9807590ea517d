// What entries take for what a caller passes: tensor maps in the place of pointers, and the
// workspace behind all arguments.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
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
  /// @pre `other` was never used
  EntryArguments(EntryArguments&& other) noexcept;
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

  /// The same without a workspace, in the caller's own array, which is changed.
  template <class F>
  void in_place(void** args, F use) const {
    const Encoded* known = encoded_.load(std::memory_order_acquire);
    if (!known) [[unlikely]]
      known = &encode(args);
    for (std::size_t i = 0; i < known->count; ++i) {
      void*& arg = args[known->arguments[i]];
      if (pointer_in(arg) != known->addresses[i]) return in_place_moved(*known, i, args, use);
      arg = known->map(i);
    }
    use(args);
  }

 private:
  static constexpr std::size_t kMaxMaps = 8;
  static constexpr std::size_t kFewArguments = 32;

  /// One launch's own copies, where it needs any; not initialised.
  struct EncodedMaps {
    alignas(EncodedMap) std::byte bytes[kMaxMaps * sizeof(EncodedMap)];
  };
  /// Never changed once published. All that a launch with the same pointers looks at comes first:
  /// behind a driver's call every cache line costs.
  struct Encoded {
    std::uint32_t count;
    std::array<std::uint16_t, kMaxMaps> arguments;
    std::array<void*, kMaxMaps> addresses;
    std::array<std::int16_t, kMaxMaps> address_at;  ///< its place in the map; -1: it has none
    std::array<EncodedMap, kMaxMaps> maps;

    void* map(std::size_t i) const noexcept { return const_cast<EncodedMap*>(&maps[i]); }
  };

  static void* pointer_in(const void* arg) noexcept {
    void* pointer;
    std::memcpy(&pointer, arg, sizeof pointer);
    return pointer;
  }

  /// Copies maps from the first one on whose pointer differs. It is not inlined, so that launches
  /// that need no copies have no room for them on the stack.
  template <class F>
  [[gnu::noinline]] void in_place_moved(const Encoded& known, std::size_t first, void** args,
                                        F use) const {
    EncodedMaps own;
    for (std::size_t i = first; i < known.count; ++i) {
      void*& arg = args[known.arguments[i]];
      void* const address = pointer_in(arg);
      arg = address == known.addresses[i] ? known.map(i) : moved(known, i, address, own);
    }
    use(args);
  }

  void* moved(const Encoded& known, std::size_t map, void* address, EncodedMaps& own) const {
    if (reinterpret_cast<std::uintptr_t>(address) % kTensorMapAlignment != 0) [[unlikely]]
      not_aligned(known.arguments[map]);
    EncodedMap& copy = reinterpret_cast<EncodedMap*>(own.bytes)[map];
    std::memcpy(static_cast<void*>(&copy), &known.maps[map], sizeof copy);
    if (const int at = known.address_at[map]; at >= 0) [[likely]]
      std::memcpy(copy.bytes.data() + at, &address, sizeof address);
    else
      device_.move(copy, address);
    return &copy;
  }

  void fill(void** entry_args, EncodedMaps& own, void* const* args,
            const Workspace* workspace) const;
  const Encoded& encode(void* const* args) const;
  [[noreturn]] static void not_aligned(std::size_t argument);

  mutable std::atomic<const Encoded*> encoded_{nullptr};  ///< published once
  const Device& device_;
  std::vector<detail::PlannedMap> maps_;
  const std::size_t count_;
};

}  // namespace kiln::runtime
