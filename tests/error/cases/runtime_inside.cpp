// What stands behind a runtime is nothing that a program may have.
// expect: private
#include "case.hpp"

#ifdef MISTAKE
kiln::Runtime open(std::shared_ptr<kiln::detail::Engine> engine) { return kiln::Runtime(engine); }
#else
kiln::Runtime open(kiln::RuntimeOptions options) { return kiln::Runtime(options); }
#endif
