// What a worker is told and asked: fields of frames, and the layout of the memory file with the
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/measure/trial.hpp"
#include "runtime/measure/trial_data.hpp"
#include "runtime/measure/verify.hpp"
#include "runtime/processes/frame.hpp"
#include "runtime/worker/peer_part.hpp"

namespace kiln::runtime {

/// A value as its bytes: both ends are of one build (worker_identity).
template <class T>
void put(FieldWriter& fields, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  fields.bytes(std::as_bytes(std::span(&value, 1)));
}
template <class T>
T get(FieldReader& fields) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = fields.bytes();
  T value;
  if (bytes.size() != sizeof value) throw BrokenFrame("a field of another size");
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// Workers with equal identities understand each other.
std::string worker_identity();

/// The device that a worker opens.
struct WorkerDevice {
  bool host = true;
  std::string place{};  ///< of a CUDA device, as cuda_place
  int reserved_multiprocessors = 0;
  std::uint64_t reserve_bytes = 0;  ///< as Device::reserve
};

/// Where an argument lies in the memory file. What it is to hold after a launch is there once it is
/// known; inputs have no such place.
struct ArgumentPlace {
  std::uint64_t given = 0, expected = 0;
  /// The group (WorkerSetup::groups) of which the argument is a place; -1: it holds what is given.
  int group = -1;
  PeerPlace in_group{};
};

struct WorkerSetup {
  WorkerDevice device;
  /// What is right will be in the memory file when a trial is verified; it is there already for
  /// draws where it is known.
  bool expects = false;
  bool checks = false;                             ///< outputs are judged in the program
  std::vector<KernelData> draws;                   ///< without contents, variables and judges
  std::vector<std::vector<ArgumentPlace>> places;  ///< by draw, by argument
  /// Its trials run at the same time as those of other ranks' workers: it has a bench once it has
  /// reached their memory (Ask::reach).
  bool in_step = false;
  std::vector<PeerShape> groups{};  ///< symmetric memory that it has with them

  std::vector<std::byte> pack() const;
  /// The arguments' bytes are there, but hold nothing. @throws BrokenFrame
  static WorkerSetup unpack(std::span<const std::byte> bytes);
};

/// A worker's reply to its setup.
struct WorkerGreeting {
  std::string obstacle;  ///< why it cannot work; empty: it can
  bool passes = false;   ///< that may be another time: it lacks memory, for instance
  std::string identity;
  bool shares_cpu = false;

  std::vector<std::byte> pack() const;
  /// @throws BrokenFrame
  static WorkerGreeting unpack(std::span<const std::byte> bytes);
  /// The same of the worker `executable`, where bytes that are no greeting and another build are
  /// obstacles.
  static WorkerGreeting heard(std::span<const std::byte> bytes, const std::string& executable);
};

enum class Ask : std::uint64_t {
  load,              ///< rigs to forget, then a trial; answers a rig's number
  verify,            ///< rig, draw; answers a verdict, and the number of outputs to be judged, or 0
  define,            ///< rig, draw; answers a verdict
  forget,            ///< what define() defined
  keep_cold,         ///< cold, seconds left; answers warnings
  let_overlap,       ///< overlap
  most_launches,     ///< rig; answers a number
  time,              ///< rig, launches; answers seconds
  record,            ///< rig, launches; answers whether it was
  forget_recording,  ///< rig
  repair,            ///< answers what was changed
  share,             ///< answers how others reach its symmetric memory, by group
  reach,             ///< the same of all ranks, by group
  begin_in_step,     ///< all flags to 0, of each group; from now on the bench keeps in step
  is_there,          ///< also where it has no bench
  outputs            ///< draw, argument, whether defined, offset, count; answers bytes
};

enum class AnswerKind : std::uint64_t {
  done,      ///< and the answer
  refused,   ///< a trial that is not loaded: status, reason
  failed,    ///< an error's text
  lost,      ///< likewise; the device works no more
  no_memory  ///< likewise; there may be some later
};

void put_trial(FieldWriter& fields, const Trial& trial);
/// Without data. @throws BrokenFrame
Trial get_trial(FieldReader& fields);

void put_verdict(FieldWriter& fields, const Verdict& verdict);
Verdict get_verdict(FieldReader& fields);

}  // namespace kiln::runtime
