// What host halves of gated kernels know of an activation of kiln/epilogue.hpp, or of one like
// those.
#pragma once

#include "kiln/epilogue.hpp"

#if !defined(KILN_DEVICE_PASS)
#include <string>
#include <string_view>
#include <type_traits>

namespace kiln::templates {

struct HostActivation {
  std::string type;       ///< in kernels' sources
  std::string_view word;  ///< in kernels' names; of an activation of your own empty
  float (*of)(float);

  /// Whether kernels have registers left beside it.
  bool takes_few_registers() const { return !word.empty() && word != "gelu"; }
};

/// `type`: of an activation of your own.
template <class Activation>
HostActivation host_activation(std::string type = {}) {
  using std::is_same_v;
  constexpr auto of = [](float x) { return Activation{}(x, epilogue::Place{}); };
  if constexpr (is_same_v<Activation, epilogue::Silu>)
    return {"kiln::epilogue::Silu", "silu", of};
  else if constexpr (is_same_v<Activation, epilogue::Gelu>)
    return {"kiln::epilogue::Gelu", "gelu", of};
  else if constexpr (is_same_v<Activation, epilogue::GeluTanh>)
    return {"kiln::epilogue::GeluTanh", "gelu_tanh", of};
  else if constexpr (is_same_v<Activation, epilogue::Relu>)
    return {"kiln::epilogue::Relu", "relu", of};
  else
    return {std::move(type), "", of};
}

/// Silu, Gelu, GeluTanh or Relu.
template <class Activation>
HostActivation known_activation() {
  using namespace epilogue;
  using std::is_same_v;
  static_assert(is_same_v<Activation, Silu> || is_same_v<Activation, Gelu> ||
                    is_same_v<Activation, GeluTanh> || is_same_v<Activation, Relu>,
                "Activation is Silu, Gelu, GeluTanh or Relu");
  return host_activation<Activation>();
}

}  // namespace kiln::templates
#endif
