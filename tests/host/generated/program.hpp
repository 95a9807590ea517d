// A random kernel as a tree, which is both written as CUDA and interpreted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace generated {

/// All values are 32-bit unsigned, so every operation is defined.
struct Expression {
  enum class Op {
    constant,
    variable,
    thread,
    block,
    argument,
    element,  // leaves; a[variable]: only where the variable is less than kInputs
    input,
    cell,  // a[...], p[...]
    add,
    subtract,
    multiply,
    exclusive_or,
    conjunction,
    disjunction,
    left,
    right,
    less,
    equal,
    choose
  };
  Op op = Op::constant;
  std::uint32_t value = 0;  ///< the constant, or the variable's number
  std::vector<Expression> operands{};
};

struct Statement {
  enum class Kind {
    assign,          ///< variable = e[0]
    assign_cell,     ///< p[e[0] % 4] = e[1]
    branch,          ///< if (e[0]) body else other
    counted,         ///< for (variable = 0; variable < e[0]; ++variable) body
    stride,          ///< for (variable = t + e[0]; variable < e[1]; variable += threads) body
    scan,            ///< while (a[e[0] + variable]) { ++variable; body }
    repeat,          ///< do { body } while (++variable < e[0])
    leave_loop,      ///< if (e[0]) break
    next_round,      ///< if (e[0]) continue
    barrier,         ///< __syncthreads()
    count,           ///< variable = __syncthreads_count(e[0])
    until_none,      ///< while (__syncthreads_or(variable < e[0])) { ++variable; body }
    publish,         ///< s[t] = e[0]
    collect,         ///< variable = s[(t + e[0]) % threads]
    meet_in_rounds,  ///< all pass a barrier e[1] times, in rounds that inputs choose
    shuffle,         ///< variable = __shfl_xor_sync(all, e[0], value)
    exit             ///< if (e[0]) { store; return; }
  };
  Kind kind;
  std::uint32_t variable = 0;
  std::uint32_t value = 0;
  std::vector<Expression> e{};
  std::vector<Statement> body{}, other{};
};

/// Variables: those that differ by thread, those that are equal for all threads of a block, then
/// one or two for each loop.
inline constexpr std::uint32_t kOwn = 6, kEqual = 2, kCells = 4, kInputs = 1024;
inline constexpr std::uint32_t kOutputs = kOwn + kEqual;

struct Program {
  std::uint64_t seed = 0;
  std::uint32_t variables = kOwn + kEqual;
  bool shuffles = false;
  std::vector<Statement> statements;
};

/// Legal code only: all threads that have not returned reach the same barriers equally often, and
/// shared memory is written and read on different sides of one.
Program generate(std::uint64_t seed);

/// The source of `__global__ void k(unsigned* out, const unsigned* a, unsigned n)`.
std::string text_of(const Program& program);

struct Launch {
  std::uint32_t blocks, threads, n;
};
/// What the kernel leaves in `out`, kOutputs values a thread.
std::vector<std::uint32_t> interpret(const Program& program, const std::vector<std::uint32_t>& a,
                                     const Launch& launch);

inline constexpr std::uint32_t kUntouched = 77;

}  // namespace generated
