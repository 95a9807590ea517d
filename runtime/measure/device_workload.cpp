#include "runtime/measure/device_workload.hpp"

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>

#include "kiln/detail/format.hpp"
#include "runtime/device/array_digest.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/padding.hpp"
#include "runtime/support/foreign_exception.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Copies are this many times the cache: with replacement at random, little of a copy survives.
constexpr std::size_t kOverCache = 3;
constexpr std::size_t kMostCopies = 4096;
/// Guard bytes behind an array, for blocks that ignore where it ends. Fewer are enough behind its
/// copies, because launches on them were verified before.
constexpr std::size_t kGuardBytes = std::size_t{64} << 10, kCopyGuardBytes = 4096;
/// Copies are aligned as allocations of their own would be.
constexpr std::size_t rounded_up(std::size_t bytes) {
  const std::size_t alignment = bytes >= 4096 ? 4096 : 512;
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Elements of odd sizes are no floating-point numbers.
GuardPattern pattern_of(const Workload::Argument& argument) {
  return argument.element_bytes % 2 == 0 ? GuardPattern::nan : GuardPattern::bytes;
}

/// Whether an array holds more before a launch than one byte that is repeated.
bool needs_pristine(const Workload::Argument& argument) {
  if (argument.direction == Direction::in) return false;
  return argument.padded() || (argument.direction == Direction::in_out && !argument.zeroed);
}

}  // namespace

DeviceWorkload::DeviceWorkload(const KernelDefinition& kernel,
                               std::span<const std::int64_t> problem,
                               std::shared_ptr<Device> device, std::uint64_t seed, std::size_t draw)
    : DeviceWorkload(make_data(kernel, problem, seed, draw), std::move(device)) {}

DeviceWorkload::DeviceWorkload(KernelData data, std::shared_ptr<Device> device)
    : data_(std::move(data)), device_(std::move(device)) {
  // A machine may promise more memory than it has, and end the process that then uses it.
  require_spare(*device_, data_.trial->subject + ": its arrays", taken(*device_, data_));
  auto& arguments = host();
  arrays_.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    Workload::Argument& a = arguments[i];
    if (!a.pointer) {
      addresses_.push_back(a.bytes.data());
      continue;
    }
    Array& array = arrays_.emplace_back();
    array.argument = i;
    array.memory = GuardedMemory(device_, a.bytes.size(), kGuardBytes, pattern_of(a));
    array.address = array.memory.data();
    addresses_.push_back(&array.address);
    if (a.bytes.empty()) continue;
    has_in_out_ = has_in_out_ || a.direction == Direction::in_out;
    if (a.direction != Direction::in) array.padding = padding_of(a);
    if (a.direction == Direction::out && array.padding.empty()) continue;
    device_->copy_to_device(array.address, a.bytes.data(), a.bytes.size());
    if (a.direction == Direction::in) {
      if (const auto found = device_->digests(array.address, a.bytes.size(), 0, 1); !found.empty())
        array.digest = found.front();
    } else if (needs_pristine(a)) {
      array.pristine = take_spare(device_, "an array of a tuning", a.bytes.size());
      device_->copy_to_device(array.pristine.data(), a.bytes.data(), a.bytes.size());
    }
  }
  used_.resize(1);
}

void DeviceWorkload::expect() {
  if (data_.trial->expected_known || !data_.judge.reference) return;
  if (data_.expected) {
    for (Array& array : arrays_)
      if (Workload::Argument& a = host()[array.argument]; a.direction != Direction::in)
        a.bytes = (*data_.expected)[array.argument];
    data_.trial->expected_known = true;
    choose_poison();
    return;
  }
  std::vector<void*> args;
  for (Workload::Argument& argument : host()) args.push_back(argument.bytes.data());
  data_.judge.reference(args);
  data_.trial->expected_known = true;
  choose_poison();
  // A reference may have used its inputs as scratch: what is on the device is what they were.
  for (Array& array : arrays_)
    if (Workload::Argument& a = host()[array.argument];
        a.direction == Direction::in && (!array.digest || array_digest(a.bytes) != *array.digest))
      download(array, a.bytes);
}

