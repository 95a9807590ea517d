#include "runtime/prepare/instances.hpp"

#include <exception>
#include <utility>

#include "runtime/prepare/text_of.hpp"
#include "runtime/serve/provisions.hpp"

namespace kiln::runtime {

void Instances::want(const std::shared_ptr<ServedHandle>& handle, const Values& config,
                     const std::shared_ptr<SourcesRead>& sources) {
  if (seen_.insert({handle.get(), config}).second) order_.push_back({handle, config, sources});
}

Build Instances::build(const Wanted& wanted, Builder::Access access) {
  const std::optional<Digest> source = wanted.sources->get(engine_.records()).kernel;
  if (kept_ >= kMostKept)
    return engine_.builder().build(wanted.handle->definition(), wanted.config,
                                   engine_.device()->info().target, access, &source);
  Build made = wanted.handle->provisions().build_ahead(wanted.config, access, source);
  kept_ += made.bytes.size();
  return made;
}

bool Instances::build(std::size_t n, Builder::Access access) {
  const Wanted& wanted = order_[n];
  bool compiled = false;
  Lacking lacking;
  try {
    const Build made = build(wanted, access);
    if (const auto* failure = std::get_if<CompileFailure>(&made.outcome))
      lacking = CompileError(*failure).what();
    else if (const auto* missing = std::get_if<Missing>(&made.outcome))
      lacking = *missing;
    else
      compiled = made.compiled;
  } catch (...) {
    lacking = text_of(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  built_[{wanted.handle.get(), wanted.config}] = std::move(lacking);
  return compiled;
}

std::optional<Instances::Lacking> Instances::lacking(ServedHandle& handle,
                                                     const Values& config) const {
  const std::lock_guard lock(mutex_);
  const auto found = built_.find({&handle, config});
  return found == built_.end() ? std::nullopt : std::optional(found->second);
}

bool Instances::can_be_loaded(ServedHandle& handle, const Values& config) const {
  const std::lock_guard lock(mutex_);
  const auto found = built_.find({&handle, config});
  return found != built_.end() && std::holds_alternative<std::monostate>(found->second);
}

void Instances::forget() {
  for (const Wanted& wanted : order_) wanted.handle->provisions().forget_built();
}

}  // namespace kiln::runtime
