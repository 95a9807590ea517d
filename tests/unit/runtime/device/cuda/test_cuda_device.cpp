#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <elf.h>

#include "cuda_binary.hpp"
#include "fake_driver.hpp"
#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

// A cubin that has nothing but symbols: variables in constant memory, one text and one of the
// kernel's shared arrays.
std::vector<std::byte> cubin_with(
    const std::vector<std::pair<std::string, std::uint64_t>>& variables) {
  std::string names(1, '\0'), section_names(1, '\0');
  const auto named = [](std::string& table, const std::string& name) {
    const auto at = static_cast<std::uint32_t>(table.size());
    table += name + '\0';
    return at;
  };
  enum : std::uint16_t { kNames = 1, kSectionNames, kSymbols, kConstant, kShared, kCount };
  std::vector<Elf64_Sym> symbols(1);
  const auto add = [&](const std::string& name, std::uint16_t section, std::uint64_t bytes) {
    Elf64_Sym& symbol = symbols.emplace_back();
    symbol.st_name = named(names, name);
    symbol.st_info = ELF64_ST_INFO(STB_LOCAL, STT_OBJECT);
    symbol.st_shndx = section;
    symbol.st_size = bytes;
  };
  for (const auto& [name, bytes] : variables) add(name, kConstant, bytes);
  add("$str", kConstant, 9);
  add("tile", kShared, 128);
  add(".nv.reservedSmem.offset0", SHN_UNDEF, 4);

  std::vector<Elf64_Shdr> sections(kCount);
  std::vector<std::byte> file(sizeof(Elf64_Ehdr));
  const auto put = [&](std::uint16_t section, const char* name, std::uint32_t type,
                       const void* data, std::size_t bytes) {
    Elf64_Shdr& s = sections[section];
    s.sh_name = named(section_names, name);
    s.sh_type = type;
    s.sh_offset = file.size();
    s.sh_size = bytes;
    const auto* begin = static_cast<const std::byte*>(data);
    if (data) file.insert(file.end(), begin, begin + bytes);
  };
  put(kNames, ".strtab", SHT_STRTAB, names.data(), names.size());
  put(kSymbols, ".symtab", SHT_SYMTAB, symbols.data(), symbols.size() * sizeof(Elf64_Sym));
  sections[kSymbols].sh_link = kNames;
  put(kConstant, ".nv.constant3", SHT_PROGBITS, nullptr, 0);
  put(kShared, ".nv.shared.kernel", SHT_NOBITS, nullptr, 0);
  const std::uint32_t own_name = named(section_names, ".shstrtab");
  const std::string all_names = section_names;
  put(kSectionNames, ".shstrtab", SHT_STRTAB, all_names.data(), all_names.size());
  sections[kSectionNames].sh_name = own_name;
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_shoff = file.size();
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = kCount;
  header.e_shstrndx = kSectionNames;
  const auto* begin = reinterpret_cast<const std::byte*>(sections.data());
  file.insert(file.end(), begin, begin + sections.size() * sizeof(Elf64_Shdr));
  std::memcpy(file.data(), &header, sizeof header);
  return file;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a device says what it is", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 1);
  const DeviceInfo& info = device->info();
  CHECK(info.id == "cuda:1");
  CHECK(info.name == "Fake H200");
  CHECK(info.target == Target{Target::Kind::cuda, "sm_90a"});
  CHECK(info.limits.compute_capability == 90);
  CHECK(info.limits.multiprocessors == 132);
  CHECK(info.limits.shared_per_block == 49152);
  CHECK(info.limits.shared_per_block_optin == 232448);
  CHECK(info.limits.l2_bytes == 62914560);
  CHECK(info.limits.reserved_shared_per_block == 1024);
  CHECK(info.limits.memory_bytes == (std::int64_t{141} << 30) - 12345678);
  const auto has = [&](const KeyField& f) {
    return std::find(info.fingerprint.begin(), info.fingerprint.end(), f) != info.fingerprint.end();
  };
  CHECK(has({"name", "Fake H200"}));
  CHECK(has({"multiprocessors", "132"}));
  CHECK(has({"memory_gib", "141"}));
  CHECK(has({"clock_mhz", "1980"}));
  REQUIRE(info.software.size() == 1);
  CHECK(info.software[0] == KeyField{"cuda_driver", "13.0"});
  CHECK_FALSE(device->shares_cpu());
}

