// The agreement knows a communicator by its interface alone.
// like: runtime/ranks/drive.cpp
// expect: runtime/transport/rendezvous.hpp
#ifdef MISTAKE
#include "runtime/transport/rendezvous.hpp"
#else
#include "runtime/ranks/drive.hpp"
#endif
