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
template <class Epilogue, class... Q, class... P>
__device__ __forceinline__ auto call_with(epilogue::detail::Parameters<Q...>, P... parameters) {
  return [=](float sum, const epilogue::Place& at, float fetched = 0) {
    return Epilogue{}(sum, at, CallArgument<Q>::of(parameters, fetched)...);
  };
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
