#include "communication_model.hpp"

#include <algorithm>

namespace sim {
namespace {

constexpr double kBytesOfBf16 = 2;

double part_for_others(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

/// How long a GEMM of all rows takes that leaves multiprocessors to communication.
double slowed_gemm(const Operation& op, const Machine& machine, const Overlap& how) {
  return gemm_seconds(op, machine) / (1 - how.communicating);
}

/// A link of one GPU: one transfer at a time, in the order in which they are given to it.
class Link {
 public:
  explicit Link(const Machine& machine) : machine_(machine) {}
  /// When the last byte is there, if the first may leave at `ready`.
  double send(double ready, double bytes) {
    return free_ = std::max(free_, ready) + copy_seconds(bytes, machine_);
  }

 private:
  const Machine& machine_;
  double free_ = 0;
};

}  // namespace

double copy_seconds(double bytes, const Machine& machine) {
  return machine.copy_start_seconds + bytes / machine.bytes_per_second;
}

double gemm_seconds(const Operation& op, const Machine& machine) {
  return 2.0 * static_cast<double>(op.m) * static_cast<double>(op.n) * static_cast<double>(op.k) /
         machine.flops_per_second;
}

double all_gather_seconds(const Operation& op, const Machine& machine) {
  return kBytesOfBf16 * static_cast<double>(op.m) * static_cast<double>(op.k) *
         part_for_others(op.ranks) / machine.bytes_per_second;
}

double reduce_scatter_seconds(const Operation& op, const Machine& machine) {
  return kBytesOfBf16 * static_cast<double>(op.m) * static_cast<double>(op.n) *
         part_for_others(op.ranks) / machine.bytes_per_second;
}

double unfused_all_gather_gemm(const Operation& op, const Machine& machine) {
  return 2 * machine.launch_seconds + all_gather_seconds(op, machine) + gemm_seconds(op, machine);
}

double unfused_gemm_reduce_scatter(const Operation& op, const Machine& machine) {
  return 2 * machine.launch_seconds + gemm_seconds(op, machine) +
         reduce_scatter_seconds(op, machine);
}

double fused_all_gather_gemm(const Operation& op, const Machine& machine, const Overlap& how) {
  const double chunk_bytes = kBytesOfBf16 * static_cast<double>(op.m) * static_cast<double>(op.k) /
                             (op.ranks * how.chunks);
  const double chunk_work = slowed_gemm(op, machine, how) / (op.ranks * how.chunks);
  // All ranks do the same at the same time, each shifted by one: so what a rank receives comes as
  // what it sends leaves, one peer after the other.
  Link link(machine);
  double now = machine.launch_seconds + how.chunks * chunk_work;  // its own rows
  for (int peer = 1; peer < op.ranks; ++peer) {
    for (int chunk = 0; chunk < how.chunks; ++chunk) {
      const double there = link.send(machine.launch_seconds, chunk_bytes) + machine.flag_seconds;
      now = std::max(now, there) + chunk_work;
    }
  }
  return now;
}

double fused_gemm_reduce_scatter(const Operation& op, const Machine& machine, const Overlap& how) {
  const double chunk_bytes = kBytesOfBf16 * static_cast<double>(op.m) * static_cast<double>(op.n) /
                             (op.ranks * how.chunks);
  const double chunk_work = slowed_gemm(op, machine, how) / (op.ranks * how.chunks);
  Link link(machine);
  double now = machine.launch_seconds, last = now;
  for (int peer = 1; peer < op.ranks; ++peer) {
    for (int chunk = 0; chunk < how.chunks; ++chunk) {
      now += chunk_work;
      last = link.send(now, chunk_bytes) + machine.flag_seconds;
    }
  }
  now += how.chunks * chunk_work;  // its own rows
  // What came is read and added to its own sums, which are read and written.
  const double added = 3 * chunk_bytes / machine.memory_bytes_per_second;
  return std::max(now, last) + added;
}

}  // namespace sim
