// Code generation knows nothing of the store.
// like: codegen/instance.cpp
// expect: cache/store.hpp
#ifdef MISTAKE
#include "cache/store.hpp"
#else
#include "codegen/source.hpp"
#endif
