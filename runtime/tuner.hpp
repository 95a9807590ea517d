// From a kernel and a problem to a winner: propose, reject, compile, verify, time, decide.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kiln/definition.hpp"
#include "kiln/log.hpp"
#include "kiln/tune.hpp"
#include "runtime/builder.hpp"
#include "runtime/device.hpp"

namespace kiln::runtime {

/// A problem with nothing to do.
bool empty(const LaunchGeometry& geometry) noexcept;

/// Why a launch with this geometry cannot work on the device; empty when it can.
std::string geometry_problem(const LaunchGeometry& geometry, const DeviceLimits& limits);

/// Tunes one bucketed problem. The default is measured first and wins unless it is clearly beaten.
/// `prior`, if any, is an earlier result whose candidates need not be tried again.
/// @throws UserError on a space or workload that makes no sense, TuningFailedError when no
/// candidate can be used, EnvironmentError when the device or compiler fails as a whole.
TuneResult tune(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                const std::shared_ptr<Device>& device, Builder& builder, const TuneOptions& options,
                const TuneResult* prior, const LogSink& log);

}  // namespace kiln::runtime
