// A product of matrices as libcublasLt describes it, with the library's algorithms for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/cublaslt.hpp"
#include "kiln/dynamic_space.hpp"
#include "kiln/target.hpp"
#include "runtime/choice/cublaslt_library.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime::cublaslt {

/// The alignment of A, B and C in bytes. The heuristic assumes no more, so all pointers with this
/// alignment can be launched.
inline constexpr std::uint32_t kAlignment = 16;

/// Destroys what it has with its library's function.
template <class T>
class Owned {
 public:
  explicit Owned(Status (*destroy)(T)) : destroy_(destroy) {}
  ~Owned() {
    if (what_) destroy_(what_);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* place() noexcept { return &what_; }
  T get() const noexcept { return what_; }

 private:
  T what_ = nullptr;
  Status (*destroy_)(T);
};

/// The library and its handle on one device. Thread-safe, as the library's handles are.
struct Session {
  /// @throws EnvironmentError
  Session(std::shared_ptr<const Library> library, std::shared_ptr<Device> device);
  const std::shared_ptr<const Library> library;
  const std::shared_ptr<Device> device;
  Owned<Handle> handle;
};

/// Why the library cannot multiply these 8-bit floats on such a device. Empty: they may be for it,
/// and so is a product of other types.
std::string refusal_of_8_bits(const CublasltGemm& gemm, const MatrixProduct& product,
                              const Target& target);

/// A product as the library describes it, which takes matrices by columns: C^T = op(B)^T * op(A)^T.
/// Thread-safe. Its functions throw EnvironmentError where the library fails.
class Product {
 public:
  /// @throws NotForProblem where the library does not know something that the product needs
  Product(std::shared_ptr<const Session> session, const CublasltGemm& gemm, const MatrixProduct& p);

  std::vector<Algo> heuristic(int top, std::uint64_t workspace) const;
  /// An algorithm by its public attributes; nothing if the library does not know some of them.
  std::optional<Algo> algo(std::span<const std::int64_t> description) const;
  std::optional<Values> describe(const Algo& algo) const;
  /// The bytes of workspace that it needs here; nothing: the library refuses it.
  std::optional<std::size_t> check(const Algo& algo) const;

  struct Arrays {
    void *c, *a, *b;
    const void *scale_a = nullptr, *scale_b = nullptr;  ///< if the product has them
  };
  /// Allocates nothing, and takes no lock but the library's.
  void multiply(const Algo& algo, const Arrays& arrays, void* workspace, std::size_t bytes,
                Stream stream) const;

  const Device& device() const noexcept { return *session_->device; }

 private:
  void lay(Owned<Layout>& layout, DataType type, std::int64_t rows, std::int64_t columns,
           std::int64_t leading, std::int64_t batch, std::int64_t stride) const;
  /// Fills in `desc`. It contains the addresses of scales, so each launch with scales has its own:
  /// other threads may launch other scales at the same time.
  void describe_operation(DescOpaque& desc, const void* scale_a, const void* scale_b) const;

  const std::shared_ptr<const Session> session_;
  const Library& library_;
  const DataType a_type_, b_type_, c_type_;
  const bool a_transposed_, b_transposed_, scaled_, fast_;
  /// Of launches without scales, and of the heuristic and the check, which are given a placeholder
  /// for each scale. The library only reads it, although its functions' types do not say so.
  mutable DescOpaque desc_;
  Owned<Layout> a_, b_, c_;
};

}  // namespace kiln::runtime::cublaslt
