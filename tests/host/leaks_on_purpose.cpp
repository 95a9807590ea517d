// What was at work when the compiler could not go on is leaked on purpose (codegen/llvm/guard.hpp).
// So LeakSanitizer does not report these leaks here; it does in other programs that compile.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libLLVM\nleak:libclang-cpp\nleak:libkiln_llvm\n";
}
