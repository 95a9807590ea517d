// Each call of the driver refused, one after the other.
#include <memory>
#include <set>
#include <string>

#include "cuda_binary.hpp"
#include "refusals.hpp"
#include "runtime/device/cuda/cuda_device.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Calls that clean up: a refusal has nowhere to go.
bool cleans_up(const std::string& call) {
  return has(call, "Destroy") || has(call, "Unload") || has(call, "Free") || has(call, "Pop") ||
         has(call, "Release");
}

// Everything that a device does, once.
void use(const FakeDriver& fake) {
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {.shared_bytes = 100000});
  const DeviceMemory a(device, 256), b(device, 256);
  char host[256] = {};
  device->copy_to_device(a.data(), host, sizeof host);
  device->copy_on_device(b.data(), a.data(), sizeof host, device->tuning_stream());
  device->fill(b.data(), std::byte{1}, sizeof host, device->tuning_stream());
  device->occupancy(*kernel, 128, 0);
  device->time(device->tuning_stream(),
               [&] { device->launch(*kernel, {{4}, {128}, 0}, device->tuning_stream(), nullptr); });
  const auto launch = [&] {
    device->launch(*kernel, {{4}, {128}, 0}, device->tuning_stream(), nullptr);
  };
  const auto replay = device->capture(device->tuning_stream(), launch);
  if (replay)
    replay->run(device->tuning_stream());
  else
    launch();
  device->synchronize(device->tuning_stream());
  device->copy_to_host(host, b.data(), sizeof host);
}

// Calls whose refusal makes launches plain ones, which is no failure.
bool only_replays(const std::string& call) {
  return has(call, "Capture") ? !has(call, "Exchange")
                              : has(call, "Graph") && call != "cuGraphLaunch";
}

}  // namespace

TEST_CASE("whichever call is refused, it is named and nothing leaks", "[runtime][cuda]") {
  int refused = 0;
  refuse_each_call(
      use, [&](const std::string& call, const std::string& message, const FakeDriver& fake) {
        ++refused;
        if (message.empty()) {
          // Only within a destructor may a refusal stay without consequence.
          const bool restores = has(call, "Ctx") || has(call, "Exchange");
          // A launch that cannot be recorded was made plainly instead.
          const bool instead = call == "cuLaunchKernel" && fake.launches.size() == 2;
          CHECK((cleans_up(call) || restores || only_replays(call) || instead));
        } else {
          CHECK(has(message, "CUDA_ERROR_UNKNOWN (999): an unknown thing happened"));
          const bool current = has(call, "cuCtx");
          CHECK((current ? has(message, "cuCtx") : has(message, call + " failed")));
        }
      });
  CHECK(refused > 80);
}

TEST_CASE("each kind of call, always refused", "[runtime][cuda]") {
  FakeDriver complete;
  use(complete);
  std::set<std::string> kinds(complete.calls.begin(), complete.calls.end());
  for (const std::string& call : kinds) {
    CAPTURE(call);
    FakeDriver fake;
    fake.fail_call = call;
    fake.code = CUDA_ERROR_OUT_OF_MEMORY;
    if (cleans_up(call) || only_replays(call)) {
      CHECK_NOTHROW(use(fake));
    } else {
      CHECK_THROWS_AS(use(fake), EnvironmentError);
    }
    CHECK_FALSE(fake.leaks());
  }
}
