#include "runtime/function/device.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Filling more would take longer on a host than what is timed.
constexpr std::size_t kMostHostFlush = std::size_t{64} << 20;

class FunctionCompiler final : public codegen::Compiler {
 public:
  codegen::CompilerIdentity identity() const override { return {"function", "1", ""}; }
  codegen::IncludeContext includes(const Target&) const override { return {}; }
  std::vector<std::string> options(const codegen::Source& source, const Target&) const override {
    return source.options;
  }
  bool worth_keeping() const noexcept override { return false; }

  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override {
    codegen::Binary binary;
    binary.target = target;
    binary.symbol = "function";
    const auto config = std::as_bytes(std::span(source.values));
    binary.code = std::vector<std::byte>(config.begin(), config.end());
    return binary;
  }
};

class FunctionInstance final : public LoadedKernel {
 public:
  FunctionInstance(const codegen::Binary& binary, const DynamicSpace& space)
      : config(values_in(binary)), text(space.describe(config)) {}
  const codegen::ResourceUsage& resources() const noexcept override { return nothing_; }

  const Values config;
  const std::string text;

 private:
  static Values values_in(const codegen::Binary& binary) {
    Values values(binary.code.size() / sizeof(std::int64_t));
    std::memcpy(values.data(), binary.code.data(), values.size() * sizeof(std::int64_t));
    return values;
  }

  codegen::ResourceUsage nothing_;
};

/// Runs what is not Kiln's: whatever comes out of it is an Error.
template <class Work>
auto translated(const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw EnvironmentError(error.what());
  } catch (...) {
    throw EnvironmentError("it threw something that is no std::exception");
  }
}

/// Sets a flag for as long as it lives.
class During {
 public:
  explicit During(bool& flag) : flag_(flag) { flag_ = true; }
  ~During() { flag_ = false; }
  During(const During&) = delete;
  During& operator=(const During&) = delete;

 private:
  bool& flag_;
};

/// The constraints are told the limits of the device underneath.
DynamicSpace with_limits(const DynamicSpace& space, const DeviceLimits& limits) {
  DynamicSpace result;
  const Values& defaults = space.default_config();
  for (std::size_t i = 0; i < space.parameters().size(); ++i) {
    const Parameter& p = space.parameters()[i];
    result.parameter(p.name, p.values, defaults[i], p.kind, p.names);
  }
  for (const Constraint& c : space.constraints())
    result.where(c.reason,
                 [holds = c.holds, limits](auto config, auto problem, const DeviceLimits&) {
                   return holds(config, problem, limits);
                 });
  result.default_on(Target::Kind::host, space.default_config(Target::Kind::host));
  return result;
}

}  // namespace

FunctionDevice::FunctionDevice(std::shared_ptr<Device> inner,
                               const detail::FunctionDescription& function)
    : inner_(std::move(inner)),
      info_(inner_->info()),
      compiler_(std::make_shared<FunctionCompiler>()),
      changes_state_(function.changes_state),
      replays_(function.graph_replay) {
  const DeviceLimits limits = info_.limits;
  info_.limits.l2_bytes = 0;  // no workload is to keep it cold
  info_.software.push_back({"device", info_.name});
  info_.software.insert(info_.software.end(), function.versions.begin(), function.versions.end());

  KernelDefinition& d = definition_;
  d.name = function.name;
  d.entry = "call";
  d.source.text = "// a function of the program's own\n";
  if (!function.version.empty()) d.source.options = {"version " + function.version};
  d.arguments = {"int*"};
  d.space = with_limits(function.space, limits);
  d.problem_fields = function.problem_fields;
  d.geometry = [](auto, auto) { return LaunchGeometry{}; };
  d.workload = [this](auto, Workload& w) {
    if (one_by_one())
      w.in_out<int>(1);
    else
      w.output<int>(1);
  };
  d.reference = [](auto, std::span<void* const> args) { *static_cast<int*>(args[0]) = 1; };
  if (function.cost)
    d.cost = [cost = function.cost, limits](auto config, auto problem, const DeviceLimits&) {
      return cost(config, problem, limits);
    };
}

void FunctionDevice::bind(const detail::FunctionCall& call, bool cold_cache, RankLog* log) {
  call_ = &call;
  log_ = log;
  cold_ = cold_cache && inner_->info().limits.l2_bytes > 0;
}

void FunctionDevice::unbind() {
  const Stream on = stream();
  const auto last = std::exchange(put_back_, {});
  flush_ = {};
  told_.clear();
  call_ = nullptr;
  log_ = nullptr;
  if (last) translated([&] { last(on); });
}

bool FunctionDevice::one_by_one() const noexcept { return cold_ || changes_state_; }

/// The first call finds things as they are; later ones find them as they were.
void FunctionDevice::put_back(Stream on) const {
  if (!changes_state_) return;
  translated([&] {
    if (put_back_)
      put_back_(on);
    else if (!(put_back_ = call_->snapshot(on)))
      throw UserError(format("function {}: what `snapshot` returned is empty", definition_.name));
  });
}

void FunctionDevice::flush(Stream on) const {
  if (!cold_) return;
  if (!flush_)
    flush_ = inner_->shares_cpu() ? CacheFlush(inner_, kMostHostFlush) : CacheFlush(inner_);
  flush_.run(on);
}

void FunctionDevice::run(const LoadedKernel& kernel, Stream on) const {
  const auto& instance = static_cast<const FunctionInstance&>(kernel);
  if (!call_) throw InternalError("function " + definition_.name + ": no call is bound");
  // Before the call: the last line of a log tells what did not come back.
  if (log_ && told_ != instance.text)
    log_->line(definition_.name + " calls with " + (told_ = instance.text));
  translated([&] { call_->run(instance.config, on); });
}

double FunctionDevice::time_call(const LoadedKernel& kernel) const {
  put_back(stream());
  return inner_->time(stream(), [&] { run(kernel, stream()); });
}

void FunctionDevice::try_call(const LoadedKernel& kernel) const {
  put_back(stream());
  run(kernel, stream());
  inner_->synchronize(stream());
  if (!call_->verify) return;
  bool right = false;
  std::string why = "the function's `verify` does not accept its results";
  try {
    right = call_->verify();
  } catch (const DeviceLost&) {
    throw;
  } catch (const std::exception& error) {
    why = error.what();
  }
  if (!right) throw WrongResult(why);
}

std::shared_ptr<LoadedKernel> FunctionDevice::load(const codegen::Binary& binary, unsigned) {
  return std::make_shared<FunctionInstance>(binary, definition_.space);
}

/// What is not being timed is the launch that verifies.
void FunctionDevice::launch(const LoadedKernel& kernel, const LaunchGeometry&, Stream on,
                            void** args) const {
  if (timing_)
    run(kernel, on);
  else
    try_call(kernel);
  **static_cast<int**>(args[0]) = 1;
}

double FunctionDevice::time(Stream on, const std::function<void()>& enqueue) {
  put_back(on);
  flush(on);
  const During timing(timing_);
  return inner_->time(on, enqueue);
}

std::unique_ptr<Replay> FunctionDevice::capture(Stream on, const std::function<void()>& enqueue) {
  if (!replays_ || one_by_one()) return nullptr;
  const During timing(timing_);
  return inner_->capture(on, enqueue);
}

}  // namespace kiln::runtime
