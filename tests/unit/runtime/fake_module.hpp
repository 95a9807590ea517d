// A kernel that is loaded on the fake device.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/device.hpp"
#include "script.hpp"

namespace kiln::test {

class FakeKernel final : public runtime::Module {
 public:
  FakeKernel(std::string text, Behaviour& does, std::atomic<int>& live, bool apart)
      : entry(std::move(text)),
        behaviour(does),
        variables(does.variables),
        apart_(apart),
        live_(live) {
    ++live_;
  }
  ~FakeKernel() override { --live_; }
  const codegen::ResourceUsage& resources() const noexcept override { return behaviour.resources; }
  const runtime::Module& step(std::size_t index) const override { return *steps.at(index); }
  bool has_variables() const noexcept override { return apart_ || !variables.empty(); }

  const std::string entry;
  Behaviour& behaviour;
  mutable std::map<std::string, std::vector<std::byte>> variables;
  mutable std::atomic<int> launches{0};
  std::vector<std::unique_ptr<FakeKernel>> steps;

 private:
  const bool apart_;
  std::atomic<int>& live_;
};

}  // namespace kiln::test
