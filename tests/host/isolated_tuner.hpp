// A tuner of one process on the host, without a store, with the worker that a test asks for.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "kiln_test.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/host/host_device.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuner.hpp"
#include "trouble.hpp"

namespace trouble {

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

inline kiln::TuneOptions tuning(double candidate_seconds) {
  kiln::TuneOptions options;
  options.strategy = "exhaustive";
  options.candidate_seconds = candidate_seconds;
  return options;
}

struct Tuner {
  std::shared_ptr<kiln::runtime::Device> device = kiln::runtime::make_host_device();
  std::shared_ptr<kiln::cache::Store> store = std::make_shared<kiln::cache::Store>([] {
    kiln::StoreOptions o;
    o.disk = false;
    return o;
  }());
  kiln::runtime::Builder builder{store, kiln::runtime::compiler_maker(0), {}, 1};

  /// `more`: what it sets replaces what `options` say.
  kiln::TuneResult tune(const kiln::KernelDefinition& kernel,
                        const kiln::runtime::WorkerOptions& more, const kiln::TuneOptions& options,
                        const kiln::runtime::TuneContext& context = {}) {
    kiln::runtime::WorkerOptions worker = kiln::runtime::worker_options(options);
    worker.journal = more.journal;
    worker.memory = more.memory;
    worker.available = more.available;
    if (more.most_seconds > 0) worker.most_seconds = more.most_seconds;
    if (!more.executable.empty()) worker.executable = more.executable;
    const kiln::Values problem{kProblem};
    kiln::runtime::KernelMaker maker(kernel, problem, device, builder, options.seed, nullptr,
                                     worker);
    REQUIRE(maker.isolate());
    return kiln::runtime::tune(maker, options, context).result;
  }
};

}  // namespace trouble
