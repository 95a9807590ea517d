// The data of a problem that is to be tuned next, drawn while another one is measured.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kiln/definition.hpp"
#include "runtime/measure/trial_data.hpp"

namespace kiln::runtime {

/// Has data of one problem at a time, because they are large. Thread-safe.
class DrawnData {
 public:
  using Draws = std::future<std::vector<KernelData>>;

  DrawnData() = default;
  DrawnData(const DrawnData&) = delete;
  DrawnData& operator=(const DrawnData&) = delete;

  /// Begins to draw what make_draws() gives, on a thread of its own. What was drawn before and not
  /// taken is dropped. Nothing is begun while that is still being drawn, or if memory is short. The
  /// kernel must live until the data are taken or dropped.
  void begin(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
             std::uint64_t seed);
  /// Returns what was begun for this kernel, problem and seed, which may still be at work or may
  /// have thrown; not valid if nothing was begun.
  Draws take(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
             std::uint64_t seed);
  /// Waits for what is being drawn.
  void drop();

 private:
  bool is_for(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
              std::uint64_t seed) const;

  std::mutex mutex_;
  const KernelDefinition* kernel_ = nullptr;
  Values problem_;
  std::uint64_t seed_ = 0;
  std::int64_t largest_ = 0;  ///< bytes that a problem's data had
  Draws draws_;
};

}  // namespace kiln::runtime
