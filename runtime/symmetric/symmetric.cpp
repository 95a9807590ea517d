#include "kiln/symmetric.hpp"

#include <utility>

#include "kiln/error.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/symmetric/core.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln {
namespace {

detail::SymmetricCore& held(const std::unique_ptr<detail::SymmetricCore>& core) {
  if (!core) throw UserError("symmetric memory was moved away");
  return *core;
}

}  // namespace

SymmetricMemory::SymmetricMemory(const Runtime& runtime, std::shared_ptr<Communicator> ranks,
                                 const SymmetricOptions& options)
    : core_(std::make_unique<detail::SymmetricCore>(detail::Access::engine(runtime)->device(),
                                                    std::move(ranks), options)) {}
SymmetricMemory::~SymmetricMemory() = default;
SymmetricMemory::SymmetricMemory(SymmetricMemory&&) noexcept = default;
SymmetricMemory& SymmetricMemory::operator=(SymmetricMemory&&) noexcept = default;

int SymmetricMemory::rank() const { return held(core_).rank(); }
int SymmetricMemory::size() const { return held(core_).size(); }
std::size_t SymmetricMemory::bytes() const { return held(core_).options().bytes; }
unsigned SymmetricMemory::flags() const { return held(core_).options().flags; }
void* SymmetricMemory::data(int rank) const { return held(core_).data(rank); }
const Peers* SymmetricMemory::peers() const { return held(core_).peers(); }
void SymmetricMemory::within(Deadline deadline, const std::function<void()>& work) const {
  held(core_).within(deadline, work);
}
void SymmetricMemory::abort() const noexcept {
  if (core_) core_->abort();
}
bool SymmetricMemory::aborted() const { return held(core_).aborted(); }
std::optional<PeerStall> SymmetricMemory::stalled() const { return held(core_).stalled(); }
void SymmetricMemory::barrier() const { held(core_).barrier(); }
void SymmetricMemory::reset() const { held(core_).reset(); }
std::function<void(const std::function<void()>&)> SymmetricMemory::guard(double asked) const {
  const double known = runtime::candidate_seconds(asked);
  const double seconds = known > 0 ? known : runtime::kLockstepCandidateSeconds;
  return [core = &held(core_), seconds](const std::function<void()>& launches) {
    core->guarded(seconds, launches);
  };
}
void SymmetricMemory::close() { held(core_).close(); }

}  // namespace kiln
