// Reflection of config and problem structs. This header is read by the host compiler and by kernel
// compilers; for the latter the macros vanish and nothing else is included.
//
//   struct VectorAdd {
//     int block, items;
//     constexpr int tile() const { return block * items; }
//   };
//   KILN_CONFIG(VectorAdd, block, items)  // every field, in order of declaration
#pragma once

#if defined(KILN_DEVICE_PASS)

#define KILN_CONFIG(...)
#define KILN_PROBLEM(...)

#else

#include "kiln/reflect.hpp"

/// Makes `Type` a config: an aggregate whose fields are integers, bools or enums, all listed, in
/// order of declaration. Use at global scope (or the namespace's end with a qualified name).
#define KILN_CONFIG(Type, ...)                          \
  BOOST_HANA_ADAPT_STRUCT(Type, __VA_ARGS__);           \
  static_assert(::kiln::detail::kListsEveryField<Type>, \
                "KILN_CONFIG must list every field of " #Type);
/// Makes `Type` a problem; same rules.
#define KILN_PROBLEM(Type, ...)                         \
  BOOST_HANA_ADAPT_STRUCT(Type, __VA_ARGS__);           \
  static_assert(::kiln::detail::kListsEveryField<Type>, \
                "KILN_PROBLEM must list every field of " #Type);

#endif
