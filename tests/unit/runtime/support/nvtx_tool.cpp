// A profiler in small: NVTX loads it by NVTX_INJECTION64_PATH, and it notes the ranges of domains.
#include <mutex>
#include <string>

#include <nvtx3/nvToolsExt.h>

namespace {

std::mutex mutex;
std::string noted;

void note(const std::string& line) {
  std::lock_guard lock(mutex);
  noted += line + "\n";
}

nvtxDomainHandle_t create(const char* name) {
  note(std::string("domain ") + name);
  return reinterpret_cast<nvtxDomainHandle_t>(&noted);
}

int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  note(std::string("push ") + range->message.ascii);
  return 0;
}

int pop(nvtxDomainHandle_t) {
  note("pop");
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
    return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&create);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

/// What was noted so far.
extern "C" __attribute__((visibility("default"))) const char* kiln_test_noted() {
  return noted.c_str();
}
