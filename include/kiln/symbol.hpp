// Global variables (`__constant__`, `__device__`) of a kernel's source, as a program fills them.
//
//   auto blur = runtime.tuned(kernel);
//   blur.symbol("filter", weights);                  // for all its kernels, later ones too
//   const kiln::Symbol counter = blur.at(p).symbol("stats::counter");  // of this one
//   counter.write(0u);
//
// Each kernel that is loaded has its own copy of them: no two configs or problems share one, and
// what a candidate does to its copy while it is tuned affects no other kernel.
#pragma once

#include <cstddef>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "kiln/version.hpp"

namespace kiln {

namespace detail {

struct Access;

/// A contiguous range (a vector, an array, a span) of elements that can be copied as bytes.
template <class R>
concept Elements = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                   std::is_trivially_copyable_v<std::ranges::range_value_t<R>>;

/// The bytes of such elements, or of one value.
template <class T>
std::span<const std::byte> bytes_of(const T& data) {
  if constexpr (Elements<const T>) {
    return std::as_bytes(std::span(std::ranges::data(data), std::ranges::size(data)));
  } else {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                  "kiln: a variable's data are elements in one piece (a vector, an array, a span) "
                  "or a value that is copied as bytes");
    return std::as_bytes(std::span(&data, 1));
  }
}

}  // namespace detail

/// A global variable of one kernel that is ready to launch. A value, which keeps the kernel loaded.
/// Safe to use from several threads; concurrent writes are the caller's to coordinate.
class Symbol {
 public:
  /// The name with its namespaces, as in the source.
  const std::string& name() const noexcept { return name_; }
  /// The address in the device's memory, for the program's own copies.
  void* address() const noexcept { return address_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// Replaces the whole variable and waits until that is done. Launches that use it must have
  /// ended.
  /// @throws UserError when `data` has another size than the variable.
  template <class T>
  void write(const T& data) const {
    write_bytes(detail::bytes_of(data));
  }
  void write_bytes(std::span<const std::byte> data) const;

 private:
  friend detail::Access;

  Symbol(std::string name, void* address, std::size_t bytes, void* device,
         std::shared_ptr<const void> owner)
      : name_(std::move(name)),
        address_(address),
        bytes_(bytes),
        device_(device),
        owner_(std::move(owner)) {}

  std::string name_;
  void* address_;
  std::size_t bytes_;
  void* device_;
  std::shared_ptr<const void> owner_;  ///< the kernel's module, and the device with it
};

}  // namespace kiln
