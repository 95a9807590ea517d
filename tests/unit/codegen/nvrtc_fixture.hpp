// NVRTC, if it is here, and sources for it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "codegen/nvrtc.hpp"
#include "codegen/source.hpp"
#include "kiln_test.hpp"

namespace kiln::codegen::test {

inline const NvrtcProbe& probe() {
  static const NvrtcProbe probe = NvrtcCompiler::find(NvrtcOptions::from_environment());
  return probe;
}
inline NvrtcCompiler* nvrtc() { return probe().compiler.get(); }

inline Source kernel(std::string text, std::string entry = "k") {
  Source s;
  s.text = std::move(text);
  s.entry = std::move(entry);
  s.label = "test kernel";
  return s;
}

inline Binary must_compile(const Source& source, const char* arch = "sm_80") {
  CompileResult result = nvrtc()->compile(source, Target::parse(arch));
  if (auto* failure = std::get_if<CompileFailure>(&result)) FAIL(failure->log);
  return std::get<Binary>(std::move(result));
}

inline CompileFailure must_fail(const Source& source, const char* arch = "sm_80") {
  CompileResult result = nvrtc()->compile(source, Target::parse(arch));
  REQUIRE(std::holds_alternative<CompileFailure>(result));
  return std::get<CompileFailure>(std::move(result));
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace kiln::codegen::test
