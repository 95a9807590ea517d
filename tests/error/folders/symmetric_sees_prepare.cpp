// Memory of all ranks has nothing to do with manifests.
// like: runtime/symmetric/core.cpp
// expect: runtime/prepare/preparation.hpp
#ifdef MISTAKE
#include "runtime/prepare/preparation.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