void DeviceWorkload::download(const Array& array, std::span<std::byte> to) {
  if (!to.empty()) device_->copy_to_host(to.data(), array.address, to.size());
}

std::uint64_t DeviceWorkload::taken(const Device& device, const KernelData& data) {
  std::uint64_t bytes = 0;
  for (const Workload::Argument& a : data.trial->arguments) {
    if (!a.pointer || a.bytes.empty()) continue;
    bytes += GuardedMemory::taken(device, a.bytes.size(), kGuardBytes);
    if (needs_pristine(a)) bytes += taken_by(device, a.bytes.size());
  }
  return bytes;
}

/// All ones is a NaN in every floating-point type, but it is also -1, and a reference may expect
/// NaNs. This chooses a byte that makes every element wrong that the kernel does not write.
void DeviceWorkload::choose_poison() {
  for (Array& array : arrays_) {
    const Workload::Argument& argument = host()[array.argument];
    if (argument.direction != Direction::out) continue;
    array.poison = most_wrong_byte(argument, argument.bytes, data_.trial->tolerance);
    if (!array.pristine.bytes()) continue;
    const Stream stream = device_->tuning_stream();
    device_->fill(array.pristine.data(), array.poison, argument.bytes.size(), stream);
    device_->synchronize(stream);
    write_padding(*device_, array.pristine.data(), argument, array.padding);
  }
}

void DeviceWorkload::restore(Stream stream, std::size_t copy) {
  for (Array& array : arrays_)
    if (host()[array.argument].direction == Direction::in_out) renew(array, copy, stream);
}

/// As before a launch.
void DeviceWorkload::renew(const Array& array, std::size_t copy, Stream stream) {
  const std::size_t bytes = array.memory.bytes();
  const bool zeroed = host()[array.argument].zeroed;
  if (array.pristine.bytes())
    device_->copy_on_device(array.copy(copy), array.pristine.data(), bytes, stream);
  else if (bytes)
    device_->fill(array.copy(copy), zeroed ? std::byte{} : array.poison, bytes, stream);
}

void DeviceWorkload::run(Stream stream, const std::function<void()>& launch) {
  if (suspect_) repair();
  suspect_ = true;
  for (Array& array : arrays_)
    if (host()[array.argument].direction == Direction::out) renew(array, 0, stream);
  restore(stream);
  if (has_in_out_) used_[0] = true;
  launch();
  device_->synchronize(stream);
}

void DeviceWorkload::run_alone(Stream stream, const std::function<void()>& launch) {
  run(stream, launch);
  if (const std::string damage = repair(); !damage.empty()) throw WrongResult(damage);
}

Verdict DeviceWorkload::verify(Stream stream, const std::function<void()>& launch) try {
  expect();
  if (!data_.judge.check && !data_.trial->expected_known) return define(stream, launch);
  run_alone(stream, launch);
  return judge();
} catch (const WrongResult& wrong) {
  return {false, std::numeric_limits<double>::infinity(), wrong.what()};
}

Verdict DeviceWorkload::define(Stream stream, const std::function<void()>& launch) try {
  run_alone(stream, launch);
  for (Array& array : arrays_) {
    Workload::Argument& argument = host()[array.argument];
    if (argument.direction != Direction::in) download(array, argument.bytes);
  }
  // The poison differs from the first launch's, so an element that the kernel does not write
  // differs between the two launches.
  choose_poison();
  run_alone(stream, launch);
  const Verdict verdict = compare_outputs();
  if (!verdict.right) forget();
  data_.trial->expected_known = verdict.right;
  return verdict;
} catch (const WrongResult& wrong) {
  forget();
  return {false, std::numeric_limits<double>::infinity(), wrong.what()};
} catch (...) {
  forget();
  throw;
}

void DeviceWorkload::forget() {
  data_.trial->expected_known = false;
  judged_.clear();
  if (device_->lost()) return;
  for (Array& array : arrays_) {
    Workload::Argument& argument = host()[array.argument];
    if (argument.direction != Direction::in_out || argument.bytes.empty()) continue;
    if (array.pristine.bytes())
      device_->copy_to_host(argument.bytes.data(), array.pristine.data(), argument.bytes.size());
    else
      std::fill(argument.bytes.begin(), argument.bytes.end(), std::byte{});
  }
}

