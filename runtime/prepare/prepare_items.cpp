#include "runtime/prepare/prepare_items.hpp"

#include <exception>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/support/foreign_exception.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

std::string signature_of(const std::string& name, const std::vector<std::string>& types) {
  std::string text;
  for (const std::string& type : types) text += (text.empty() ? "" : ", ") + type;
  return format("{}<{}>", name, text);
}

class Items {
 public:
  Items(const detail::Engine& engine, std::vector<PreparedProblem>& report)
      : handles_(engine.serving().handles()),
        target_(engine.device()->info().target),
        report_(report) {}

  void add(const WantedInstance& wanted) {
    if (const std::string why = find_handles(wanted); !why.empty())
      note(wanted, PreparedState::missing, why);
  }

  std::vector<PrepareItem> items;

 private:
  void note(const WantedInstance& wanted, PreparedState state, const std::string& why) {
    PreparedProblem& problem = report_.emplace_back();
    problem.kernel = wanted.kernel;
    problem.types = wanted.types;
    problem.problem = wanted.problem;
    problem.state = state;
    problem.why = why;
  }

  /// Empty, or why no handle can be prepared for the entry.
  std::string find_handles(const WantedInstance& wanted) {
    if (wanted.target != target_.arch)
      return format("the entry is for {}, this device runs {}", wanted.target, target_.arch);
    std::string others;
    bool any = false, of_other_configs = false;
    for (const auto& handle : handles_) {
      const KernelDefinition& kernel = handle->definition();
      if (kernel.name != wanted.kernel) continue;
      if (kernel.types != wanted.types) {
        others += (others.empty() ? "" : ", ") + signature_of(kernel.name, kernel.types);
      } else if (handle->fixed() && !wanted.config.empty() && !has_fixed(*handle, wanted)) {
        of_other_configs = true;
      } else {
        any = true;
        add(handle, wanted);
      }
    }
    if (any) return {};
    if (of_other_configs)
      return "the handles of this kernel have configs that the program chose, and none is the "
             "entry's";
    return format("there is no handle of kernel {}{}", signature_of(wanted.kernel, wanted.types),
                  others.empty() ? "" : ", only of " + others);
  }

  bool has_fixed(const ServedHandle& handle, const WantedInstance& wanted) const {
    const detail::Tunable what = handle.what();
    return what.named_config(what.space().default_config(target_)) == wanted.config;
  }

  void add(const std::shared_ptr<ServedHandle>& handle, const WantedInstance& wanted) try {
    const KernelDefinition& kernel = handle->definition();
    const Values problem = kernel.bucketed(kernel.problem(wanted.problem));
    std::optional<Values> config;
    if (!wanted.config.empty()) config = kernel.space.config(wanted.config);
    const auto [found, first] = places_.try_emplace({handle.get(), problem}, items.size());
    if (first) {
      items.push_back({handle, problem, report_.size()});
      std::shared_ptr<SourcesRead>& sources = sources_[handle.get()];
      if (!sources) sources = std::make_shared<SourcesRead>(kernel);
      items.back().sources = sources;
      note(wanted, PreparedState::waiting, {});
      report_.back().problem = handle->what().named_problem(problem);
    }
    if (config) items[found->second].instances.push_back(*std::move(config));
  } catch (const std::exception& error) {
    note(wanted, PreparedState::failed, error.what());
  } catch (...) {
    note(wanted, PreparedState::failed, kForeignException);
  }

  const std::vector<std::shared_ptr<ServedHandle>> handles_;
  const Target& target_;
  std::vector<PreparedProblem>& report_;
  std::map<std::pair<const ServedHandle*, Values>, std::size_t> places_;
  std::map<const ServedHandle*, std::shared_ptr<SourcesRead>> sources_;
};

}  // namespace

std::vector<PrepareItem> prepare_items(const detail::Engine& engine, const Manifest& manifest,
                                       std::vector<PreparedProblem>& report) {
  Items found(engine, report);
  for (const WantedInstance& wanted : manifest.wanted) found.add(wanted);
  return std::move(found.items);
}

}  // namespace kiln::runtime
