// What was at work when the compiler could not go on is leaked on purpose (codegen/llvm/guard.hpp):
// here LeakSanitizer asks what it need not tell. The other programs that compile are told on.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libLLVM\nleak:libclang-cpp\nleak:libkiln_llvm\n";
}
