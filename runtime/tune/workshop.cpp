#include "runtime/tune/workshop.hpp"

#include <utility>

#include "runtime/worker/isolation.hpp"

namespace kiln::runtime {

namespace {

RuntimeOptions with_mode(RuntimeOptions options) {
  if (!options.mode) options.mode = Mode::tune_now;
  return options;
}

}  // namespace

Workshop::Workshop(RuntimeOptions options, std::shared_ptr<cache::Store> store,
                   std::shared_ptr<Device> device, Builder::MakeCompiler make_compiler,
                   std::shared_ptr<Telemetry> telemetry, unsigned local_ranks)
    : options_(with_mode(std::move(options))),
      isolation_(isolation_mode(options_.isolation)),
      store_(store ? std::move(store) : std::make_shared<cache::Store>(options_.store)),
      device_(std::move(device)),
      telemetry_(std::move(telemetry)),
      builder_(std::make_shared<Builder>(
          store_, std::move(make_compiler), options_.log, options_.compile_threads,
          may_compile() ? Builder::Access::compile : Builder::Access::look_up, telemetry_,
          local_ranks)),
      records_(std::make_shared<RecordBook>(store_, device_, *builder_, may_compile())),
      trusted_references_(std::make_shared<TrustedReferences>()) {
  device_->set_reserve(options_.reserve_bytes.value_or(0));
}

Workshop::Workshop(const Workshop& other, OwnTurn)
    : options_(other.options_),
      isolation_(other.isolation_),
      store_(other.store_),
      device_(other.device_),
      telemetry_(other.telemetry_),
      builder_(other.builder_),
      records_(other.records_),
      trusted_references_(other.trusted_references_) {}

}  // namespace kiln::runtime
