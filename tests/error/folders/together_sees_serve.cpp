// Ranks that tune together know no handles.
// like: runtime/together/rank_work.cpp
// expect: runtime/serve/engine.hpp
#ifdef MISTAKE
#include "runtime/serve/engine.hpp"
#else
#include "runtime/together/rank_work.hpp"
#endif
