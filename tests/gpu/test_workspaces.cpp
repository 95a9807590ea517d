// Kernels with workspaces and steps on a GPU: tuned, launched on several streams, captured into
// graphs, and served by the program's allocator.
#include <algorithm>
#include <set>

#include "kiln/kiln.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"
#include "split_sum.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

RuntimeOptions on_gpu() {
  RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  return options;
}

std::shared_ptr<runtime::Device> driver() {
  static const auto device = runtime::make_cuda_device(runtime::probe_cuda().driver, 0);
  return device;
}

struct Sum {
  Array<float> in, out;

  Sum(const Runtime& runtime, std::size_t n)
      : in(runtime.array(counting(n))), out(runtime.array(std::vector<float>{-7})) {}
  template <class Launchable>
  void launch(const Launchable& bound, Stream stream) {
    bound(stream, out.data(), static_cast<const float*>(in.data()), static_cast<int>(in.size()));
  }
  float value(const Runtime& runtime, Stream stream) {
    runtime.synchronize(stream);
    return out.download().front();
  }
};

}  // namespace

TEST_CASE("candidates with workspaces and steps are tuned on a GPU", "[gpu][workspace]") {
  const Runtime gpu(on_gpu());
  const auto handle = gpu.tuned(split_sum({0, 1, 2, 3, 4}));
  const TuneResult result = handle.tune({100});
  for (const Candidate& c : result.candidates) {
    CAPTURE(result.describe(c), c.reason);
    const auto mode = static_cast<SumMode>(c.config[1]);
    const bool right = mode != SumMode::littered && mode != SumMode::outside;
    CHECK(c.status == (right ? CandidateStatus::measured : CandidateStatus::wrong_result));
    if (mode == SumMode::littered) CHECK(c.reason == "left 1 of 1 semaphores nonzero");
  }
  for (const SumMode mode : {SumMode::plain, SumMode::steps, SumMode::last}) {
    CAPTURE(static_cast<int>(mode));
    const auto chosen = handle.with_config(with_mode(mode));
    CHECK(chosen.verify({3000}).right);
    Sum sum(gpu, 3000);
    chosen({}, {3000}, sum.out.data(), static_cast<const float*>(sum.in.data()), 3000);
    CHECK(sum.value(gpu, {}) == sum_of_counting(3000));
  }
}

TEST_CASE("streams launch side by side, each with its workspace", "[gpu][workspace]") {
  const Runtime gpu(on_gpu());
  const auto context =
      std::make_shared<const runtime::CudaContext>(runtime::probe_cuda().driver, 0);
  const runtime::CudaStream one = runtime::create_stream(context),
                            two = runtime::create_stream(context);
  const auto handle = gpu.tuned(split_sum()).with_config(with_mode(SumMode::last));
  const auto first = handle.at({4000}), second = handle.at({3000});
  Sum a(gpu, 4000), b(gpu, 3000);
  for (int i = 0; i < 200; ++i) {
    a.launch(first, view(one));
    b.launch(second, view(two));
  }
  CHECK(a.value(gpu, view(one)) == sum_of_counting(4000));
  CHECK(b.value(gpu, view(two)) == sum_of_counting(3000));
}

TEST_CASE("a captured launch keeps its workspace, also after that has grown", "[gpu][workspace]") {
  const Runtime gpu(on_gpu());
  const auto handle = gpu.tuned(split_sum()).with_config(with_mode(SumMode::last));
  const auto small = handle.at({1000}), large = handle.at({4000});
  Sum a(gpu, 1000), b(gpu, 4000);
  const Stream stream = driver()->tuning_stream();
  // Nothing is reserved: an error, and the capture goes on.
  std::string refused;
  const auto nothing_but = driver()->capture(stream, [&] {
    try {
      a.launch(small, stream);
    } catch (const UserError& error) {
      refused = error.what();
    }
    driver()->fill(a.out.data(), std::byte{}, sizeof(float), stream);
  });
  CHECK_THAT(refused, Catch::Contains("reserve_workspace"));
  REQUIRE(nothing_but);
  nothing_but->run(stream);
  CHECK(a.value(gpu, stream) == 0);

  small.reserve_workspace(stream);
  const auto replay = driver()->capture(stream, [&] {
    a.launch(small, stream);
    a.launch(small, stream);
  });
  REQUIRE(replay);
  for (int i = 0; i < 3; ++i) replay->run(stream);
  CHECK(a.value(gpu, stream) == sum_of_counting(1000));
  b.launch(large, stream);  // grows
  CHECK(b.value(gpu, stream) == sum_of_counting(4000));
  a.out.upload(std::vector<float>{0});
  replay->run(stream);
  CHECK(a.value(gpu, stream) == sum_of_counting(1000));
}

TEST_CASE("a kernel in steps is captured as a whole", "[gpu][steps]") {
  const Runtime gpu(on_gpu());
  const auto bound = gpu.tuned(split_sum()).with_config(with_mode(SumMode::steps)).at({2000});
  Sum a(gpu, 2000);
  const Stream stream = driver()->tuning_stream();
  bound.reserve_workspace(stream);
  const auto replay = driver()->capture(stream, [&] { a.launch(bound, stream); });
  REQUIRE(replay);
  replay->run(stream);
  CHECK(a.value(gpu, stream) == sum_of_counting(2000));
}

TEST_CASE("a program's allocator serves a GPU", "[gpu][allocator]") {
  std::set<void*> live;
  std::size_t allocations = 0;
  std::mutex mutex;
  RuntimeOptions options = on_gpu();
  options.allocator = {.allocate = [&](std::size_t bytes) -> void* {
                         const std::lock_guard lock(mutex);
                         void* const memory = driver()->allocate(bytes);
                         live.insert(memory);
                         ++allocations;
                         return memory;
                       },
                       .release =
                           [&](void* memory, std::size_t bytes) {
                             const std::lock_guard lock(mutex);
                             live.erase(memory);
                             driver()->release(memory, bytes);
                           }};
  {
    const Runtime gpu(options);
    const auto handle = gpu.tuned(split_sum());
    handle.tune({3000});
    CHECK(allocations > 8);
    Sum a(gpu, 3000);
    handle({}, {3000}, a.out.data(), static_cast<const float*>(a.in.data()), 3000);
    CHECK(a.value(gpu, {}) == sum_of_counting(3000));
  }
  CHECK(live.empty());
}
