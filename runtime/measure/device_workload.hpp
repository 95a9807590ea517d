// A workload on a device: the arguments of tuning launches, copies of them that keep the cache
// cold, whether outputs are right, and whether anything else was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/definition.hpp"
#include "runtime/device/cache_flush.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/guarded_memory.hpp"
#include "runtime/device/module_data.hpp"
#include "runtime/measure/trial_data.hpp"
#include "runtime/measure/verify.hpp"

namespace kiln::runtime {

/// Not thread-safe.
class DeviceWorkload {
 public:
  /// Makes the data and uploads it. @throws UserError when the kernel's `workload` does not fit its
  /// signature, OutOfMemory when a tuning may not take what it needs, EnvironmentError when the
  /// device does not give it.
  /// @pre `kernel` outlives it
  DeviceWorkload(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                 std::shared_ptr<Device> device, std::uint64_t seed, std::size_t draw = 0);
  /// Uploads what was made. @throws likewise
  DeviceWorkload(KernelData data, std::shared_ptr<Device> device);

  /// What such an object takes of the device's memory, copies and what empties the cache apart.
  static std::uint64_t taken(const Device& device, const KernelData& data);

  /// Runs the kernel's reference, if there is one and it has not run. verify() does so itself;
  /// calling this before lets the reference run while something else is waited for. @throws what
  /// the reference throws. The outputs may be half written then: the object must not be used again.
  void expect();

  /// Argument addresses, as Device::launch takes them: those of the first copy, or of copy
  /// `index % copies()`.
  void** arguments() noexcept { return addresses_.data(); }
  void** arguments(std::size_t index) noexcept;
  bool has_variables() const noexcept { return !data_.variables.empty(); }
  /// Whether a reference or a check says what is right.
  bool knows_results() const noexcept { return data_.judge.reference || data_.judge.check; }
  const KernelData& data() const noexcept { return data_; }

  /// Copies the data of a candidate's variables into its module; null if there are none.
  /// @throws UserError as ModuleData::of
  std::shared_ptr<ModuleData> module_data(std::shared_ptr<const Module> kernel,
                                          std::span<const std::int64_t> config) const {
    return ModuleData::of(variables_for(data_, config), device_, std::move(kernel));
  }

  /// Restores the first copy's in/out arrays.
  void restore(Stream stream) { restore(stream, 0); }

  using Verdict = runtime::Verdict;
  /// Poisons the outputs, has `launch` enqueue the kernel on `stream`, and compares what it wrote
  /// with what it should. Without a reference or a check the first kernel whose outputs are all
  /// written defines that, by two launches. A kernel that changes an input, or what lies around an
  /// array, is wrong, whatever its outputs. Waits for the device. Uses the first copy alone.
  ///
  /// Every kernel finds the inputs as they were made: what one has changed is put right before the
  /// next is judged, also if it failed, or changed it while it was timed.
  Verdict verify(Stream stream, const std::function<void()>& launch);

  /// Of each output as the last verified launch left it. Of a device that computes none: nothing,
  /// or with `always` what the host computes of downloads.
  enum class Digests { of_device, always };
  std::vector<std::uint64_t> output_digests(Digests wanted = Digests::of_device);

  /// Lets a trusted launch define what is right, in the place of a reference. It runs twice. It is
  /// not right when it leaves an output unwritten, writes different outputs the second time, or
  /// writes where it may not; then nothing is defined.
  /// @throws Error when it cannot be launched; nothing is defined then, either
  Verdict define(Stream stream, const std::function<void()>& launch);
  /// Takes define() back.
  void forget();

  /// What launches since the last call, or since verify(), have changed that they may not: an input
  /// of any copy, or what lies around an array. Puts it right. Empty: nothing. For timed launches,
  /// which verify() does not see: a caller that timed several kernels in turn does not learn which
  /// of them it was. An input that was changed and put back by the kernel itself, and what is
  /// written and read between the copies of a small array, is not seen. The launches must have
  /// ended.
  std::string repair();

