// Templates are a client of the public API.
// like: templates/elementwise/elementwise.cpp
// expect: codegen/source.hpp
#ifdef MISTAKE
#include "codegen/source.hpp"
#else
#include "kiln/kiln.hpp"
#endif
