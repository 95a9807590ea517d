// How fast anything can be that must read an array once: a kernel that does nothing else, tuned.
#pragma once

#include "kiln/kiln.hpp"

/// Arguments: the exclusive or of all words, which is added to what `sum` holds; the array; its
/// pieces of 16 bytes. The array is aligned to 16 bytes.
kiln::KernelDefinition read_floor();