  /// With `cold`, launches that take the copies in turn find none of their data in the device's
  /// last-level cache; without, they find what the launch before left there. The first call that
  /// needs copies makes them.
  ///
  /// Copies together fill the cache a few times over. Data that do so by themselves need none: one
  /// launch leaves little that the next could find. Copies never take more than an eighth of the
  /// memory, more than half of what is there beside the reserve, and on the host kHostCopyBytes.
  /// Where they are too few, and on devices with a stream in any case, prepare() fills the cache
  /// with something else; not on the host, where that would cost more than what is timed, and where
  /// data so small are in a cache in real life, too.
  void keep_cold(bool cold);
  std::size_t copies() const noexcept { return copies_; }
  /// Launches between two prepare() calls that find what they should: cold data, restored arrays.
  std::size_t most_launches() const noexcept;
  /// The next `launches` copies in turn: index of the first.
  std::size_t take(std::size_t launches) noexcept;
  /// Warnings since the last call about what there was no memory for.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  /// What a sample of `launches` from copy `first` on needs before it, outside the timed region:
  /// in/out arrays restored, the cache filled with something else. Enqueues on `stream`.
  void prepare(Stream stream, std::size_t first, std::size_t launches);

  static constexpr std::size_t kHostCopyBytes = std::size_t{256} << 20;

 private:
  struct Array {
    std::size_t argument = 0;
    GuardedMemory memory;
    DeviceMemory pristine;                ///< of in/out arrays; of padded outputs, unwritten
    std::vector<std::byte> padding;       ///< after each row
    std::optional<std::uint64_t> digest;  ///< of inputs as they were made, if the device has some
    GuardedMemory copies;                 ///< all but the first, one behind the other
    std::size_t stride = 0;
    void* address = nullptr;
    std::byte poison{0xff};

    void* copy(std::size_t index) const noexcept {
      return index == 0 ? address : static_cast<std::byte*>(copies.data()) + (index - 1) * stride;
    }
  };

  void run(Stream stream, const std::function<void()>& launch);
  void run_alone(Stream stream, const std::function<void()>& launch);
  void renew(const Array& array, std::size_t copy, Stream stream);
  std::vector<Workload::Argument>& host() noexcept { return data_.trial->arguments; }
  const std::vector<Workload::Argument>& host() const noexcept { return data_.trial->arguments; }
  void choose_poison();
  Verdict judge();
  Verdict compare_outputs();
  Verdict check();
  std::span<const std::byte> output(const Array& array);
  bool unchanged(const Array& input);
  void download(const Array& array, std::span<std::byte> to);
  std::string repair_surroundings(Array& array);
  std::string repair_input(Array& array);
  std::string repair_padding(Array& array);
  void restore(Stream stream, std::size_t copy);
  std::size_t wanted_copies() const noexcept;
  std::size_t copies_that_fit(std::size_t wanted) const;
  void make_copies();
  bool try_to_make_copies(std::size_t count);

  KernelData data_;  ///< inputs as they were made; outputs as expected, once that is known
  std::shared_ptr<Device> device_;
  bool has_in_out_ = false;
  bool suspect_ = false;  ///< launches may have changed what repair() looks at
  bool timed_ = false;    ///< in other copies than the first, too
  std::vector<Array> arrays_;
  std::vector<void*> addresses_;

  bool tried_copies_ = false;
  bool cold_ = false;
  bool covering_ = true;         ///< going round the copies is enough to find the cache cold
  std::size_t made_copies_ = 1;  ///< the first included
  std::size_t copies_ = 1;       ///< of them in use
  std::size_t next_ = 0;         ///< copy that take() gives next
  std::vector<void*> places_;    ///< array addresses of all copies, copy by copy
  std::vector<void*> turned_;    ///< argument addresses of all copies, copy by copy
  detail::HostArray got_;        ///< an output, downloaded: kept, since new pages take long
  std::map<std::vector<std::uint64_t>, Verdict> judged_;  ///< by the outputs' digests
  std::vector<bool> used_;  ///< copies whose in/out arrays were written
  CacheFlush flush_;
  bool flush_failed_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace kiln::runtime
