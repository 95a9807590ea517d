#include "runtime/background/make_engine.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/background/background_tuning.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

void check(const BackgroundOptions& options) {
  if (!(options.duty >= 0) || options.duty > 1)
    throw UserError(format("BackgroundOptions::duty is {}; a share of time from 0 to 1 is needed",
                           options.duty));
}

/// Times that were taken on one device must hold for the other.
void check_same_kind(const DeviceInfo& own, const DeviceInfo& other) {
  const auto refuse = [&](const std::string& why) {
    throw UserError(format("BackgroundOptions::device is {}: {}", other.id, why));
  };
  if (own.id == other.id) refuse("it is the runtime's own device; leave it empty to use windows");
  if (own.target != other.target)
    refuse(format("it runs {}, the runtime's device {}", other.target.arch, own.target.arch));
  for (const KeyField& field : own.fingerprint)
    if (const auto same = std::ranges::find(other.fingerprint, field.name, &KeyField::name);
        same == other.fingerprint.end() || same->value != field.value)
      refuse(format("it is of another kind: {} is {}, and {} for the runtime's device", field.name,
                    same == other.fingerprint.end() ? "unknown" : same->value, field.value));
  if (own.fingerprint.size() != other.fingerprint.size()) refuse("it is of another kind");
}

}  // namespace

std::shared_ptr<detail::Engine> make_engine(RuntimeOptions options, std::shared_ptr<Device> device,
                                            Builder::MakeCompiler make_compiler,
                                            std::shared_ptr<Device> background) {
  auto engine = std::make_shared<detail::Engine>(std::move(options), std::move(device),
                                                 std::move(make_compiler));
  check(engine->options().background);
  if (background) check_same_kind(engine->device()->info(), background->info());
  if (engine->options().mode == Mode::background)
    engine->set_background(std::make_unique<BackgroundTuning>(*engine, std::move(background)));
  return engine;
}

}  // namespace kiln::runtime
