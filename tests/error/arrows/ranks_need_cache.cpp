// The agreement knows no stores, even if it could include them.
#include "cache/size.hpp"

bool needs_cache() { return kiln::cache::parse_size("1").has_value(); }
