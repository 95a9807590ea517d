#include "runtime/device/device.hpp"

namespace kiln::runtime {
namespace {

/// For devices that have nothing to find out ahead of a launch.
class PlainLaunch final : public FixedLaunch {
 public:
  PlainLaunch(const Device& device, const Module& kernel, const Launch& launch)
      : device_(device), kernel_(kernel), launch_(launch) {}
  void operator()(Stream stream, void** args) const override {
    device_.launch(kernel_, launch_, stream, args);
  }

 private:
  const Device& device_;
  const Module& kernel_;
  const Launch launch_;
};

}  // namespace

std::unique_ptr<FixedLaunch> Device::fixed(const Module& kernel, const Launch& launch) const {
  return std::make_unique<PlainLaunch>(*this, kernel, launch);
}

}  // namespace kiln::runtime
