#include "runtime/tune/deterministic.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/tune/best_guess.hpp"

namespace kiln::runtime {

namespace {

using Span = std::span<const std::int64_t>;
using Numerics = std::function<std::string(Span, Span)>;

constexpr const char* kReason =
    "in deterministic mode its results have the bits of the untuned config's";
constexpr std::size_t kMostRemembered = 4096;  ///< problems; then all are forgotten

bool same_bits(const Numerics& numerics, Span config, Span other, Span problem) {
  if (std::equal(config.begin(), config.end(), other.begin(), other.end())) return true;
  if (!numerics) return false;
  const std::string name = numerics(config, problem);
  return !name.empty() && name == numerics(other, problem);
}

/// The untuned configs of a kernel. Thread-safe.
class UntunedConfigs {
 public:
  UntunedConfigs(std::shared_ptr<const KernelDefinition> kernel, DeviceInfo device)
      : kernel_(std::move(kernel)), device_(std::move(device)) {}

  /// The pick walks through the space, and constraints ask for each config of it.
  Values of(Span problem) {
    Values key(problem.begin(), problem.end());
    {
      const std::scoped_lock lock(mutex_);
      if (const auto found = known_.find(key); found != known_.end()) return found->second;
    }
    Values config = untuned_config(*kernel_, problem, device_);
    const std::scoped_lock lock(mutex_);
    if (known_.size() >= kMostRemembered) known_.clear();
    return known_.try_emplace(std::move(key), std::move(config)).first->second;
  }

 private:
  const std::shared_ptr<const KernelDefinition> kernel_;
  const DeviceInfo device_;
  std::mutex mutex_;
  std::map<Values, Values> known_;
};

}  // namespace

KernelDefinition deterministic(const KernelDefinition& kernel, const DeviceInfo& device) {
  const auto original = std::make_shared<const KernelDefinition>(kernel);
  const auto untuned = std::make_shared<UntunedConfigs>(original, device);
  KernelDefinition restricted = kernel;
  restricted.deterministic = true;
  restricted.untuned_by_cost = nullptr;
  restricted.default_for = [untuned](Span problem, const DeviceLimits&) {
    return untuned->of(problem);
  };
  restricted.space.where(kReason, [untuned, numerics = kernel.numerics](Span config, Span problem,
                                                                        const DeviceLimits&) {
    return same_bits(numerics, config, untuned->of(problem), problem);
  });
  // What defines the right results may compute other bits.
  if (restricted.device_reference && !restricted.device_reference->kernel)
    restricted.device_reference->kernel = original;
  return restricted;
}

detail::FunctionDescription deterministic(const detail::FunctionDescription& function,
                                          const Target& target) {
  detail::FunctionDescription restricted = function;
  restricted.deterministic = true;
  restricted.space.where(
      kReason, [numerics = function.numerics, base = function.space.default_config(target)](
                   Span knobs, Span problem, const DeviceLimits&) {
        return same_bits(numerics, knobs, base, problem);
      });
  return restricted;
}

KernelDefinition as_served(KernelDefinition kernel, std::optional<bool> of_runtime,
                           const DeviceInfo& device) {
  if (kernel.deterministic || of_runtime.value_or(false)) return deterministic(kernel, device);
  return kernel;
}

bool deterministic_from(std::string_view value) {
  if (value == "1") return true;
  if (value == "0") return false;
  throw UserError(detail::format("KILN_DETERMINISTIC is '{}': it must be 0 or 1", value));
}

bool is_deterministic(std::optional<bool> asked) {
  if (asked) return *asked;
  const std::string_view value = detail::environment("KILN_DETERMINISTIC");
  return !value.empty() && deterministic_from(value);
}

}  // namespace kiln::runtime
