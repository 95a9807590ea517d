// What shipped kernels make of NaNs, infinities and zeros: what their references do, on each
// device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"

namespace special_values {

enum class Special { nans, infinities };

template <class T>
void set(kiln::Workload::Argument& argument, std::size_t i, float value) {
  const T element(value);
  std::memcpy(argument.bytes.data() + i * sizeof(T), &element, sizeof(T));
}

template <class T>
float get(const kiln::Workload::Argument& argument, std::size_t i) {
  T element;
  std::memcpy(&element, argument.bytes.data() + i * sizeof(T), sizeof(T));
  return static_cast<float>(element);
}

inline bool is_float(kiln::DataType type) {
  using enum kiln::DataType;
  return type == f32 || type == f16 || type == bf16 || type == fp8_e4m3;
}

/// 8-bit floats have no infinity.
inline void set(kiln::Workload::Argument& argument, std::size_t i, float value) {
  using enum kiln::DataType;
  if (argument.type == f32) set<float>(argument, i, value);
  if (argument.type == f16) set<kiln::float16>(argument, i, value);
  if (argument.type == bf16) set<kiln::bfloat16>(argument, i, value);
  if (argument.type == fp8_e4m3) set<kiln::float8_e4m3>(argument, i, value);
}

inline float get(const kiln::Workload::Argument& argument, std::size_t i) {
  using enum kiln::DataType;
  return argument.type == f32    ? get<float>(argument, i)
         : argument.type == f16  ? get<kiln::float16>(argument, i)
         : argument.type == bf16 ? get<kiln::bfloat16>(argument, i)
                                 : get<kiln::float8_e4m3>(argument, i);
}

/// In each array of floats that a kernel reads: zeros at its beginning, a seventh of it, and a NaN
/// or infinities behind them, at places that no other array has. Of a few elements all stay.
inline void make_special(kiln::Workload& workload, Special special) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::size_t kFew = 16;
  std::size_t number = 0;
  for (kiln::Workload::Argument& argument : workload.arguments()) {
    if (!argument.pointer || argument.direction == kiln::Direction::out || argument.zeroed ||
        !is_float(argument.type) || argument.count < kFew)
      continue;
    const std::size_t n = argument.count;
    for (std::size_t i = 0; i < n / 7; ++i)
      if (argument.has(i)) set(argument, i, 0.0f);
    ++number;
    const auto place = [&](std::size_t part) {
      std::size_t i = n * part / 11 + 3 * number;
      while (i >= n || !argument.has(i)) i = i == 0 ? n - 1 : i - 1;
      return i;
    };
    if (special == Special::nans) {
      set(argument, place(5), std::numeric_limits<float>::quiet_NaN());
    } else {
      set(argument, place(4), kInfinity);
      set(argument, place(6), -kInfinity);
    }
  }
}

inline kiln::KernelDefinition with_specials(kiln::KernelDefinition kernel, Special special) {
  kernel.device_reference.reset();
  kernel.workload = [fill = kernel.workload, special](std::span<const std::int64_t> problem,
                                                      kiln::Workload& w) {
    fill(problem, w);
    make_special(w, special);
  };
  return kernel;
}

/// A small problem of a kernel, whatever fields it has.
inline kiln::Values small_problem(const kiln::KernelDefinition& kernel) {
  static const std::map<std::string, std::int64_t> values{{"rows", 9},
                                                          {"columns", 300},
                                                          {"hidden", 384},
                                                          {"m", 40},
                                                          {"n", 144},
                                                          {"k", 256},
                                                          {"groups", 3},
                                                          {"row_alignment", 16},
                                                          {"expected", 20},
                                                          {"tokens", 21},
                                                          {"q_heads", 4},
                                                          {"kv_heads", 2},
                                                          {"head_dim", 64},
                                                          {"rotary_dim", 32},
                                                          {"block_size", 8},
                                                          {"block_stride", 1024},
                                                          {"q_out_stride", 256},
                                                          {"k_out_stride", 128},
                                                          {"q_stride", 256},
                                                          {"k_stride", 128},
                                                          {"v_stride", 128},
                                                          {"ldc", 144},
                                                          {"lda", 256},
                                                          {"ldb", 256},
                                                          {"batch", 2},
                                                          {"stride_c", 40 * 144},
                                                          {"stride_a", 256 * 256},
                                                          {"stride_b", 256 * 256}};
  if (kernel.problem_fields == std::vector<std::string>{"n"}) return {1000};
  kiln::Values problem;
  for (const std::string& field : kernel.problem_fields) problem.push_back(values.at(field));
  return problem;
}

/// Whether a kernel is one of many that are alike: then few are tried.
inline bool tried(std::string_view name) {
  const auto has = [&](const char* part) { return name.find(part) != name.npos; };
  return !has("sort_by_expert") && !has("gelu_") && !has("relu_") && !has("_interleaved");
}

}  // namespace special_values
