// Host half of rope.hpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/rope/rope_space.hpp"
#include "templates/rows/row_host.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

void refuse(const std::string& what) { throw UserError("rope: " + what); }

void check_stride(const char* name, RopeStride stride, int heads, int head_dim) {
  const RopeStride row = RopeStride{heads} * head_dim;
  if (stride < row)
    refuse(std::string(name) + " is " + std::to_string(stride) + ", less than a token's " +
           std::to_string(row) + " elements");
}

template <class Problem>
void check_heads(const Problem& p) {
  if (p.tokens < 0 || p.q_heads < 0 || p.kv_heads < 0 || p.head_dim < 0)
    refuse("tokens, q_heads, kv_heads or head_dim is negative");
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0 || p.rotary_dim > p.head_dim)
    refuse("rotary_dim is " + std::to_string(p.rotary_dim) +
           ", but it is even, and at most head_dim, which is " + std::to_string(p.head_dim));
  check_stride("q_out_stride", p.q_out_stride, p.q_heads, p.head_dim);
  check_stride("q_stride", p.q_stride, p.q_heads, p.head_dim);
  check_stride("k_stride", p.k_stride, p.kv_heads, p.head_dim);
}

void check(const RopeProblem& p) {
  check_heads(p);
  check_stride("k_out_stride", p.k_out_stride, p.kv_heads, p.head_dim);
}

void check(const RopePagedProblem& p) {
  check_heads(p);
  check_stride("v_stride", p.v_stride, p.kv_heads, p.head_dim);
  if (p.block_size <= 0) refuse("block_size is not positive");
  const RopeStride block = RopeStride{p.block_size} * p.kv_heads * p.head_dim;
  if (p.block_stride < block)
    refuse("block_stride is " + std::to_string(p.block_stride) + ", less than a block's " +
           std::to_string(block) + " elements");
}

/// Different counts of tokens share a tuning; different sizes of a model do not.
template <class Problem>
Problem rope_bucket(const Problem& p) {
  check(p);
  Problem bucket = p;
  bucket.tokens = count_bucket(p.tokens);
  return bucket;
}

// What tuning has: as many positions as a GPU's cache holds, each token's far from its neighbours'
// as in a batch; a slot for each token, and some that are left alone.
constexpr int kPositions = 4096;

int tuned_blocks(const RopePagedProblem& p) { return p.tokens / p.block_size + 2; }

template <class I>
std::vector<I> scattered(int count, std::int64_t below) {
  // A prime that does not divide the few numbers that it goes round: each comes once.
  constexpr std::int64_t kStep = 1000003;
  std::vector<I> drawn;
  for (std::int64_t i = 0; i < count; ++i) drawn.push_back(static_cast<I>((i * kStep + 7) % below));
  return drawn;
}

Rows token_rows(int tokens, int heads, int head_dim, RopeStride stride) {
  const auto size = [](auto x) { return static_cast<std::size_t>(x); };
  return {.rows = size(tokens), .columns = size(heads) * size(head_dim), .leading = size(stride)};
}

template <class Position, class Table>
void add_positions(Workload& w, int tokens, int rotary_dim) {
  w.input<Table>(static_cast<std::size_t>(kPositions) * static_cast<std::size_t>(rotary_dim));
  w.input<Position>(std::span<const Position>(scattered<Position>(tokens, kPositions)));
}

template <class T>
void add_norm(Workload& w, int head_dim) {
  w.input<T>(static_cast<std::size_t>(head_dim), {0.5, 1.5});
  w.input<T>(static_cast<std::size_t>(head_dim), {-1.5, 1.5}).scalar(1e-5f);
}

/// A head's weights are null where it is not normalized.
template <class T>
struct HeadNorms {
  const T* q_weight = nullptr;
  const T* k_weight = nullptr;
  float eps = 0;
};

/// Rotations by one table.
template <class T, class Table>
struct Rotation {
  RopeOrder order;
  int head_dim, rotary_dim;
  const Table* table;
  int max_position;

