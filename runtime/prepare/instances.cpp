#include "runtime/prepare/instances.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/prepare/text_of.hpp"
#include "runtime/serve/provisions.hpp"

namespace kiln::runtime {

void Instances::keep(const Instance& instance, const Build& made) {
  if (kept_ >= kMostKept) return;
  kept_ += made.bytes.size();
  instance.handle->provisions().keep_built(
      instance.config, std::get<std::shared_ptr<const codegen::Binary>>(made.outcome));
}

void Instances::find(const PrepareItem& item, const Values& config) {
  const Instance instance{item.handle, config};
  {
    const std::lock_guard lock(mutex_);
    if (!asked_.insert(instance).second) return;
  }
  try {
    const auto found =
        engine_.builder().find(item.kernel(), config, engine_.device()->info().target,
                               item.sources->get(engine_.records()).kernel);
    if (!found || !found->binary()) return;
    keep(instance, *found);
  } catch (const std::exception&) {
    return;
  }
  const std::lock_guard lock(mutex_);
  known_.try_emplace(instance);
}

void Instances::want(const PrepareItem& item, const Values& config) {
  const Instance instance{item.handle, config};
  if (!wanted_.insert(instance).second) return;
  order_.push_back({instance, item.sources});
  const std::lock_guard lock(mutex_);
  keys_.add(known_.contains(instance) ? "found" : "waiting");
}

bool Instances::build(std::size_t n, Builder::Access access) {
  const auto& [instance, sources] = order_[n];
  {
    const std::lock_guard lock(mutex_);
    if (known_.contains(instance)) return false;
  }
  bool compiled = false;
  const char* became = "failed";
  Lacking lacking;
  try {
    const std::optional<Digest> source = sources->get(engine_.records()).kernel;
    const Build made = engine_.builder().build(instance.handle->definition(), instance.config,
                                               engine_.device()->info().target, access, &source);
    if (const auto* failure = std::get_if<CompileFailure>(&made.outcome)) {
      lacking = CompileError(*failure).what();
    } else if (const auto* missing = std::get_if<Missing>(&made.outcome)) {
      lacking = *missing;
      became = "missing";
    } else {
      compiled = made.compiled;
      became = compiled ? "compiled" : "found";
      keep(instance, made);
    }
  } catch (...) {
    lacking = text_of(std::current_exception());
  }
  keys_.add(became);
  keys_.add("waiting", -1);
  const std::lock_guard lock(mutex_);
  known_[instance] = std::move(lacking);
  return compiled;
}

std::optional<Instances::Lacking> Instances::lacking(const PrepareItem& item,
                                                     const Values& config) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find({item.handle, config});
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

bool Instances::all_found() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(
      order_, [&](const Wanted& wanted) { return known_.contains(wanted.instance); });
}

bool Instances::can_be_loaded(const PrepareItem& item, const Values& config) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find({item.handle, config});
  return found != known_.end() && std::holds_alternative<std::monostate>(found->second);
}

void Instances::forget() {
  for (const Instance& instance : asked_) instance.handle->provisions().forget_built();
  for (const Wanted& wanted : order_) wanted.instance.handle->provisions().forget_built();
}

}  // namespace kiln::runtime