/// Many candidates compute the same bits: those are judged once.
Verdict DeviceWorkload::judge() {
  const std::vector<std::uint64_t> digests = output_digests();
  if (const auto known = judged_.find(digests); known != judged_.end()) return known->second;
  const Verdict verdict = data_.judge.check ? check() : compare_outputs();
  if (!digests.empty()) judged_.emplace(digests, verdict);
  return verdict;
}

std::vector<std::uint64_t> DeviceWorkload::output_digests(Digests wanted) {
  std::vector<std::uint64_t> digests;
  for (const Array& array : arrays_) {
    const Workload::Argument& argument = host()[array.argument];
    if (argument.direction == Direction::in || argument.bytes.empty()) continue;
    const auto found = device_->digests(array.address, argument.bytes.size(), 0, 1);
    if (found.empty() && wanted == Digests::of_device) return {};
    digests.push_back(found.empty() ? array_digest(output(array)) : found.front());
  }
  return digests;
}

Verdict DeviceWorkload::check() {
  std::vector<detail::HostArray> outputs;
  outputs.reserve(arrays_.size());
  std::vector<void*> got, expected;
  for (Workload::Argument& argument : host()) expected.push_back(argument.bytes.data());
  got = expected;
  for (const Array& array : arrays_) {
    const Workload::Argument& argument = host()[array.argument];
    if (argument.direction == Direction::in) continue;
    download(array, outputs.emplace_back(argument.bytes.size()));
    got[array.argument] = outputs.back().data();
  }
  std::string why;
  try {
    why = data_.judge.check(got, expected);
  } catch (const std::exception& error) {
    why = format("the kernel's `check` threw an exception: {}", error.what());
  } catch (...) {
    why = kForeignException;
  }
  if (!why.empty()) return {false, std::numeric_limits<double>::infinity(), why};
  if (!data_.trial->expected_known) return {};
  return judge_norms(host(), got, data_.trial->tolerance);
}

std::string DeviceWorkload::repair() {
  std::string first;
  const auto note = [&](std::string found) {
    if (first.empty()) first = std::move(found);
  };
  for (Array& array : arrays_) {
    note(repair_surroundings(array));
    note(repair_input(array));
    note(repair_padding(array));
  }
  suspect_ = timed_ = false;
  return first;
}

std::string DeviceWorkload::repair_surroundings(Array& array) {
  std::optional<std::ptrdiff_t> found = array.memory.breach();
  if (found) array.memory.repair();
  if (timed_)
    if (const auto breach = array.copies.breach()) {
      array.copies.repair();
      const auto before_last = static_cast<std::ptrdiff_t>((made_copies_ - 2) * array.stride);
      if (!found) found = *breach < 0 ? *breach : *breach - before_last;
    }
  if (!found) return {};
  return describe_outside(*found, array.argument, host()[array.argument]);
}

bool DeviceWorkload::unchanged(const Array& input) {
  if (!input.digest) return false;
  const auto same = [&](const void* first, std::size_t count) {
    const auto found = device_->digests(first, input.memory.bytes(), input.stride, count);
    return found.size() == count &&
           std::all_of(found.begin(), found.end(),
                       [&](std::uint64_t digest) { return digest == *input.digest; });
  };
  if (!same(input.address, 1)) return false;
  return !timed_ || !input.copies.data() || same(input.copies.data(), made_copies_ - 1);
}

std::string DeviceWorkload::repair_input(Array& array) {
  const Workload::Argument& argument = host()[array.argument];
  const std::span<const std::byte> want = argument.bytes;
  if (argument.direction != Direction::in || want.empty() || unchanged(array)) return {};
  std::string why;
  const auto tell = [&](const void* memory, std::size_t total, std::size_t stride) {
    const auto changed = first_change(*device_, memory, total, stride, want);
    if (changed && why.empty()) {
      const std::size_t size = argument.type == DataType::bytes ? 1 : argument.element_bytes;
      const std::size_t index = *changed % stride / size;
      std::vector<std::byte> got(size);
      device_->copy_to_host(
          got.data(),
          static_cast<const std::byte*>(memory) + *changed / stride * stride + index * size, size);
      why = describe_changed_input(index, array.argument, argument, got,
                                   want.subspan(index * size, size));
    }
    return changed.has_value();
  };
  if (tell(array.address, want.size(), want.size()))
    device_->copy_to_device(array.address, want.data(), want.size());
  if (timed_ && array.copies.data() &&
      tell(array.copies.data(), array.copies.bytes(), array.stride))
    for (std::size_t copy = 1; copy < made_copies_; ++copy)
      device_->copy_to_device(array.copy(copy), want.data(), want.size());
  return why;
}