  void operator()(T* to, const T* from, std::int64_t position, const T* weight, float eps) const {
    const auto width = static_cast<std::size_t>(head_dim);
    std::vector<double> x(width);
    double squares = 0;
    for (std::size_t h = 0; h < width; ++h) {
      x[h] = double{static_cast<float>(from[h])};
      squares += x[h] * x[h];
    }
    if (weight) {
      constexpr double kLeast = std::numeric_limits<float>::min();  // that of norm_scale
      const double scale = 1 / std::sqrt(std::max(squares / head_dim + double{eps}, kLeast));
      for (std::size_t h = 0; h < width; ++h) x[h] *= scale * double{static_cast<float>(weight[h])};
    }
    const bool known = position >= 0 && position < max_position;
    const Table* row = known ? table + position * rotary_dim : nullptr;
    const auto half = static_cast<std::size_t>(rotary_dim / 2);
    for (std::size_t i = 0; i < half; ++i) {
      const double cosine = known ? double{static_cast<float>(row[i])} : std::nan("");
      const double sine = known ? double{static_cast<float>(row[half + i])} : std::nan("");
      const bool halved = order == RopeOrder::halved;
      double &a = x[halved ? i : 2 * i], &b = x[halved ? half + i : 2 * i + 1];
      const double first = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = first;
    }
    for (std::size_t h = 0; h < width; ++h)
      to[h] = !weight && h >= 2 * half ? from[h] : T(static_cast<float>(x[h]));
  }
  /// All heads of a token.
  void heads(int count, T* to, const T* from, std::int64_t position, const T* weight,
             float eps) const {
    for (int i = 0; i < count; ++i)
      (*this)(to + std::ptrdiff_t{i} * head_dim, from + std::ptrdiff_t{i} * head_dim, position,
              weight, eps);
  }
};

constexpr const char* name_of(RopeOrder order) {
  return order == RopeOrder::halved ? "kiln::templates::RopeOrder::halved"
                                    : "kiln::templates::RopeOrder::interleaved";
}

/// What a kernel is made for, in bytes.
struct RopeElements {
  double element, of_table, per_token;  // the last: beside q, k, v and the table
  bool norm;
};

/// On the host: nanoseconds of one core. Threads take turns where they sum up.
template <class Problem>
auto rope_cost(const RopeElements& of) {
  return [of](const RopeConfig& c, const Problem& p, const DeviceLimits& d) {
    if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
    const double lanes = c.lanes(p.head_dim), heads = 1.0 * p.tokens * p.heads();
    const double threads = lanes * p.tokens * c.groups(p.heads());
    const double element = (of.element == 2 ? 1.5 : 0.7) + (of.norm ? 0.5 : 0) + 1.0 / c.vector;
    return heads * p.head_dim * element + threads * 10 + (of.norm ? heads * lanes * 5 : 0);
  };
}

template <class Problem>
auto rope_flops(const RopeElements& of) {
  return [of](const Problem& p) {
    return 1.0 * p.tokens * (p.q_heads + p.kv_heads) *
           (3.0 * p.rotary_dim + (of.norm ? 4.0 * p.head_dim : 0));
  };
}

template <class Problem>
auto rope_bytes(const RopeElements& of) {
  return [of](const Problem& p) {
    return 2.0 * p.tokens * p.heads() * p.head_dim * of.element + p.tokens * of.per_token +
           1.0 * std::min(p.tokens, kPositions) * p.rotary_dim * of.of_table;
  };
}

/// But for workload and reference. `bytes`: of an element.
template <int bytes, int table_bytes, bool norm, class Problem>
UntypedKernel<RopeConfig, Problem> rope_kernel_of(const std::string& name, RopeOrder order,
                                                  double per_token) {
  const std::string entry = std::string("rope") + (norm ? "_norm" : "") + name;
  const RopeElements of{bytes, table_bytes, per_token, norm};
  return {{.name = entry + (order == RopeOrder::halved ? "" : "_interleaved"),
           .source = {.file = templates_dir() / "rope/rope.cuh"},
           .entry = "kiln::templates::" + entry,
           .config_type = "kiln::templates::RopeConfig",
           .space = rope_space<16 / bytes, table_bytes, norm, Problem>(),
           .launch = rope_launch<bytes, table_bytes, Problem>,
           .bucket = rope_bucket<Problem>,
           .flops = rope_flops<Problem>(of),
           .bytes = rope_bytes<Problem>(of),
           .cost = rope_cost<Problem>(of),
           .default_for = rope_default<16 / bytes, norm, Problem>,
           .numerics = [](const RopeConfig& c, const Problem&) {
             return norm ? std::to_string(c.pairs) + " pairs of " + std::to_string(c.vector)
                         : std::string("no sums");
           }}};
}
template <class T, class Table, class Position, class Problem>
UntypedKernel<RopeConfig, Problem> rope_kernel_of(const std::string& name, RopeOrder order,
                                                  bool norm, double per_token) {
  constexpr int kBytes = sizeof(T), kTable = sizeof(Table);
  auto kernel = norm ? rope_kernel_of<kBytes, kTable, true, Problem>(name, order, per_token)
                     : rope_kernel_of<kBytes, kTable, false, Problem>(name, order, per_token);
  kernel.types = {device_name<T>(), device_name<Table>(), device_name<Position>(), name_of(order)};
  // If products cancel, their own rounding errors are left.
  kernel.tolerance = {.relative = kRounding<T>, .absolute = 1e-5, .norm = kRounding<T> / 2};
  return kernel;
}

