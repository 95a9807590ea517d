// The bench for a kernel's problem, wherever its trials run: its draws as one.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/device.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/measure/trial_data.hpp"

namespace kiln::runtime {

/// A trial is loaded, verified and timed on every draw; its time is their weighted mean. Most
/// kernels have one draw.
class ProblemBench : public TrialBench {
 public:
  virtual std::size_t draws() const noexcept = 0;
  virtual const KernelData& data(std::size_t draw) const noexcept = 0;
  /// Has a trial define what is right, for all draws. Why it cannot, and nothing is defined then;
  /// empty: it has. @throws DeviceLost
  virtual std::string trust(const Trial& trial) = 0;
  /// As DeviceWorkload::take_warnings, of all draws.
  virtual std::vector<std::string> take_warnings() { return {}; }
  /// As KernelBench::module_of, for the first draw.
  virtual std::shared_ptr<Module> module_of(const Rig& rig) const = 0;
  void keep_in_step(GuardedLaunches* launches) override { in_step_ = launches != nullptr; }

 protected:
  /// `text` with the draw that it is about; empty stays empty.
  std::string of_draw(std::size_t draw, std::string text) const;
  /// Draw by draw, up to the first that throws; in step all of them, and then the first error is
  /// thrown.
  void for_each_draw(const std::function<void(std::size_t draw)>& work) const;
  /// verify() draw by draw, up to the first that is wrong; in step all of them.
  Verdict verify_each(const std::function<Verdict(std::size_t draw)>& verify) const;

 private:
  bool in_step_ = false;
};

/// The data of all draws of a problem. @throws as make_data
std::vector<KernelData> make_draws(const KernelDefinition& kernel,
                                   std::span<const std::int64_t> problem, std::uint64_t seed);
/// The same, with what is right, unless a reference on the device is to say that. Needs no device.
/// @throws also what the reference throws
std::vector<KernelData> make_expected_draws(const KernelDefinition& kernel,
                                            std::span<const std::int64_t> problem,
                                            std::uint64_t seed);

}  // namespace kiln::runtime
