// Ranks that run the ring on the host target (ring_all_gather.hpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kiln/kiln.hpp"
#include "ring_all_gather.hpp"

namespace kiln::test {

/// One rank's end of it, on a Runtime of its own.
class Ring {
 public:
  explicit Ring(const Runtime& runtime) : runtime_(runtime), kernel_(runtime.tuned(definition())) {
    // Compiled before anybody waits: without chunks it needs no other rank.
    Peers alone{0, 1, 1, nullptr, nullptr, nullptr, nullptr};
    Peers::Peer self{&alone, nullptr};
    alone.peer = &self;
    int none = 0;
    launch(&alone, &none, 0, 0, 1, -1);
  }

  static SymmetricOptions options(int ranks, double seconds) {
    return {.bytes = sizeof(int) * static_cast<std::size_t>(2 * kChunk * kChunks * ranks),
            .flags = static_cast<unsigned>(kChunks * ranks + 1),
            .seconds = seconds};
  }

  /// Runs an epoch on all ranks. @returns whether every value is right
  bool run(const SymmetricMemory& memory, unsigned epoch, Deadline deadline, int odd = -1) {
    const int shard = kChunk * kChunks, ranks = memory.size();
    std::vector<int> out(static_cast<std::size_t>(shard * ranks), -7);
    memory.within(deadline, [&] {
      launch(memory.peers(), out.data(), kChunk, kChunks, epoch, odd);
      runtime_.synchronize();
    });
    for (int r = 0; r < ranks; ++r)
      for (int i = 0; i < shard; ++i)
        if (out[static_cast<std::size_t>(r * shard + i)] !=
            static_cast<int>(epoch * 31u) + r * 1000 + i)
          return false;
    return true;
  }

 private:
  static constexpr int kChunk = 37, kChunks = 3;  // no multiples of the threads

  static KernelDefinition definition() {
    KernelDefinition k;
    k.name = "ring";
    k.source.text = kRingAllGather;
    k.entry = "ring";
    k.arguments = {"const kiln::Peers*", "int*", "int", "int", "unsigned int", "int"};
    k.space.parameter("threads", {64}, 64);
    k.problem_fields = {"n"};
    k.launch = [](auto, auto) { return Launch{{1}, {64}}; };
    return k;
  }
  void launch(const Peers* peers, int* out, int chunk, int chunks, unsigned epoch, int odd) {
    kernel_.with_config({64})({}, {1}, peers, out, chunk, chunks, epoch, odd);
  }

  const Runtime& runtime_;
  DynamicTuned kernel_;
};

}  // namespace kiln::test