std::string DeviceWorkload::repair_padding(Array& array) {
  if (array.padding.empty()) return {};
  const Workload::Argument& argument = host()[array.argument];
  std::string why;
  const std::size_t copies = timed_ ? made_copies_ : 1;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    const auto changed = changed_padding(*device_, array.copy(copy), argument, array.padding);
    if (!changed) continue;
    if (why.empty()) why = describe_padding(*changed, array.argument, argument);
    write_padding(*device_, array.copy(copy), argument, array.padding);
  }
  return why;
}

std::span<const std::byte> DeviceWorkload::output(const Array& array) {
  const std::size_t bytes = host()[array.argument].bytes.size();
  if (got_.size() < bytes) got_ = detail::HostArray(bytes);
  download(array, {got_.data(), bytes});
  return {got_.data(), bytes};
}

Verdict DeviceWorkload::compare_outputs() {
  Verdict verdict;
  for (Array& array : arrays_) {
    const Workload::Argument& argument = host()[array.argument];
    if (argument.direction == Direction::in || argument.bytes.empty()) continue;
    const std::span<const std::byte> got = output(array);
    const Comparison comparison = compare(argument, got, argument.bytes, data_.trial->tolerance);
    verdict.max_error = std::max(verdict.max_error, comparison.max_error);
    verdict.norm_error = std::max(verdict.norm_error, comparison.norm_error);
    if (!comparison.passes() && verdict.right) {
      verdict.right = false;
      verdict.why = describe(comparison, array.argument, argument, got, argument.bytes);
    }
  }
  return verdict;
}

void** DeviceWorkload::arguments(std::size_t index) noexcept {
  const std::size_t copy = index % copies_;
  return copy == 0 ? addresses_.data() : turned_.data() + (copy - 1) * addresses_.size();
}

std::size_t DeviceWorkload::wanted_copies() const noexcept {
  std::size_t set = 0;
  for (const Array& array : arrays_) set += rounded_up(array.memory.bytes());
  const DeviceInfo& info = device_->info();
  const std::size_t wanted =
      kOverCache * static_cast<std::size_t>(std::max<std::int64_t>(0, info.limits.l2_bytes));
  if (set == 0 || set >= wanted) return 1;
  std::size_t most = wanted + set;
  if (info.limits.memory_bytes > 0)
    most = std::min(most, static_cast<std::size_t>(info.limits.memory_bytes) / 8);
  if (device_->shares_cpu()) most = std::min(most, kHostCopyBytes);
  return std::clamp<std::size_t>(std::min((wanted + set - 1) / set, most / set), 1, kMostCopies);
}

/// Half of what is spare is left for the workspaces of candidates, and for what empties the cache.
std::size_t DeviceWorkload::copies_that_fit(std::size_t wanted) const {
  const auto spare = spare_bytes(*device_);
  if (!spare) return wanted;
  const auto taken = [&](std::size_t count) {
    std::uint64_t bytes = 0;
    for (const Array& array : arrays_)
      bytes += GuardedMemory::taken(*device_, (count - 1) * rounded_up(array.memory.bytes()),
                                    kCopyGuardBytes);
    return bytes;
  };
  std::size_t count = wanted;
  while (count > 1 && taken(count) > *spare / 2) count -= (count + 7) / 8;
  return count;
}