TEST_CASE("targets are exact", "[runtime][cuda]") {
  const std::pair<std::pair<int, int>, const char*> cases[] = {
      {{7, 5}, "sm_75"},    {{8, 0}, "sm_80"},    {{8, 9}, "sm_89"},   {{9, 0}, "sm_90a"},
      {{10, 0}, "sm_100a"}, {{10, 3}, "sm_103a"}, {{12, 0}, "sm_120a"}};
  for (const auto& [capability, arch] : cases) {
    FakeDriver fake;
    fake.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = capability.first;
    fake.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = capability.second;
    CHECK(make_cuda_device(fake.table(), 0)->info().target.arch == arch);
  }
}

TEST_CASE("loading reports the driver's resources, and the compiler's spills", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {});
  CHECK(kernel->resources() == codegen::ResourceUsage{40, 7, 0, 16, 1024, 512});
  CHECK(fake.set_attributes.empty());
  // Loading is forced, not left to the first launch.
  CHECK(fake.position("cuFuncLoad") > fake.position("cuModuleGetFunction"));
}

TEST_CASE("each module has its variables, found by the names of its cubin", "[runtime][cuda]") {
  FakeDriver fake;
  fake.globals = {{"filter", 36}, {"_ZN5image5scaleE", 8}, {"foreign", 4}};
  const auto device = make_cuda_device(fake.table(), 0);
  CHECK(device->variables(*device->load(binary(), {})).empty());
  codegen::Binary with = binary();
  with.code = cubin_with({{"filter", 36}, {"_ZN5image5scaleE", 8}, {"gone", 4}});
  const auto a = device->load(with, {}), b = device->load(with, {});
  CHECK(fake.count("cuModuleGetGlobal") == 0);  // nobody asked
  const auto of_a = device->variables(*a), of_b = device->variables(*b);
  REQUIRE(of_a.size() == 2);
  CHECK(of_a[0].name == "filter");
  CHECK(of_a[0].bytes == 36);
  CHECK(of_a[1].name == "image::scale");
  CHECK(of_a[1].bytes == 8);
  REQUIRE(of_b.size() == 2);
  CHECK(of_a[0].address != of_b[0].address);
  const char data[] = "eight B";
  device->copy_to_device(of_b[1].address, data, sizeof data);
  CHECK(fake.uploaded.at(reinterpret_cast<CUdeviceptr>(of_b[1].address)) ==
        std::string(data, sizeof data));
  CHECK(fake.misuse.empty());

  fake.fail_call = "cuModuleGetGlobal";
  try {
    device->variables(*a);
    FAIL("accepted");
  } catch (const EnvironmentError& e) {
    CHECK(contains(e.what(), "cuModuleGetGlobal failed: CUDA_ERROR_UNKNOWN"));
  }
}

TEST_CASE("shared memory above the default is opted into", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  device->load(binary(), {.shared_bytes = 49152 - 1024});  // with the static KB exactly the default
  CHECK(fake.set_attributes.count(attribute) == 0);
  device->load(binary(), {.shared_bytes = 49152 - 1023});
  CHECK(fake.set_attributes[attribute] == 49152 - 1023);
  device->load(binary(), {.shared_bytes = 232448 - 1024});
  CHECK(fake.set_attributes[attribute] == 232448 - 1024);
  for (unsigned bytes : {232448u - 1023u, 0xffffffffu}) {
    try {
      device->load(binary(), {.shared_bytes = bytes});
      FAIL("accepted");
    } catch (const UserError& e) {
      CHECK(contains(e.what(), std::to_string(bytes)));
      CHECK(contains(e.what(), "232448"));
    }
  }
  CHECK(fake.modules.empty());
}

