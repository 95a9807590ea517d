// A report reads results and needs no handles.
// like: runtime/report/read.cpp
// expect: runtime/serve/engine.hpp
#ifdef MISTAKE
#include "runtime/serve/engine.hpp"
#else
#include "runtime/tune/result_json.hpp"
#endif
