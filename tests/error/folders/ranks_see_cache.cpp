// The agreement knows no stores.
// like: runtime/ranks/drive.cpp
// expect: cache/store.hpp
#ifdef MISTAKE
#include "cache/store.hpp"
#else
#include "runtime/ranks/drive.hpp"
#endif