TEST_CASE("a launch passes everything on", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {});
  int value = 3;
  void* args[] = {&value};
  const Stream stream{reinterpret_cast<void*>(0x77)};
  device->launch(*kernel, {{1, 2, 3}, {4, 5, 6}, 99}, stream, args);
  REQUIRE(fake.launches.size() == 1);
  const auto& l = fake.launches[0];
  CHECK((l.grid[0] == 1 && l.grid[1] == 2 && l.grid[2] == 3));
  CHECK((l.block[0] == 4 && l.block[1] == 5 && l.block[2] == 6));
  CHECK(l.shared == 99);
  CHECK(l.stream == stream.handle);
  CHECK(l.args == args);
  CHECK(l.context == fake.primary());
  CHECK(fake.depth() == 0);
}

TEST_CASE("an empty grid launches nothing", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {});
  for (Dim3 grid : {Dim3{0, 1, 1}, Dim3{1, 0, 1}, Dim3{1, 1, 0}}) {
    device->launch(*kernel, {grid, {32}, 0}, {}, nullptr);
  }
  CHECK(fake.launches.empty());
}

TEST_CASE("a launch is one call where the driver needs no other context", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {});
  const Stream own = device->tuning_stream(), by_default{};
  using Calls = std::vector<std::string>;
  const auto calls = [&](Stream stream, const Launch& launch) {
    const std::size_t before = fake.calls.size(), launches = fake.launches.size();
    device->launch(*kernel, launch, stream, nullptr);
    CHECK(fake.launches.size() == launches + 1);
    return Calls(fake.calls.begin() + static_cast<std::ptrdiff_t>(before), fake.calls.end());
  };
  const Launch plain{{1}, {32}, 0}, clusters{.grid = {2}, .block = {32}, .cluster = {2}};
  const Calls once{"cuLaunchKernel"}, once_extended{"cuLaunchKernelEx"};
  CHECK(calls(own, plain) == once);
  CHECK(calls(own, clusters) == once_extended);
  CHECK(calls(by_default, plain) == Calls{"cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent",
                                          "cuLaunchKernel", "cuCtxPopCurrent"});
  fake.push_foreign(reinterpret_cast<CUcontext>(0x200), 1);
  CHECK(calls(own, plain) == once);
  CHECK(calls(by_default, clusters) == Calls{"cuLaunchKernelEx", "cuCtxGetCurrent",
                                             "cuCtxPushCurrent", "cuLaunchKernelEx",
                                             "cuCtxPopCurrent"});
  fake.destroyed = fake.current();
  CHECK(calls(by_default, plain) == Calls{"cuLaunchKernel", "cuCtxGetCurrent", "cuCtxPushCurrent",
                                          "cuLaunchKernel", "cuCtxPopCurrent"});
  fake.push_foreign(fake.primary(), 0);
  CHECK(calls(by_default, plain) == once);
  CHECK(fake.misuse.empty());

  fake.fail_call = "cuLaunchKernel";
  fake.code = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  const std::size_t before = fake.calls.size();
  CHECK_THROWS_AS(device->launch(*kernel, plain, own, nullptr), EnvironmentError);
  CHECK(std::count(fake.calls.begin() + static_cast<std::ptrdiff_t>(before), fake.calls.end(),
                   "cuLaunchKernel") == 1);  // an error of another kind is not tried again
}

