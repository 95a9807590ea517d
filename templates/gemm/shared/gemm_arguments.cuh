// How an epilogue's arguments (kiln/epilogue.hpp) come from an entry's parameters to each of its
// calls.
#pragma once

#include "kiln/epilogue.hpp"

namespace kiln::templates {

/// Stands among the types of an epilogue's arguments for an epilogue::EveryElement<T> that configs
/// with GemmTma::fetches() fetch; their entries take a tensor map for it, others the pointer.
template <class T>
struct Fetched;
template <bool fetches, class P>
struct EntryArgumentOf {
  using Type = P;
};
template <class T>
struct EntryArgumentOf<false, Fetched<T>> {
  using Type = const T*;
};
/// What an entry takes for an argument of an epilogue's.
template <bool fetches, class P>
using EntryArgument = typename EntryArgumentOf<fetches, P>::Type;
/// An argument that is a map.
template <class Map>
struct FetchedBy {
  const Map& map;
};
/// What with_arguments() gets for an entry's parameter.
template <class P>
__device__ __forceinline__ P given(const P& parameter) {
  return parameter;
}
template <class Call, class Map>
struct FetchingEpilogue : Call {
  static constexpr bool kFetches = true;
  const Map& map;
};
/// Whether calls take the element that a kernel has fetched.
template <class Epilogue>
inline constexpr bool kFetches = requires { Epilogue::kFetches; };

/// What the call operator gets for its parameter Q.
template <class Q>
struct CallArgument {
  template <class P>
  __device__ __forceinline__ static const P& of(const P& parameter, float) {
    return parameter;
  }
  template <class Map>
  __device__ __forceinline__ static Q of(const FetchedBy<Map>&, float element) {
    return Q::fetched(element);
  }
};

/// A block of places of C.
struct GemmPlaces {
  int row, rows, column, columns;
};
/// A warp starts copying elements to the L2 cache.
template <class T>
__device__ __forceinline__ void prefetch_elements(const T* array, int count) {
#ifndef KILN_HOST_TARGET
  constexpr int kLine = 128 / sizeof(T);
  for (int i = static_cast<int>(threadIdx.x) % 32 * kLine; i < count; i += 32 * kLine)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(array + i));
#endif
}
/// The part of an argument that calls at the places read.
template <class Q>
struct PlacesArgument {
  template <class P>
  __device__ __forceinline__ static void prefetch(const P&, const GemmPlaces&) {}
};
template <class T>
struct PlacesArgument<epilogue::PerRow<T>> {
  __device__ __forceinline__ static void prefetch(const T* array, const GemmPlaces& at) {
    prefetch_elements(array + at.row, at.rows);
  }
};
template <class T>
struct PlacesArgument<epilogue::PerColumn<T>> {
  __device__ __forceinline__ static void prefetch(const T* array, const GemmPlaces& at) {
    prefetch_elements(array + at.column, at.columns);
  }
};

template <class Call, class Prefetch>
struct EpilogueCall : Call {
  Prefetch prefetch;
};
template <class Epilogue, class... Q, class... P>
__device__ __forceinline__ auto call_with(epilogue::detail::Parameters<Q...>, P... parameters) {
  const auto call = [=](float sum, const epilogue::Place& at, float fetched = 0) {
    return Epilogue{}(sum, at, CallArgument<Q>::of(parameters, fetched)...);
  };
  const auto prefetch = [=](const GemmPlaces& at) {
    (PlacesArgument<Q>::prefetch(parameters, at), ...);
  };
  return EpilogueCall<decltype(call), decltype(prefetch)>{call, prefetch};
}
/// What is read of arrays per row or column for these places of C, as far as they lie in it, is on
/// its way to the L2 cache while the block multiplies. Called by a warp.
template <class Epilogue>
__device__ __forceinline__ void prefetch_arguments(const Epilogue& epilogue, GemmPlaces at, int m,
                                                   int n) {
  if constexpr (requires { epilogue.prefetch(at); }) {
    at.rows = min(at.rows, m - at.row);
    at.columns = min(at.columns, n - at.column);
    epilogue.prefetch(at);
  }
}

template <class Call>
__device__ __forceinline__ const Call& fetching(const Call& call) {
  return call;
}
template <class Call, class P, class... Rest>
__device__ __forceinline__ auto fetching(const Call& call, const P&, const Rest&... rest) {
  return fetching(call, rest...);
}
template <class Call, class Map, class... Rest>
__device__ __forceinline__ auto fetching(const Call& call, const FetchedBy<Map>& by,
                                         const Rest&...) {
  return FetchingEpilogue<Call, Map>{call, by.map};
}

}  // namespace kiln::templates