/// False: the device does not give the memory.
bool DeviceWorkload::try_to_make_copies(std::size_t count) try {
  const Stream stream = device_->tuning_stream();
  for (Array& array : arrays_) {
    array.stride = rounded_up(array.memory.bytes());
    array.copies = GuardedMemory(device_, (count - 1) * array.stride, kCopyGuardBytes,
                                 pattern_of(host()[array.argument]));
    // The gaps between copies are downloaded too, so they must be written first: tools that
    // look for reads of uninitialised memory would report them.
    if (array.stride > array.memory.bytes())
      device_->fill(array.copies.data(), std::byte{}, array.copies.bytes(), stream);
  }
  // The copies have equal contents: in/out arrays as they were at first, the others as they
  // are. Each step doubles the number of copies made.
  restore(stream, 0);
  for (Array& array : arrays_) {
    if (array.memory.bytes() == 0) continue;
    auto* const to = static_cast<std::byte*>(array.copies.data());
    device_->copy_on_device(to, array.address, array.memory.bytes(), stream);
    for (std::size_t made = 1; made < count - 1; made *= 2)
      device_->copy_on_device(to + made * array.stride, to,
                              std::min(made, count - 1 - made) * array.stride, stream);
  }
  device_->synchronize(stream);
  made_copies_ = count;
  return true;
} catch (const std::exception&) {
  for (Array& array : arrays_) array.copies = {};
  return false;
}

void DeviceWorkload::make_copies() {
  tried_copies_ = true;
  const std::size_t wanted = wanted_copies();
  std::size_t count = copies_that_fit(wanted);
  // Less memory may be there than the device said a moment ago.
  while (count > 1 && !try_to_make_copies(count)) count /= 2;
  if (made_copies_ < wanted)
    warnings_.push_back(format(
        "the device's memory has room for {} of {} copies of the arrays, which keep its cache "
        "cold",
        made_copies_, wanted));
  used_.assign(made_copies_, false);
  for (std::size_t copy = 1; copy < made_copies_; ++copy)
    for (const Array& array : arrays_) places_.push_back(array.copy(copy));
  for (std::size_t copy = 1; copy < made_copies_; ++copy) {
    turned_.insert(turned_.end(), addresses_.begin(), addresses_.end());
    for (std::size_t a = 0; a < arrays_.size(); ++a)
      turned_[(copy - 1) * addresses_.size() + arrays_[a].argument] =
          &places_[(copy - 1) * arrays_.size() + a];
  }
}

void DeviceWorkload::keep_cold(bool cold) {
  const auto cache =
      static_cast<std::size_t>(std::max<std::int64_t>(0, device_->info().limits.l2_bytes));
  cold_ = cold && cache > 0 && !arrays_.empty();
  if (suspect_) repair();  // copies are made of the first one
  if (cold_ && !tried_copies_) make_copies();
  copies_ = cold_ ? made_copies_ : 1;
  next_ = 0;
  std::size_t set = 0;
  for (const Array& array : arrays_) set += array.memory.bytes();
  covering_ = !cold_ || copies_ * set >= kOverCache * cache;
  if (!cold_ || device_->shares_cpu()) {
    flush_ = {};
  } else if (!flush_) {
    try {
      flush_ = CacheFlush(device_);
    } catch (const std::exception& error) {
      // The cache is then only as cold as the copies make it.
      if (!std::exchange(flush_failed_, true))
        warnings_.push_back(format("the cache is not emptied between samples: {}", error.what()));
    }
  }
}

std::size_t DeviceWorkload::most_launches() const noexcept {
  constexpr std::size_t kMost = 1000;
  const bool each_once = has_in_out_ || (flush_ && !covering_);
  return each_once ? std::min(copies_, kMost) : kMost;
}

std::size_t DeviceWorkload::take(std::size_t launches) noexcept {
  const std::size_t first = next_;
  next_ = (next_ + launches) % copies_;
  return first;
}

void DeviceWorkload::prepare(Stream stream, std::size_t first, std::size_t launches) {
  suspect_ = timed_ = true;
  if (has_in_out_) {
    // Restored here are the copies that samples before have used, long before their next turn.
    for (std::size_t copy = 0; copy < used_.size(); ++copy)
      if (used_[copy]) restore(stream, copy);
    used_.assign(used_.size(), false);
    for (std::size_t i = 0; i < launches; ++i) used_[(first + i) % copies_] = true;
  }
  flush_.run(stream);
}

}  // namespace kiln::runtime
