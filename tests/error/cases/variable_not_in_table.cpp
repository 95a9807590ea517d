// An environment variable that is read without being in the table of variables.
// expect: this_variable_is_not_in_kVariables
#include <kiln/detail/environment.hpp>

#include "case.hpp"

#ifdef MISTAKE
const auto value = kiln::detail::environment("KILN_CACHE_DIRECTORY");
#else
const auto value = kiln::detail::environment("KILN_CACHE_DIR");
#endif
