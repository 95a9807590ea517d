// A kernel whose arguments have types by name alone. The shipped kernels are defined as such, so
// that few types of kernels are compiled; typed ones are made of them where programs ask for some.
//
//   detail::UntypedKernel<VectorAdd, Elementwise> add{{.name = "vector_add", .space = space}};
//   add.computed_by(add_on_host<float>);
//   add.definition();
//   add.typed<VectorAddKernel<float>>([](float*, const float*, int n) { return Elementwise{n}; });
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kiln/kernel.hpp"

namespace kiln::detail {

/// Arguments as KernelDefinition::reference has them.
struct HostArguments {
  std::span<void* const> at;

  template <class T>
  T get(std::size_t argument) const {
    return host_argument<T>(at[argument]);
  }
};

template <Reflected Config, Reflected Problem>
struct UntypedKernel : Kernel<Config, Problem, void(HostArguments)> {
  /// Name the types of the arguments.
  std::span<std::string (*const)()> arguments{};

  /// Sets the arguments' types and the reference: a function, or a lambda that is not generic.
  template <class... Args>
  void computed_by(void (*f)(Args...)) {
    compute<Args...>(f);
  }
  template <class F>
  void computed_by(F f) {
    compute_by(f, &F::operator());
  }

  KernelDefinition definition() const {
    KernelDefinition d = without_signature(*this, arguments);
    using Span = std::span<void* const>;
    if (this->reference)
      d.reference = [f = this->reference](std::span<const std::int64_t>, Span args) { f({args}); };
    if (this->check)
      d.check = [f = this->check](std::span<const std::int64_t> p, Span got, Span expected) {
        return f(from_values<Problem>(p), {HostArguments{got}}, {HostArguments{expected}});
      };
    d.validate();
    return d;
  }

  /// The same for programs, whose compilers know the arguments' types.
  template <class Type>
  Type typed(decltype(Type::problem) problem_of) const {
    Type kernel{.name = this->name,
                .source = this->source,
                .entry = this->entry,
                .config_type = this->config_type,
                .types = this->types,
                .space = this->space,
                .configs = this->configs,
                .launch = this->launch,
                .maps = this->maps,
                .workspace = this->workspace,
                .steps = this->steps,
                .problem = problem_of,
                .relations = this->relations,
                .bucket = this->bucket,
                .workload = this->workload,
                .draws = this->draws,
                .device_reference = this->device_reference,
                .tolerance = this->tolerance,
                .data_version = this->data_version,
                .flops = this->flops,
                .bytes = this->bytes,
                .cost = this->cost,
                .untuned_by_cost = this->untuned_by_cost,
                .default_for = this->default_for,
                .numerics = this->numerics,
                .deterministic = this->deterministic};
    add_functions(kernel);
    return kernel;
  }

 private:
  template <class... Args, class F>
  void compute(F f) {
    arguments = kDeviceNames<Args...>;
    this->reference = [f](HostArguments given) {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        f(given.get<Args>(I)...);
      }(std::index_sequence_for<Args...>{});
    };
  }
  template <class F, class... Args>
  void compute_by(const F& f, void (F::*)(Args...) const) {
    compute<Args...>(f);
  }

  template <class T>
  static void* address_of(const T& argument) {
    if constexpr (std::is_pointer_v<T>)
      return const_cast<std::remove_const_t<std::remove_pointer_t<T>>*>(argument);
    else
      return const_cast<T*>(&argument);
  }
  template <class... Args>
  void add_functions(Kernel<Config, Problem, void(Args...)>& typed) const {
    if (this->reference)
      typed.reference = [f = this->reference](Args... args) {
        void* const at[] = {address_of(args)...};
        f({at});
      };
    if (this->check)
      typed.check = [f = this->check](const Problem& p, const std::tuple<Args...>& got,
                                      const std::tuple<Args...>& expected) {
        const auto addresses = [](const Args&... args) { return std::array{address_of(args)...}; };
        const auto of_got = std::apply(addresses, got), right = std::apply(addresses, expected);
        return f(p, {HostArguments{of_got}}, {HostArguments{right}});
      };
  }
};

}  // namespace kiln::detail
