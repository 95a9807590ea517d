// The part of a tuned choice that does not depend on types. Implemented by the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/cublaslt.hpp"
#include "kiln/definition.hpp"
#include "kiln/device.hpp"
#include "kiln/space.hpp"
#include "kiln/tune.hpp"

namespace kiln {

struct ChoiceOptions;
struct AlternativeInfo;
struct ChosenAlternative;
class Runtime;

namespace detail {

class Engine;
class HandleCore;
struct ChoiceMade;

/// One alternative: a callable, a kernel or the library's product.
struct AlternativeDescription {
  using Span = std::span<const std::int64_t>;

  std::string name, version, numerics;
  bool capturable = true;
  std::function<std::string(Span problem, const DeviceInfo&)> supports;

  DynamicSpace knobs;  ///< of the callable
  std::function<std::size_t(Span knobs, Span problem)> workspace;
  /// `args[i]` points to the i-th argument.
  std::function<void(Span knobs, Span problem, Stream, void* workspace, void* const* args)> call;

  std::shared_ptr<const KernelDefinition> kernel;
  std::optional<CublasltGemm> cublaslt;
};

struct ChoiceDescription {
  std::string name;
  /// Tells choices of one name apart in records: element types, and what else they differ in.
  std::vector<std::string> types;
  /// What a workload and a reference are, for all alternatives. Its code, if it has any, is one of
  /// them.
  KernelDefinition operation;
  std::vector<AlternativeDescription> alternatives;

  /// @throws UserError naming what is missing or wrong
  void validate() const;
};

/// Thread-safe. Problems are as launches give them.
class ChoiceCore {
 public:
  using Span = std::span<const std::int64_t>;

  virtual ~ChoiceCore() = default;
  virtual void launch(Span problem, Stream stream, void** args) = 0;
  virtual void prepare(Span problem) = 0;
  virtual TuneResult tune(Span problem, const TuneOptions* options) = 0;
  virtual std::optional<TuneResult> known(Span problem) = 0;
  virtual ChosenAlternative chosen(Span problem) = 0;
  virtual std::vector<AlternativeInfo> alternatives(Span problem) = 0;

  // For budgets over many problems.
  virtual const ChoiceDescription& description() const noexcept = 0;
  virtual const Engine& engine() const noexcept = 0;
  struct KernelProblem {
    std::shared_ptr<HandleCore> kernel;
    Values problem;  ///< bucketed
  };
  /// What is tuned by itself before the alternatives meet. @throws what `supports` throws;
  /// UserError on a kernel that has nothing to do
  virtual std::vector<KernelProblem> kernels(Span problem) = 0;
  /// As tune(), without ranks, with kernels as they are in use. Where nothing is measured, what is
  /// on record. Launches do not tune afterwards, unless this throws or nothing of a kernel is in use.
  /// `options` are complete.
  virtual TuneResult meet(Span problem, const TuneOptions& options) = 0;
};

std::shared_ptr<ChoiceCore> make_choice_core(const Runtime& runtime, ChoiceDescription description,
                                             ChoiceOptions options);

}  // namespace detail
}  // namespace kiln
