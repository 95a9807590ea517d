// Preparing knows the background by its interface alone.
// like: runtime/prepare/prepare.cpp
// expect: runtime/background/background_tuning.hpp
#ifdef MISTAKE
#include "runtime/background/background_tuning.hpp"
#else
#include "runtime/serve/background.hpp"
#endif
