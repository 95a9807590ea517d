// Loads and stores with cache hints: the hints mean nothing here.
#pragma once

#include "kiln_device.h"

#define __KILN_LOAD(name)                  \
  template <class T>                       \
  __kiln_inline T name(const T* address) { \
    return *address;                       \
  }
__KILN_LOAD(__ldg)
__KILN_LOAD(__ldcg)
__KILN_LOAD(__ldca)
__KILN_LOAD(__ldcs)
__KILN_LOAD(__ldlu)
__KILN_LOAD(__ldcv)
#undef __KILN_LOAD

template <class T>
struct __kiln_same {
  using type = T;
};
#define __KILN_STORE(name)                                                   \
  template <class T>                                                         \
  __kiln_inline void name(T* address, typename __kiln_same<T>::type value) { \
    *address = value;                                                        \
  }
__KILN_STORE(__stwb)
__KILN_STORE(__stcg)
__KILN_STORE(__stcs)
__KILN_STORE(__stwt)
#undef __KILN_STORE

extern "C" {
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
}
