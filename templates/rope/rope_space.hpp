// What configs of the kernels of rope.hpp there are, and how each is launched.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "templates/rope/rope.hpp"

namespace kiln::templates {

/// Elements of the widest accesses that sizes and strides allow in either order, at least 2.
template <class Problem>
constexpr int rope_vector(const Problem& p, int widest) {
  int vector = widest;
  while (vector > 2 &&
         (p.rotary_dim / 2 % vector != 0 || p.head_dim % vector != 0 || p.strides() % vector != 0))
    vector /= 2;
  return vector;
}

/// Bytes of shared memory that a block has beside its stages.
inline constexpr int kBesideStages = 4096;

template <class Problem>
constexpr unsigned rope_shared(const RopeConfig& c, const Problem& p, unsigned element_bytes,
                               unsigned table_bytes) {
  return c.shared_bytes(static_cast<unsigned>(p.rotary_dim) * table_bytes, element_bytes);
}

/// Sizes of heads for which kernels are compiled.
inline constexpr int kWidths[] = {64, 96, 128, 192, 256, 512};
constexpr bool known_width(int head_dim) {
  return std::find(std::begin(kWidths), std::end(kWidths), head_dim) != std::end(kWidths);
}

/// For elements of which `kWidest` are 16 bytes, and a table's of `table_bytes` each.
template <int kWidest, int table_bytes, bool norm, class Problem>
constexpr Space<RopeConfig, Problem> rope_space() {
  return Space<RopeConfig, Problem>{
      {.block = 128, .vector = kWidest, .pairs = 1, .heads = norm ? 1 : 2, .streaming = false}}
      .default_on(Target::Kind::host,
                  {.block = 128, .vector = kWidest, .pairs = 4, .heads = 2, .streaming = false})
      .values(&RopeConfig::block, {64, 128, 256, 512})
      .values(&RopeConfig::vector, {2, 4, 8})
      .values(&RopeConfig::pairs, {1, 2, 4})
      .values(&RopeConfig::heads, {1, 2, 3, 4, 5, 6, 8, 10})
      .values(&RopeConfig::streaming, {false, true})
      .values(&RopeConfig::width, {0, 64, 96, 128, 192, 256, 512})
      .values(&RopeConfig::resident, {0, 640, 768, 1024})
      .values(&RopeConfig::stages, {0, 1, 2, 3})
      .values_on(Target::Kind::host, &RopeConfig::streaming, {false})
      .values_on(Target::Kind::host, &RopeConfig::width, {0})
      .values_on(Target::Kind::host, &RopeConfig::resident, {0})
      .values_on(Target::Kind::host, &RopeConfig::stages, {0})
      .where("a block's threads fit the device",
             [](const RopeConfig& c, const Problem&, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block;
             })
      .where("the device copies in bulk",
             [](const RopeConfig& c, const Problem&, const DeviceLimits& d) {
               return c.stages == 0 || d.compute_capability >= 90;
             })
      .where("registers are counted where what is compiled knows the size of heads",
             [](const RopeConfig& c, const Problem& p, const DeviceLimits&) {
               return c.resident == 0 ? c.width == 0 : c.width == p.head_dim;
             })
      .where(
          "an access has 16 bytes, or as many as sizes and strides allow, or 8 for several heads",
          [](const RopeConfig& c, const Problem& p, const DeviceLimits& d) {
            return c.vector == kWidest ||
                   (c.stages == 0 &&
                    (c.vector == rope_vector(p, kWidest) ||
                     (!d.on_host() && 2 * c.vector == kWidest && c.pairs == 1 && c.heads > 1)));
          })
      .where("heads that are copied ahead fill their groups, by accesses of 16 bytes",
             [](const RopeConfig& c, const Problem& p, const DeviceLimits&) {
               return c.stages == 0 || (c.pairs == 1 && rope_vector(p, kWidest) == kWidest &&
                                        c.width > 0 && c.stages_fit(p.heads(), p.head_dim));
             })
      .where("warps that copy ahead fill the device",
             [](const RopeConfig& c, const Problem& p, const DeviceLimits& d) {
               if (c.stages == 0) return true;
               const double groups = 1.0 * p.tokens * p.heads() / c.staged_heads();
               return groups >= 1.0 * d.usable_multiprocessors() * c.resident / 32;
             })
      .where("what is copied ahead fits shared memory, and is enough",
             [](const RopeConfig& c, const Problem& p, const DeviceLimits& d) {
               constexpr int kFew = 32768;  // bytes of a multiprocessor in flight
               if (c.stages == 0) return true;
               const auto bytes = static_cast<int>(rope_shared(c, p, 16 / kWidest, table_bytes));
               return bytes <= d.shared_per_block_optin - kBesideStages &&
                      bytes * c.resident_blocks() >= kFew;
             })
      .where_on(Target::Kind::cuda, "a thread has no more of a head than there is",
                [](const RopeConfig& c, const Problem& p, const DeviceLimits&) {
                  return c.pairs == 1 || c.pairs <= c.pairs_of(p.head_dim);
                })
      .where("what a thread reads at once fits its registers",
             [](const RopeConfig& c, const Problem&, const DeviceLimits&) {
               constexpr int kOthers = norm ? 75 : 50, kEach = norm ? 22 : 16, kOfBlocks = 65536;
               const int registers = kOthers + kEach * c.pairs * c.heads * c.vector / kWidest;
               // Heads that are copied ahead take turns.
               if (c.stages > 0) return c.resident < 1024;
               return c.pairs * c.heads <= 8 &&
                      registers <= kOfBlocks / (c.resident > c.block ? c.resident : c.block);
             })
      .where("a token has the heads that a thread works on, a power of two if it keeps them",
             [](const RopeConfig& c, const Problem& p, const DeviceLimits&) {
               return c.stages > 0 ||
                      ((c.heads & (c.heads - 1)) == 0 && (c.heads <= 2 || c.heads <= p.heads()));
             })
      .checked();
}

/// What a GPU runs untuned.
template <int kWidest, bool norm, class Problem>
std::optional<RopeConfig> rope_default(const Problem& p, const DeviceLimits& d) {
  if (d.on_host() || !known_width(p.head_dim)) return std::nullopt;
  return RopeConfig{.block = 128,
                    .vector = kWidest,
                    .pairs = 1,
                    .heads = norm ? 1 : 2,
                    .streaming = false,
                    .width = p.head_dim,
                    .resident = 640};
}

/// For elements of `element_bytes` bytes, and a table's of `table_bytes`.
template <int element_bytes, int table_bytes, class Problem>
Launch rope_launch(const RopeConfig& c, const Problem& p, const DeviceLimits& d) {
  const unsigned bytes = rope_shared(c, p, element_bytes, table_bytes);
  unsigned blocks = c.grid(p.tokens, p.heads(), p.head_dim);
  if (c.stages > 0 && blocks > 0) {
    const double groups = 1.0 * p.tokens * p.heads() / c.staged_heads();
    const int by_shared = d.shared_per_multiprocessor / static_cast<int>(bytes + kBesideStages);
    const int resident = std::clamp(by_shared, 1, c.resident_blocks());
    blocks = std::min(static_cast<unsigned>(std::ceil(groups / c.warps())),
                      static_cast<unsigned>(d.usable_multiprocessors() * resident));
  }
  return {{blocks}, {static_cast<unsigned>(c.threads())}, bytes};
}

}  // namespace kiln::templates