std::vector<ArgumentIsField> apart_relations() {
  return {{6, "tokens"},        {7, "q_heads"},     {8, "kv_heads"},
          {9, "head_dim"},      {10, "rotary_dim"}, {12, "q_out_stride"},
          {13, "k_out_stride"}, {14, "q_stride"},   {15, "k_stride"}};
}
std::vector<ArgumentIsField> paged_relations() {
  return {{9, "tokens"},      {10, "q_heads"},    {11, "kv_heads"},     {12, "head_dim"},
          {13, "rotary_dim"}, {16, "block_size"}, {17, "block_stride"}, {18, "q_out_stride"},
          {19, "q_stride"},   {20, "k_stride"},   {21, "v_stride"}};
}

template <class T, class Table, class Position>
void apart_workload(const RopeProblem& p, bool norm, Workload& w) {
  w.output<T>(token_rows(p.tokens, p.q_heads, p.head_dim, p.q_out_stride));
  w.output<T>(token_rows(p.tokens, p.kv_heads, p.head_dim, p.k_out_stride));
  w.input<T>(token_rows(p.tokens, p.q_heads, p.head_dim, p.q_stride));
  w.input<T>(token_rows(p.tokens, p.kv_heads, p.head_dim, p.k_stride));
  add_positions<Position, Table>(w, p.tokens, p.rotary_dim);
  w.scalar(p.tokens).scalar(p.q_heads).scalar(p.kv_heads);
  w.scalar(p.head_dim).scalar(p.rotary_dim).scalar(kPositions);
  w.scalar(p.q_out_stride).scalar(p.k_out_stride);
  w.scalar(p.q_stride).scalar(p.k_stride);
  if (norm) add_norm<T>(w, p.head_dim);
}

template <class T, class Table, class Position, class... Norm>
UntypedKernel<RopeConfig, RopeProblem> apart(RopeOrder order) {
  using I = RopeStride;
  constexpr bool kNorm = sizeof...(Norm) != 0;
  auto kernel = rope_kernel_of<T, Table, Position, RopeProblem>("", order, kNorm, sizeof(Position));
  kernel.relations = apart_relations();
  kernel.computed_by([order](T* q_out, T* k_out, const T* q, const T* k, const Table* table,
                             const Position* positions, int tokens, int q_heads, int kv_heads,
                             int head_dim, int rotary_dim, int max_position, I q_out_stride,
                             I k_out_stride, I q_stride, I k_stride, Norm... norm) {
    const HeadNorms<T> norms{norm...};
    const Rotation<T, Table> rotate{order, head_dim, rotary_dim, table, max_position};
    for_each_row(tokens, [=](std::ptrdiff_t t) {
      rotate.heads(q_heads, q_out + t * q_out_stride, q + t * q_stride, positions[t],
                   norms.q_weight, norms.eps);
      rotate.heads(kv_heads, k_out + t * k_out_stride, k + t * k_stride, positions[t],
                   norms.k_weight, norms.eps);
    });
  });
  return kernel;
}

