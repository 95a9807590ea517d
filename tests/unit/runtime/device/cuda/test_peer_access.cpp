// Memory that other devices and processes reach, and symmetric memory made of it.
#include <cstring>
#include <thread>

#include "findings.hpp"
#include "kiln/communicators.hpp"
#include "refusals.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/host/shared_memory.hpp"
#include "runtime/symmetric/core.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

CUcontext second_context() { return reinterpret_cast<CUcontext>(0x200); }

/// Device 0 in the primary context, device 1 in a context that the program made.
struct TwoDevices {
  FakeDriver fake;
  std::shared_ptr<Device> first = make_cuda_device(fake.table(), 0), second;

  TwoDevices() {
    fake.push_foreign(second_context(), 1);
    second = make_cuda_device(fake.table(), 1);
    fake.clear_thread();
  }
};

/// All that a rank does in another process, as far as the driver sees it.
void use(const FakeDriver& fake) {
  const auto device = make_cuda_device(fake.table(), 0);
  PeerAccess& access = *device->peer_access();
  const auto own = access.share(100, PeerScope::machine);
  const auto control = create_shared_memory(64, PeerScope::process);
  const auto seen = access.map_host(control->data(), 64);
  const auto theirs = access.open(own->handle(), 100);
}

/// Calls that are made only while nothing is being cleaned up.
bool does_work(const std::string& call) {
  for (const char* part : {"Alloc", "Memset", "StreamCreate", "StreamSynchronize", "GetMemHandle",
                           "OpenMemHandle", "Register", "GetDevicePointer"})
    if (call.find(part) != std::string::npos) return call != "cuMemHostUnregister";
  return false;
}

}  // namespace

TEST_CASE("memory is shared in whole blocks of the driver's, zeroed, and opened by its handle",
          "[runtime][cuda][symmetric]") {
  FakeDriver fake;
  std::size_t allocated = 0;
  static std::size_t* seen;
  seen = &allocated;
  static decltype(&::cuMemAlloc) allocate;
  allocate = fake.functions().MemAlloc;
  fake.functions().MemAlloc = [](CUdeviceptr* p, std::size_t bytes) {
    *seen = bytes;
    return allocate(p, bytes);
  };
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const auto own = device->peer_access()->share(100, PeerScope::machine);
    CHECK(allocated == std::size_t{2} << 20);
    CHECK(fake.position("cuMemsetD8Async") < fake.position("cuStreamSynchronize"));
    const auto theirs = device->peer_access()->open(own->handle(), 100);
    CHECK(fake.opened_handle == reinterpret_cast<CUdeviceptr>(own->data()));
    CHECK(theirs->data() != own->data());
    CHECK(fake.opened.size() == 1);
    CHECK_THROWS_AS(theirs->handle(), InternalError);
    const auto small = device->peer_access()->share(100, PeerScope::process);
    CHECK(allocated == 100);
  }
  CHECK_FALSE(fake.leaks());
  CHECK(fake.misuse.empty());
}

TEST_CASE("memory that a process may still use is never freed", "[runtime][cuda][symmetric]") {
  FakeDriver fake;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const auto memory = device->peer_access()->share(100, PeerScope::machine);
    void* const address = memory->data();
    memory->keep_forever();
    CHECK(memory->data() == address);  // other ranks of this process still reach it
  }
  CHECK(fake.memory.size() == 1);
  CHECK(fake.count("cuMemFree") == 0);
  CHECK(fake.primary_retained == 1);
  CHECK(fake.primary_released == 0);  // it would take the memory with it
}

TEST_CASE("a device reaches another one once, and says when it cannot",
          "[runtime][cuda][symmetric]") {
  TwoDevices two;
  PeerAccess &first = *two.first->peer_access(), &second = *two.second->peer_access();
  first.reach(first);
  CHECK(two.fake.peer_access.empty());
  first.reach(second);
  first.reach(second);  // is enabled already
  CHECK(two.fake.peer_access ==
        std::set<std::pair<CUcontext, CUcontext>>{{two.fake.primary(), second_context()}});
  two.fake.peers_reach = 0;
  CHECK_THROWS_WITH(second.reach(first),
                    Catch::Contains("device 1 cannot reach the memory of device 0"));
  CHECK_THROWS_AS(first.reach(*make_host_peer_access()), EnvironmentError);
  CHECK(two.fake.misuse.empty());
}

TEST_CASE("a driver that lacks a function has no peer access", "[runtime][cuda][symmetric]") {
  FakeDriver fake;
  fake.functions().IpcOpenMemHandle = nullptr;
  CHECK(make_cuda_device(fake.table(), 0)->peer_access() == nullptr);
}

TEST_CASE("whichever call of peer access is refused, it is named and nothing leaks",
          "[runtime][cuda][symmetric]") {
  int named = 0;
  refuse_each_call(use,
                   [&](const std::string& call, const std::string& message, const FakeDriver&) {
                     if (!does_work(call)) return;
                     CHECK(message.find(call + " failed") != std::string::npos);
                     ++named;
                   });
  CHECK(named == 9);  // the device's own stream included
}

TEST_CASE("symmetric memory of two devices: each reaches the other, and all is returned",
          "[runtime][cuda][symmetric]") {
  TwoDevices two;
  auto ends = thread_communicators(2);
  test::Findings findings;
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      try {
        detail::SymmetricCore memory(r == 0 ? two.first : two.second,
                                     std::move(ends[static_cast<std::size_t>(r)]),
                                     {.bytes = 1000, .flags = 2});
        // What kernels get was copied to where they look for it.
        std::string view;
        {
          const std::lock_guard lock(two.fake.mutex);
          view = two.fake.uploaded[reinterpret_cast<CUdeviceptr>(memory.peers())];
        }
        Peers peers;
        Peers::Peer peer[2];
        findings.check(view.size() == sizeof peers + sizeof peer);
        std::memcpy(&peers, view.data(), sizeof peers);
        std::memcpy(peer, view.data() + sizeof peers, sizeof peer);
        findings.check(peers.rank == r && peers.size == 2 && peers.flags == 2);
        findings.check(reinterpret_cast<std::uintptr_t>(peers.peer) ==
                       reinterpret_cast<std::uintptr_t>(memory.peers()) + sizeof peers);
        findings.check(reinterpret_cast<std::uintptr_t>(peers.control) % 2 == 1);  // the device's
        for (int i = 0; i < 2; ++i) findings.check(peer[i].data == memory.data(i));
        memory.barrier();
        memory.reset();
        memory.close();
      } catch (...) {
        findings.check(false);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(findings.wrong().empty());
  CHECK(two.fake.peer_access.size() == 2);
  CHECK(two.fake.memory.empty());
  CHECK(two.fake.registered.empty());
  CHECK(two.fake.count("cuIpcGetMemHandle") == 0);  // ranks of one process need none
  CHECK(two.fake.misuse.empty());
}
