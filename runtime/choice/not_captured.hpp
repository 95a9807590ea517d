// A call of an alternative that may not be captured.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "runtime/choice/contender.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

class NotCaptured final : public ChoiceCall {
 public:
  NotCaptured(std::shared_ptr<const ChoiceCall> call, detail::Engine& engine, std::string what)
      : call_(std::move(call)), engine_(engine), what_(std::move(what)) {}

  void operator()(Stream stream, void** args) const override {
    if (engine_.device()->capturing(stream)) throw engine_.captures().counted(what_);
    (*call_)(stream, args);
  }
  void stay() const override { call_->stay(); }
  void reserve(Stream stream) const override { call_->reserve(stream); }

 private:
  const std::shared_ptr<const ChoiceCall> call_;
  detail::Engine& engine_;
  const std::string what_;
};

}  // namespace kiln::runtime