template <class T, class Table, class Position>
void paged_workload(const RopePagedProblem& p, bool norm, Workload& w) {
  const int blocks = tuned_blocks(p);
  const Rows cache = token_rows(blocks, p.block_size * p.kv_heads, p.head_dim, p.block_stride);
  w.output<T>(token_rows(p.tokens, p.q_heads, p.head_dim, p.q_out_stride));
  w.in_out<T>(cache).template in_out<T>(cache);
  w.input<T>(token_rows(p.tokens, p.q_heads, p.head_dim, p.q_stride));
  w.input<T>(token_rows(p.tokens, p.kv_heads, p.head_dim, p.k_stride));
  w.input<T>(token_rows(p.tokens, p.kv_heads, p.head_dim, p.v_stride));
  add_positions<Position, Table>(w, p.tokens, p.rotary_dim);
  w.input<std::int64_t>(std::span<const std::int64_t>(
      scattered<std::int64_t>(p.tokens, std::int64_t{blocks} * p.block_size)));
  w.scalar(p.tokens).scalar(p.q_heads).scalar(p.kv_heads);
  w.scalar(p.head_dim).scalar(p.rotary_dim).scalar(kPositions);
  w.scalar(blocks).scalar(p.block_size).scalar(p.block_stride);
  w.scalar(p.q_out_stride).scalar(p.q_stride).scalar(p.k_stride).scalar(p.v_stride);
  if (norm) add_norm<T>(w, p.head_dim);
}

template <class T, class Table, class Position, class... Norm>
UntypedKernel<RopeConfig, RopePagedProblem> paged(RopeOrder order) {
  using I = RopeStride;
  constexpr bool kNorm = sizeof...(Norm) != 0;
  auto kernel = rope_kernel_of<T, Table, Position, RopePagedProblem>(
      "_paged", order, kNorm, sizeof(Position) + sizeof(std::int64_t));
  kernel.relations = paged_relations();
  kernel.computed_by([order](T* q_out, T* k_cache, T* v_cache, const T* q, const T* k, const T* v,
                             const Table* table, const Position* positions,
                             const std::int64_t* slots, int tokens, int q_heads, int kv_heads,
                             int head_dim, int rotary_dim, int max_position, int blocks,
                             int block_size, I block_stride, I q_out_stride, I q_stride, I k_stride,
                             I v_stride, Norm... norm) {
    const HeadNorms<T> norms{norm...};
    const Rotation<T, Table> rotate{order, head_dim, rotary_dim, table, max_position};
    const std::ptrdiff_t row = std::ptrdiff_t{kv_heads} * head_dim;
    for_each_row(tokens, [=](std::ptrdiff_t t) {
      rotate.heads(q_heads, q_out + t * q_out_stride, q + t * q_stride, positions[t],
                   norms.q_weight, norms.eps);
      const std::int64_t slot = slots[t];
      if (slot < 0 || slot >= std::int64_t{blocks} * block_size) return;
      const auto place = slot / block_size * block_stride + slot % block_size * row;
      rotate.heads(kv_heads, k_cache + place, k + t * k_stride, positions[t], norms.k_weight,
                   norms.eps);
      std::copy_n(v + t * v_stride, row, v_cache + place);
    });
  });
  return kernel;
}

}  // namespace

template <class T, class Table, class Position>
UntypedKernel<RopeConfig, RopeProblem> rope_base(RopeOrder order, bool norm) {
  auto kernel = norm ? apart<T, Table, Position, const T*, const T*, float>(order)
                     : apart<T, Table, Position>(order);
  kernel.workload = [norm](const RopeProblem& p, Workload& w) {
    apart_workload<T, Table, Position>(p, norm, w);
  };
  return kernel;
}
template <class T, class Table, class Position>
UntypedKernel<RopeConfig, RopePagedProblem> rope_paged_base(RopeOrder order, bool norm) {
  auto kernel = norm ? paged<T, Table, Position, const T*, const T*, float>(order)
                     : paged<T, Table, Position>(order);
  kernel.workload = [norm](const RopePagedProblem& p, Workload& w) {
    paged_workload<T, Table, Position>(p, norm, w);
  };
  return kernel;
}

#define KILN_ROPE(T, Table, Position)                                                             \
  template UntypedKernel<RopeConfig, RopeProblem> rope_base<T, Table, Position>(RopeOrder, bool); \
  template UntypedKernel<RopeConfig, RopePagedProblem> rope_paged_base<T, Table, Position>(       \
      RopeOrder, bool)
KILN_ROPE(float, float, int);
KILN_ROPE(float, float, std::int64_t);
KILN_ROPE(float16, float, int);
KILN_ROPE(float16, float, std::int64_t);
KILN_ROPE(float16, float16, int);
KILN_ROPE(float16, float16, std::int64_t);
KILN_ROPE(bfloat16, float, int);
KILN_ROPE(bfloat16, float, std::int64_t);
KILN_ROPE(bfloat16, bfloat16, int);
KILN_ROPE(bfloat16, bfloat16, std::int64_t);
#undef KILN_ROPE

}  // namespace kiln::templates
