// Communicators carry bytes, and know nothing of what ranks agree on.
// like: runtime/transport/threads.cpp
// expect: runtime/ranks/drive.hpp
#ifdef MISTAKE
#include "runtime/ranks/drive.hpp"
#else
#include "runtime/transport/rendezvous.hpp"
#endif
