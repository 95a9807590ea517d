// Elements of another type than the array's.
// expect: upload
#include "case.hpp"

#ifdef MISTAKE
using Element = double;
#else
using Element = float;
#endif
void fill(kiln::Array<float>& array, const std::vector<Element>& from) { array.upload(from); }
