// What the activations of gated kernels are called: in kernels' sources, and in kernels' names.
#pragma once

#include <string_view>
#include <type_traits>

#include "kiln/epilogue.hpp"

namespace kiln::templates {

struct ActivationNames {
  const char* type;
  std::string_view word;
};
template <class Activation>
constexpr ActivationNames activation_names() {
  if constexpr (std::is_same_v<Activation, epilogue::Silu>)
    return {"kiln::epilogue::Silu", "silu"};
  else if constexpr (std::is_same_v<Activation, epilogue::Gelu>)
    return {"kiln::epilogue::Gelu", "gelu"};
  else if constexpr (std::is_same_v<Activation, epilogue::GeluTanh>)
    return {"kiln::epilogue::GeluTanh", "gelu_tanh"};
  else
    return {"kiln::epilogue::Relu", "relu"};
}

}  // namespace kiln::templates
