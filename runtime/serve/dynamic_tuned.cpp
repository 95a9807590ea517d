// Handles of kernels described at run time.
#include "kiln/handle.hpp"
#include "kiln/runtime.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln {

void runtime::launch(detail::HandleCore& handle, Stream stream, const ProblemValues& problem,
                     void** args) {
  const KernelDefinition& d = handle.definition();
  const ProblemValues bucket = d.bucketed(problem);
  handle.check(problem, args);
  const detail::Held ready = handle.at(bucket, stream);
  ready->launch(d.launch(ready->config, problem, handle.limits()), problem, stream, args);
}

DynamicTuned DynamicTuned::with_config(const Values& config) const {
  return DynamicTuned(core_->with_config(config));
}

Verification DynamicTuned::verify(const Values& problem, std::uint64_t seed) const {
  return core_->verify(problem, seed);
}

DynamicTuned Runtime::tuned(const KernelDefinition& definition) const {
  definition.validate();
  return DynamicTuned(core(definition));
}

void DynamicTuned::launch(Stream stream, const ProblemValues& problem, void** args) const {
  runtime::launch(*core_, stream, problem, args);
}

DynamicBound DynamicTuned::at(const ProblemValues& problem) const {
  const KernelDefinition& d = core_->definition();
  detail::Ready ready = core_->at(d.bucketed(problem));
  const Launch launch = d.launch(ready->config, problem, core_->limits());
  return {core_, std::move(ready), launch, problem};
}

WorkspaceSize DynamicTuned::workspace_size(const ProblemValues& problem) const {
  return core_->workspace_size(*core_->at(core_->definition().bucketed(problem)), problem);
}

void DynamicTuned::use_workspace(Stream stream, void* memory, const WorkspaceSize& size) const {
  core_->use_workspace(stream, memory, size);
}

void DynamicTuned::release_workspace(Stream stream) const { core_->release_workspace(stream); }

std::optional<Missing> DynamicTuned::prepare(const Values& problem) const {
  return core_->prepare(core_->definition().bucketed(problem));
}

TuneResult DynamicTuned::tune(const Values& problem) const { return core_->tune(problem, nullptr); }

TuneResult DynamicTuned::tune(const Values& problem, const TuneOptions& options) const {
  return core_->tune(problem, &options);
}

std::optional<TuneResult> DynamicTuned::known(const Values& problem) const {
  return core_->known(core_->definition().bucketed(problem));
}

Values DynamicTuned::config(const Values& problem) const {
  return core_->at(core_->definition().bucketed(problem))->config;
}

}  // namespace kiln
