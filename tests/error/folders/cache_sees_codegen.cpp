// The cache knows nothing of kernels.
// like: cache/store.cpp
// expect: codegen/source.hpp
#ifdef MISTAKE
#include "codegen/source.hpp"
#else
#include "kiln/key.hpp"
#endif
