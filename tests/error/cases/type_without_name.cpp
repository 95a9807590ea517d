// A type whose name in kernel sources is not known.
// expect: DeviceName
#include "case.hpp"

struct Params {
  int a;
};
#ifndef MISTAKE
template <>
struct kiln::DeviceName<Params> {
  static constexpr const char* value = "Params";
};
#endif
std::string name = kiln::device_name<const Params*>();
