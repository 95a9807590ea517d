#include "runtime/device/device.hpp"
#include "runtime/device/entry_arguments.hpp"

namespace kiln::runtime {
namespace {

/// For devices that have nothing to find out ahead of a launch.
class PlainLaunch final : public detail::BoundLaunch {
 public:
  PlainLaunch(const Device& device, const Module& kernel, EntryArguments arguments)
      : device_(device), kernel_(kernel), arguments_(std::move(arguments)) {}
  void operator()(const Launch& launch, Stream stream, void** args) const override {
    arguments_.with(args, nullptr, [&](void** entry_args) {
      device_.launch(kernel_, launch, stream, entry_args);
    });
  }

 private:
  const Device& device_;
  const Module& kernel_;
  const EntryArguments arguments_;
};

}  // namespace

std::shared_ptr<const detail::BoundLaunch> Device::fixed(const Module& kernel, const Launch&,
                                                         EntryArguments arguments) const {
  return std::make_shared<const PlainLaunch>(*this, kernel, std::move(arguments));
}

}  // namespace kiln::runtime
