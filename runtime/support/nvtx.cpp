#include "runtime/support/nvtx.hpp"

#if defined(KILN_HAS_NVTX)

#include <nvtx3/nvToolsExt.h>

namespace kiln::runtime {

namespace {

/// Null if no tool listens. The first call looks for one.
nvtxDomainHandle_t domain() noexcept {
  static const nvtxDomainHandle_t kiln = nvtxDomainCreateA("kiln");
  return kiln;
}

}  // namespace

bool nvtx_listens() noexcept { return domain() != nullptr; }

void nvtx_push(const char* text) noexcept {
  if (!domain()) return;
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = text;
  nvtxDomainRangePushEx(domain(), &range);
}

void nvtx_pop() noexcept {
  if (domain()) nvtxDomainRangePop(domain());
}

}  // namespace kiln::runtime

#else

namespace kiln::runtime {

bool nvtx_listens() noexcept { return false; }
void nvtx_push(const char*) noexcept {}
void nvtx_pop() noexcept {}

}  // namespace kiln::runtime

#endif
