// What the process odd_compiler and the tests that start it agree on.
#pragma once

#include <string>
#include <vector>

#include "codegen/compiler.hpp"

namespace kiln::test {

inline codegen::Binary binary_of(const std::string& code, const Target& target) {
  codegen::Binary binary;
  binary.target = target;
  binary.symbol = "k";
  binary.resources = {1, 2, 3, 4, 5, 6};
  binary.log = "a warning";
  const auto bytes = std::as_bytes(std::span(code));
  binary.code = std::vector<std::byte>(bytes.begin(), bytes.end());
  return binary;
}

inline std::string code_of(const codegen::Binary& binary) {
  return {reinterpret_cast<const char*>(binary.code.data()), binary.code.size()};
}

/// All but compiling.
class OddCompiler : public codegen::Compiler {
 public:
  codegen::CompilerIdentity identity() const override { return {"odd", "1", build}; }
  codegen::IncludeContext includes(const Target&) const override { return {}; }
  std::vector<std::string> options(const codegen::Source& source, const Target&) const override {
    return source.options;
  }
  std::string build = "1";
};

}  // namespace kiln::test
