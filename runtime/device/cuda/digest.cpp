#include "runtime/device/cuda/digest.hpp"

#include <algorithm>

#include "kiln/error.hpp"
#include "runtime/device/array_digest.hpp"

namespace kiln::runtime {

namespace {

// PTX, since every driver compiles it: verification must not depend on NVRTC. Row y of the grid
// sums array y. Its threads take the words in turn, and each warp adds one sum to the result.
constexpr const char kDigestPtx[] = R"(
.version 6.0
.target sm_60
.address_size 64

.visible .entry kiln_digest(.param .u64 memory, .param .u64 bytes, .param .u64 stride,
                            .param .u64 sums)
{
  .reg .pred %end, %whole, %first;
  .reg .b32 %block, %threads, %thread, %blocks, %row, %lane, %low, %high, %shift;
  .reg .b64 %at, %bytes, %stride, %sums, %sum, %i, %step, %words, %word, %place, %offset, %left,
            %byte, %t;

  ld.param.u64 %at, [memory];
  ld.param.u64 %bytes, [bytes];
  ld.param.u64 %stride, [stride];
  ld.param.u64 %sums, [sums];
  mov.u32 %row, %ctaid.y;
  mad.wide.u32 %sums, %row, 8, %sums;
  cvt.u64.u32 %t, %row;
  mad.lo.u64 %at, %t, %stride, %at;
  cvta.to.global.u64 %at, %at;
  cvta.to.global.u64 %sums, %sums;

  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  cvt.u64.u32 %t, %thread;
  mad.wide.u32 %i, %block, %threads, %t;
  mul.wide.u32 %step, %blocks, %threads;
  add.u64 %words, %bytes, 7;
  shr.u64 %words, %words, 3;
  mov.u64 %sum, 0;

next_word:
  setp.ge.u64 %end, %i, %words;
  @%end bra add_up;
  shl.b64 %offset, %i, 3;
  add.u64 %place, %at, %offset;
  sub.u64 %left, %bytes, %offset;
  setp.ge.u64 %whole, %left, 8;
  @!%whole bra last_word;
  ld.global.u64 %word, [%place];
  bra mix;

last_word:
  mov.u64 %word, 0;
  mov.u32 %shift, 0;
next_byte:
  ld.global.u8 %byte, [%place];
  shl.b64 %byte, %byte, %shift;
  or.b64 %word, %word, %byte;
  add.u64 %place, %place, 1;
  add.u32 %shift, %shift, 8;
  sub.u64 %left, %left, 1;
  setp.ne.u64 %whole, %left, 0;
  @%whole bra next_byte;

mix:
  add.u64 %t, %i, 1;
  mul.lo.u64 %t, %t, 0xD1342543DE82EF95;
  xor.b64 %word, %word, %t;
  shr.u64 %t, %word, 30;
  xor.b64 %word, %word, %t;
  mul.lo.u64 %word, %word, 0xBF58476D1CE4E5B9;
  shr.u64 %t, %word, 27;
  xor.b64 %word, %word, %t;
  mul.lo.u64 %word, %word, 0x94D049BB133111EB;
  shr.u64 %t, %word, 31;
  xor.b64 %word, %word, %t;
  add.u64 %sum, %sum, %word;
  add.u64 %i, %i, %step;
  bra next_word;

add_up:
  mov.u32 %shift, 16;
next_half:
  mov.b64 {%low, %high}, %sum;
  shfl.sync.down.b32 %low, %low, %shift, 31, 0xffffffff;
  shfl.sync.down.b32 %high, %high, %shift, 31, 0xffffffff;
  mov.b64 %t, {%low, %high};
  add.u64 %sum, %sum, %t;
  shr.u32 %shift, %shift, 1;
  setp.ne.u32 %whole, %shift, 0;
  @%whole bra next_half;
  and.b32 %lane, %thread, 31;
  setp.eq.u32 %first, %lane, 0;
  @%first red.global.add.u64 [%sums], %sum;
  ret;
}
)";

constexpr unsigned kThreads = 256, kBlocksPerMultiprocessor = 8;
constexpr std::size_t kMostRows = 65535;  // of a grid

}  // namespace

CudaDigest::CudaDigest(std::shared_ptr<const CudaContext> context, Device& device)
    : context_(std::move(context)),
      device_(device),
      multiprocessors_(static_cast<unsigned>(std::max(1, device.info().limits.multiprocessors))),
      module_(load_module(context_, std::as_bytes(std::span(kDigestPtx)))) {
  const WorkingContext working(*context_);
  const DriverTable& driver = context_->driver();
  driver.check(driver.ModuleGetFunction(&function_, module_.get(), "kiln_digest"),
               "cuModuleGetFunction");

  constexpr std::size_t kBytes = 1021, kStride = 1024, kCount = 2;
  std::vector<std::byte> data(kCount * kStride);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(1 + i * i % 251);
  const CudaStream stream = create_stream(context_);
  const Memory memory(device_, data.size());
  driver.check(driver.MemcpyHtoDAsync(memory.get(), data.data(), data.size(), stream.get()),
               "cuMemcpyHtoDAsync");
  const auto got = (*this)(memory.get(), kBytes, kStride, kCount, stream.get());
  for (std::size_t i = 0; i < kCount; ++i)
    if (got[i] != array_digest(std::span(data).subspan(i * kStride, kBytes)))
      throw EnvironmentError("this device computes wrong digests");
}

std::vector<std::uint64_t> CudaDigest::operator()(CUdeviceptr memory, std::size_t bytes,
                                                  std::size_t stride, std::size_t count,
                                                  CUstream stream) {
  const std::lock_guard lock(mutex_);
  const WorkingContext working(*context_);
  const DriverTable& driver = context_->driver();
  if (!sums_ || sums_->bytes() < count * sizeof(std::uint64_t)) {
    sums_.reset();
    sums_ = std::make_unique<Memory>(device_, count * sizeof(std::uint64_t));
  }
  driver.check(driver.MemsetD8Async(sums_->get(), 0, count * sizeof(std::uint64_t), stream),
               "cuMemsetD8Async");
  const std::size_t words = (bytes + 7) / 8;
  const auto blocks = static_cast<unsigned>(std::min<std::size_t>(
      (words + kThreads - 1) / kThreads, std::size_t{kBlocksPerMultiprocessor} * multiprocessors_));
  for (std::size_t first = 0; first < count; first += kMostRows) {
    const auto rows = static_cast<unsigned>(std::min(kMostRows, count - first));
    CUdeviceptr from = memory + first * stride, to = sums_->get() + first * sizeof(std::uint64_t);
    void* arguments[] = {&from, &bytes, &stride, &to};
    driver.check(driver.LaunchKernel(function_, blocks, rows, 1, kThreads, 1, 1, 0, stream,
                                     arguments, nullptr),
                 "cuLaunchKernel");
  }
  std::vector<std::uint64_t> sums(count);
  driver.check(
      driver.MemcpyDtoHAsync(sums.data(), sums_->get(), count * sizeof(std::uint64_t), stream),
      "cuMemcpyDtoHAsync");
  driver.check(driver.StreamSynchronize(stream), "cuStreamSynchronize");
  return sums;
}

}  // namespace kiln::runtime