TEST_CASE("launches from several threads each find the context", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      if (t % 2) {
        const std::lock_guard lock(fake.mutex);
        fake.push_foreign(reinterpret_cast<CUcontext>(0x300 + t), 1);
      }
      for (int i = 0; i < 100; ++i) device->launch(*kernel, {{1}, {32}, 0}, {}, nullptr);
      const std::lock_guard lock(fake.mutex);
      if (fake.depth() != static_cast<std::size_t>(t % 2)) fake.misuse.push_back("depth");
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(fake.launches.size() == 800);
  CHECK(std::all_of(fake.launches.begin(), fake.launches.end(),
                    [&](const auto& l) { return l.context == fake.primary(); }));
  CHECK(fake.misuse.empty());
}

TEST_CASE("time is the events', in seconds, around the work", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  fake.calls.clear();
  const double seconds =
      device->time(device->tuning_stream(), [&] { fake.calls.push_back("work"); });
  CHECK(seconds == Approx(2.5e-3));
  std::vector<std::string> order;
  for (const std::string& call : fake.calls) {
    if (call == "work" || call == "cuEventRecord" || call == "cuEventSynchronize" ||
        call == "cuEventElapsedTime") {
      order.push_back(call);
    }
  }
  CHECK(order == std::vector<std::string>{"cuEventRecord", "work", "cuEventRecord",
                                          "cuEventSynchronize", "cuEventElapsedTime"});
  CHECK(fake.events.empty());
  CHECK_THROWS_AS(device->time(device->tuning_stream(), [] { throw UserError("mine"); }),
                  UserError);
  CHECK(fake.events.empty());
  CHECK(fake.depth() == 0);
  CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_CASE("a stopwatch waits for nothing until it is read", "[runtime][cuda]") {
  FakeDriver fake;
  auto device = make_cuda_device(fake.table(), 0);
  auto watch = device->stopwatch();
  CHECK(fake.events.size() == 2);
  fake.calls.clear();
  for (int i = 0; i < 2; ++i) {  // and is used again, with the same events
    watch->start(device->tuning_stream());
    watch->stop(device->tuning_stream());
  }
  CHECK(fake.count("cuEventRecord") == 4);
  CHECK(fake.count("cuEventCreate") == 0);
  CHECK(fake.count("cuEventSynchronize") == 0);
  CHECK(watch->seconds() == Approx(2.5e-3));
  CHECK(fake.position("cuEventSynchronize") < fake.position("cuEventElapsedTime"));
  for (const char* call : {"cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"}) {
    fake.fail_call = call;
    CHECK_THROWS_AS((watch->start({}), watch->stop({}), watch->seconds()), EnvironmentError);
  }
  fake.fail_call.clear();
  device.reset();  // the context lives on
  CHECK(watch->seconds() == Approx(2.5e-3));
  watch.reset();
  CHECK_FALSE(fake.leaks());
  CHECK(fake.misuse.empty());
  CHECK(fake.depth() == 0);
  CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_CASE("launches are recorded, not run, and replayed as one", "[runtime][cuda]") {
  FakeDriver fake;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const auto kernel = device->load(binary(), {});
    const Stream stream = device->tuning_stream();
    const auto replay = device->capture(stream, [&] {
      for (int i = 0; i < 3; ++i) device->launch(*kernel, {{4}, {128}, 0}, stream, nullptr);
    });
    REQUIRE(replay);
    CHECK(fake.launches.empty());
    CHECK(fake.graphs.empty());
    CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
    device->time(stream, [&] { replay->run(stream); });
    replay->run(stream);
    CHECK(fake.replays == std::vector<std::size_t>{3, 3});
    CHECK(fake.depth() == 0);
  }
  CHECK_FALSE(fake.leaks());
  CHECK(fake.misuse.empty());
}

TEST_CASE("a replay outlives its device's handle", "[runtime][cuda]") {
  FakeDriver fake;
  std::unique_ptr<Replay> replay;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const auto kernel = device->load(binary(), {});
    const Stream stream = device->tuning_stream();
    replay =
        device->capture(stream, [&] { device->launch(*kernel, {{4}, {128}, 0}, stream, nullptr); });
  }
  CHECK(fake.primary_released == 0);
  REQUIRE(replay);
  replay.reset();
  CHECK_FALSE(fake.leaks());
}

