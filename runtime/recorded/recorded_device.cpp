#include "runtime/recorded/recorded_device.hpp"

#include <charconv>

#include "kiln/detail/format.hpp"
#include "runtime/recorded/recorded_kernel.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// A stateless generator: the n-th number of a stream, without a lock.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class RecordedCompiler final : public codegen::Compiler {
 public:
  explicit RecordedCompiler(RecordedSpace space) : space_(std::move(space)) {}

  codegen::CompilerIdentity identity() const override {
    return {"recorded", "1", to_hex(space_.digest())};
  }
  codegen::IncludeContext includes(const Target&) const override { return {}; }
  std::vector<std::string> options(const codegen::Source& source, const Target&) const override {
    return source.options;
  }

  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override {
    const auto index = recorded_index(space_, source.entry);
    if (!index || source.text.find(recorded_mark(space_)) == std::string::npos)
      throw UserError(
          format("the device recorded:{} answers for the kernel recorded_kernel(space) of that "
                 "file, not for {}",
                 space_.file().string(), source.label));
    const CandidateStatus status = space_.status(*index);
    if (status == CandidateStatus::compile_failed || status == CandidateStatus::violates_constraint)
      return CompileFailure{source.label, "recorded", source.options,
                            "recorded as '" + space_.invalidity(*index) + "'"};
    codegen::Binary binary;
    binary.target = target;
    binary.symbol = "recorded";
    const std::string code = std::to_string(*index);
    const auto bytes = std::as_bytes(std::span(code));
    binary.code = std::vector<std::byte>(bytes.begin(), bytes.end());
    return binary;
  }

 private:
  RecordedSpace space_;
};

class RecordedInstance final : public Module {
 public:
  explicit RecordedInstance(std::size_t number) : index(number) {}
  const codegen::ResourceUsage& resources() const noexcept override { return nothing_; }
  bool has_variables() const noexcept override { return false; }

  const std::size_t index;

 private:
  codegen::ResourceUsage nothing_;
};

}  // namespace

RecordedDevice::RecordedDevice(RecordedSpace space, std::uint64_t seed)
    : space_(std::move(space)),
      seed_(seed),
      clock_(std::make_shared<VirtualClock>(0)),
      compiler_(std::make_shared<RecordedCompiler>(space_)),
      launches_(space_.size()) {
  info_.id = "recorded:" + space_.file().string();
  info_.name = "recorded " + space_.name();
  info_.target = {Target::Kind::host, "recorded"};
  info_.limits.memory_bytes = std::int64_t{1} << 30;
  info_.fingerprint = {{"recorded space", to_hex(space_.digest())}};
}

std::shared_ptr<Module> RecordedDevice::load(const codegen::Binary& binary, const Launch&,
                                             std::span<const Launch>) {
  std::size_t index = space_.size();
  const auto* text = reinterpret_cast<const char*>(binary.code.data());
  std::from_chars(text, text + binary.code.size(), index);
  if (binary.symbol != "recorded" || index >= space_.size())
    throw EnvironmentError("load: the binary was not made for this recorded device");
  return std::make_shared<RecordedInstance>(index);
}

void RecordedDevice::launch(const Module& kernel, const Launch&, Stream, void** args) const {
  const std::size_t index = static_cast<const RecordedInstance&>(kernel).index;
  const CandidateStatus status = space_.status(index);
  auto* out = *static_cast<float**>(args[0]);
  const int count = *static_cast<const int*>(args[1]);
  const bool wrong = status == CandidateStatus::wrong_result;
  if (status != CandidateStatus::measured && !wrong)
    throw EnvironmentError("launch: recorded as '" + space_.invalidity(index) + "'");
  for (int i = 0; i < count; ++i)
    out[i] = wrong ? -1.0f : recorded_output(static_cast<std::size_t>(i));
  const auto samples = space_.samples(index);
  if (samples.empty()) return;
  const std::uint64_t nth = launches_[index].fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t draw = mix(mix(seed_ + 0x9e3779b97f4a7c15 * (index + 1)) + nth);
  clock_->fetch_add(samples[draw % samples.size()], std::memory_order_relaxed);
}

double RecordedDevice::time(Stream, const std::function<void()>& enqueue) {
  const double start = clock_->load();
  enqueue();
  return clock_->load() - start;
}

namespace {

class VirtualStopwatch final : public Stopwatch {
 public:
  explicit VirtualStopwatch(std::shared_ptr<VirtualClock> clock) : clock_(std::move(clock)) {}
  void start(Stream) override { start_ = clock_->load(); }
  void stop(Stream) override { stop_ = clock_->load(); }
  double seconds() override { return stop_ - start_; }

 private:
  std::shared_ptr<VirtualClock> clock_;
  double start_ = 0, stop_ = 0;
};

}  // namespace

std::unique_ptr<Stopwatch> RecordedDevice::stopwatch() {
  return std::make_unique<VirtualStopwatch>(clock_);
}

std::shared_ptr<RecordedDevice> make_recorded_device(const std::string& file) {
  return std::make_shared<RecordedDevice>(RecordedSpace(file), 1);
}

}  // namespace kiln::runtime
