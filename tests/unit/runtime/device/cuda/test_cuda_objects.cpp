#include "fake_driver.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_objects.hpp"

using namespace kiln::runtime;

namespace {

std::shared_ptr<const CudaContext> context_of(const FakeDriver& fake, int ordinal = 0) {
  return std::make_shared<const CudaContext>(fake.table(), ordinal);
}

CUcontext foreign() { return reinterpret_cast<CUcontext>(0x200); }

}  // namespace

static_assert(!std::is_copy_constructible_v<CudaStream>);
static_assert(std::is_nothrow_move_constructible_v<CudaStream>);
static_assert(std::is_nothrow_move_assignable_v<CudaMemory>);
static_assert(std::is_nothrow_destructible_v<CudaModule>);

TEST_CASE("without a current context the primary one is retained and released once",
          "[runtime][cuda]") {
  FakeDriver fake;
  {
    const auto context = context_of(fake);
    CHECK(context->get() == fake.primary());
    CHECK(fake.current() == nullptr);
    const CudaStream stream = create_stream(context);
    CHECK(fake.current() == nullptr);
  }
  CHECK(fake.primary_retained == 1);
  CHECK(fake.primary_released == 1);
  CHECK(fake.misuse.empty());
}

TEST_CASE("a current context of the device is used and left alone", "[runtime][cuda]") {
  FakeDriver fake;
  fake.push_foreign(foreign(), 0);
  {
    const auto context = context_of(fake);
    CHECK(context->get() == foreign());
    const CudaStream stream = create_stream(context);
    CHECK(fake.current() == foreign());
  }
  CHECK(fake.primary_retained == 0);
  CHECK(fake.primary_released == 0);
  CHECK(fake.count("cuCtxPushCurrent") == 0);
  CHECK(fake.current() == foreign());
}

TEST_CASE("a current context of another device is not", "[runtime][cuda]") {
  FakeDriver fake;
  fake.push_foreign(foreign(), 1);
  const auto context = context_of(fake, 0);
  CHECK(context->get() == fake.primary());
  {
    const CurrentContext current(*context);
    CHECK(fake.current() == fake.primary());
  }
  CHECK(fake.current() == foreign());
}

TEST_CASE("owners keep the context until the last of them goes", "[runtime][cuda]") {
  FakeDriver fake;
  CudaMemory memory;
  {
    auto context = context_of(fake);
    CudaModule module = load_module(context, {});
    memory = allocate_memory(context, 64);
    context.reset();
    CHECK(fake.primary_released == 0);
  }
  CHECK(fake.modules.empty());
  CHECK(fake.primary_released == 0);
  memory = CudaMemory();
  CHECK(fake.memory.empty());
  CHECK(fake.primary_released == 1);
  CHECK(fake.calls.back() == "cuDevicePrimaryCtxRelease");
  CHECK(fake.misuse.empty());
}

TEST_CASE("moving and releasing hand over ownership", "[runtime][cuda]") {
  FakeDriver fake;
  const auto context = context_of(fake);
  CudaStream a = create_stream(context);
  const CUstream handle = a.get();
  CudaStream b = std::move(a);
  CHECK_FALSE(a);
  CHECK(b.get() == handle);
  CHECK(view(b).handle == handle);
  b = create_stream(context);
  CHECK(fake.streams.size() == 1);
  CHECK(fake.streams.count(handle) == 0);
  const CUstream given = b.release();
  CHECK_FALSE(b);
  CHECK(fake.streams.size() == 1);
  {
    const CudaStream adopted(context, given);
  }
  CHECK(fake.streams.empty());
  CHECK(fake.misuse.empty());
}

TEST_CASE("destruction after the driver's shutdown is quiet", "[runtime][cuda]") {
  FakeDriver fake;
  {
    const auto context = context_of(fake);
    const CudaStream stream = create_stream(context);
    const CudaEvent event = create_timing_event(context);
    const CudaMemory memory = allocate_memory(context, 64);
    fake.shut_down = true;
  }
  CHECK_FALSE(fake.leaks());
  CHECK(fake.depth() == 0);
}

TEST_CASE("work relaxes the thread's capture mode and restores it", "[runtime][cuda]") {
  FakeDriver fake;
  const auto context = context_of(fake);
  {
    const WorkingContext working(*context);
    CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED);
    {
      const WorkingContext nested(*context);
      CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED);
  }
  CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
}