TEST_CASE("what cannot be recorded is launched plainly", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {});
  const Stream stream = device->tuning_stream();
  const auto launch = [&] { device->launch(*kernel, {{4}, {128}, 0}, stream, nullptr); };
  // Nothing was put on the stream: a replay of nothing would be the fastest of all.
  CHECK_FALSE(device->capture(stream, [] {}));
  CHECK_FALSE(device->capture(stream, [&] {
    launch();
    device->synchronize(stream);  // not possible in a capture
  }));
  CHECK_FALSE(device->capture(stream, [&] {
    launch();
    throw std::runtime_error("mine");
  }));
  CHECK_THROWS_AS(device->capture(stream, [] { throw 1; }), int);
  CHECK(fake.capturing.empty());
  CHECK(fake.graphs.empty());
  CHECK(fake.graph_execs.empty());
  CHECK(fake.depth() == 0);
  launch();
  CHECK(fake.launches.size() == 1);
}

TEST_CASE("a driver without graphs is none the worse", "[runtime][cuda]") {
  for (const auto take_away : std::vector<void (*)(DriverTable&)>{
           [](DriverTable& t) { t.StreamBeginCapture = nullptr; },
           [](DriverTable& t) { t.StreamEndCapture = nullptr; },
           [](DriverTable& t) { t.GraphGetNodes = nullptr; },
           [](DriverTable& t) { t.GraphInstantiateWithFlags = nullptr; },
           [](DriverTable& t) { t.GraphLaunch = nullptr; },
           [](DriverTable& t) { t.GraphExecDestroy = nullptr; },
           [](DriverTable& t) { t.GraphDestroy = nullptr; }}) {
    FakeDriver older;
    take_away(older.functions());
    const auto without = make_cuda_device(older.table(), 0);
    CHECK_FALSE(without->capture(without->tuning_stream(), [] { FAIL("called"); }));
    CHECK(older.count("cuStreamBeginCapture") == 0);
  }
}

TEST_CASE("occupancy of what cannot run is zero", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const auto kernel = device->load(binary(), {});
  CHECK(device->occupancy(*kernel, 256, 0) == 8);
  CHECK(device->occupancy(*kernel, 2048, 0) == 0);
}

TEST_CASE("a binary for something else is the caller's mistake", "[runtime][cuda]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  codegen::Binary b = binary();
  b.target = {Target::Kind::host, "x86-64-v3"};
  CHECK_THROWS_AS(device->load(b, {}), UserError);
  b = binary();
  b.symbol = "another";
  CHECK_THROWS_AS(device->load(b, {}), EnvironmentError);
  CHECK(fake.modules.empty());
}

TEST_CASE("a kernel outlives its device's handle", "[runtime][cuda]") {
  FakeDriver fake;
  std::shared_ptr<Module> kernel;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    kernel = device->load(binary(), {});
  }
  CHECK(fake.modules.size() == 1);
  CHECK(fake.primary_released == 0);
  kernel.reset();
  CHECK_FALSE(fake.leaks());
  const auto& calls = fake.calls;
  const auto unload = std::find(calls.begin(), calls.end(), "cuModuleUnload");
  const auto released = std::find(calls.begin(), calls.end(), "cuDevicePrimaryCtxRelease");
  CHECK(unload < released);
  CHECK(fake.primary_released == 1);
}

TEST_CASE("a driver that shuts down first takes nothing with it", "[runtime][cuda]") {
  FakeDriver fake;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const auto kernel = device->load(binary(), {});
    const DeviceMemory memory(device, 64);
    fake.shut_down = true;
    CHECK_THROWS_AS(device->launch(*kernel, {{1}, {32}, 0}, {}, nullptr), EnvironmentError);
  }
  CHECK_FALSE(fake.leaks());
}
