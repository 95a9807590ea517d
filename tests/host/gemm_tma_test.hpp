// What tests of the shipped GEMM for Hopper on the host share.
#pragma once

#include <string>

#include "hopper_test.hpp"
#include "templates/gemm/gemm_problem.hpp"
#include "templates/gemm/gemm_tma.hpp"

namespace host_test {

using kiln::templates::GemmSchedule;
using kiln::templates::GemmTma;
using kiln::templates::GemmTranspose;

/// As kernels are instantiated with it.
inline std::string text_of(const GemmTma& c) {
  const auto flag = [](bool b) { return std::string(b ? "true" : "false"); };
  std::string text = "kiln::templates::GemmTma{kiln::templates::";
  text +=
      c.schedule == GemmSchedule::pingpong ? "GemmSchedule::pingpong" : "GemmSchedule::cooperative";
  for (int value : {c.block_m, c.block_n, c.block_k, c.stages, c.consumers, c.cluster_m,
                    c.cluster_n, c.split_k, c.parts})
    text += ", " + std::to_string(value);
  text += ", " + flag(c.later) + ", " + std::to_string(c.group);
  for (bool value : {c.along_n, c.persistent, c.swap, c.store_tma, c.programmatic})
    text += ", " + flag(value);
  return text + ", kiln::templates::GemmOperands(" + std::to_string(static_cast<int>(c.operands)) +
         ")}";
}

/// The instance of gemm_tma.cuh's kernel, or of its step.
inline std::string entry_of(const GemmTma& c, GemmTranspose op, bool batched,
                            const std::string& epilogue, const std::string& name = "gemm_tma",
                            const std::string& type = "__nv_bfloat16") {
  return "kiln::templates::" + name + "<" + text_of(c) + ", kiln::templates::GemmTranspose(" +
         std::to_string(static_cast<int>(op)) + "), " + type + ", " + (batched ? "true" : "false") +
         ", kiln::epilogue::" + epilogue + ">";
}

}  // namespace host_test
