// What tunes behind the launches knows nothing of manifests.
// like: runtime/background/commit.cpp
// expect: runtime/prepare/preparation.hpp
#ifdef MISTAKE
#include "runtime/prepare/preparation.hpp"
#else
#include "runtime/serve/engine.hpp"
#endif
