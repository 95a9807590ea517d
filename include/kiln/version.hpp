// The version of Kiln that a program is compiled with.
#pragma once

#define KILN_VERSION_MAJOR 0
#define KILN_VERSION_MINOR 1
#define KILN_VERSION_PATCH 0
#define KILN_VERSION "0.1.0"

#if __cplusplus < 202002L
#error "Kiln needs C++20: compile with -std=c++20 or later"
#include "a missing file ends compiling here"  // instead of a hundred errors that follow from it
#endif
