// One of several ways to do an operation (choice.hpp): a callable with or without knobs, a kernel
// with its space, or cuBLASLt's product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/cublaslt.hpp"
#include "kiln/detail/choice_core.hpp"
#include "kiln/kernel.hpp"
#include "kiln/named.hpp"

namespace kiln {

/// What a callable alternative is told of a call, besides its arguments.
template <Reflected Problem>
struct AlternativeCall {
  const Problem& problem;  ///< of these arguments, not its bucket
  Named knobs;             ///< `how.knobs["blocks"]`
  void* workspace =
      nullptr;  ///< as many bytes as Alternative::workspace says, of this stream alone
};

template <Reflected Problem, class Signature>
struct Alternative;

/// An aggregate: `call`, `kernel` or `cublaslt`, and what applies.
template <Reflected Problem, class... Args>
struct Alternative<Problem, void(Args...)> {
  std::string name{};  ///< letters, digits, '_'; its name in switches and records
  /// Names the implementation: measurements of another version are not used.
  std::string version{};
  /// Why it cannot do a problem on this device; empty: it can. Pure. It need not repeat what a
  /// kernel's constraints or cuBLASLt's heuristic refuse.
  std::function<std::string(const Problem&, const DeviceInfo&)> supports{};
  /// Puts the operation on the stream. Callable from several threads. What it throws makes it a
  /// failed candidate while it is tuned, and is passed on otherwise.
  std::function<void(const AlternativeCall<Problem>&, Stream, Args...)> call{};
  /// Of `call`: every config that its constraints allow is tried. An alternative with over 10,000
  /// configs, constraints not counted, takes no part.
  DynamicSpace knobs{};
  /// Bytes of device memory that `call` needs for a problem, aligned to kWorkspaceAlignment.
  std::function<std::size_t(Named knobs, const Problem&)> workspace{};
  /// Whether it may be called on a stream that is being captured. A launch of one that may not is a
  /// CaptureError there.
  bool capturable = true;
  /// Alternatives of one class give bit for bit the same results for the same arguments, whatever
  /// their knobs. Empty: nothing is promised. A deterministic runtime holds candidates to it: one
  /// with other bits than the first of its class that the tuning has found right is
  /// `wrong_result`.
  std::string numerics{};
  std::shared_ptr<const KernelDefinition> kernel{};
  std::optional<CublasltGemm> cublaslt{};
};

/// A kernel as an alternative. It is tuned, and has its records, as if it were used by itself.
template <class Config, class Problem, class... Args>
Alternative<Problem, void(Args...)> alternative(
    const Kernel<Config, Problem, void(Args...)>& kernel, std::string name = "template") {
  return {.name = std::move(name),
          .kernel = std::make_shared<const KernelDefinition>(kernel.definition())};
}

namespace detail {

template <class Problem, class... Args>
AlternativeDescription describe(const Alternative<Problem, void(Args...)>& from) {
  using Span = std::span<const std::int64_t>;
  AlternativeDescription a;
  a.name = from.name;
  a.version = from.version;
  a.numerics = from.numerics;
  a.capturable = from.capturable;
  a.kernel = from.kernel;
  a.cublaslt = from.cublaslt;
  a.knobs = from.knobs;
  if (from.supports)
    a.supports = [f = from.supports](Span p, const DeviceInfo& device) {
      return f(from_values<Problem>(p), device);
    };
  std::vector<std::string> names;
  for (const Parameter& knob : from.knobs.parameters()) names.push_back(knob.name);
  if (from.workspace)
    a.workspace = [f = from.workspace, names](Span knobs, Span p) {
      return f(Named(names, knobs), from_values<Problem>(p));
    };
  if (from.call)
    a.call = [f = from.call, names](Span knobs, Span p, Stream stream, void* workspace,
                                    void* const* args) {
      const Problem problem = from_values<Problem>(p);
      const AlternativeCall<Problem> how{problem, Named(names, knobs), workspace};
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        f(how, stream, *static_cast<std::remove_cvref_t<Args>*>(args[I])...);
      }(std::index_sequence_for<Args...>{});
    };
  return a;
}

}  // namespace detail

}  // namespace kiln
