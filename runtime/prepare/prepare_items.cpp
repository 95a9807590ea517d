#include "runtime/prepare/prepare_items.hpp"

#include <exception>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/build/has_fields.hpp"
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
  Items(const detail::Engine& engine, const Manifest& manifest, bool tunes,
        std::vector<PreparedProblem>& report)
      : handles_(engine.serving().handles()),
        choices_(engine.serving().choices()),
        target_(engine.device()->info().target),
        tunes_(tunes),
        choice_entries_(manifest),
        report_(report) {}

  void add(const WantedInstance& wanted, std::size_t entry) {
    entry_ = entry;
    const std::string why =
        wanted.target != target_.arch
            ? format("the entry is for {}, this device runs {}", wanted.target, target_.arch)
        : wanted.is_choice ? find_choices(wanted)
                           : find_handles(wanted);
    if (!why.empty()) note(wanted, PreparedState::missing, why);
  }

  PrepareItems found;

 private:
  void note(const WantedInstance& wanted, PreparedState state, const std::string& why) {
    PreparedProblem& problem = report_.emplace_back();
    problem.kernel = wanted.kernel;
    problem.is_choice = wanted.is_choice;
    problem.types = wanted.types;
    problem.problem = wanted.problem;
    problem.state = state;
    problem.why = why;
    found.entries.push_back(entry_);
  }

  /// Empty, or why no handle can be prepared for the entry.
  std::string find_handles(const WantedInstance& wanted) {
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
    return none("handle of kernel", wanted, others);
  }

  /// Choices of one name and types may differ in their fields, as `gemm` with and without strides.
  std::string find_choices(const WantedInstance& wanted) {
    std::string others;
    std::vector<std::shared_ptr<ServedChoice>> of_these, of_other_fields;
    for (const auto& choice : choices_) {
      const detail::ChoiceDescription& what = choice->description();
      if (what.name != wanted.kernel) continue;
      if (what.types != wanted.types)
        others += (others.empty() ? "" : ", ") + signature_of(what.name, what.types);
      else
        (has_fields(what.operation, wanted.problem) ? of_these : of_other_fields).push_back(choice);
    }
    if (of_these.empty()) of_these = std::move(of_other_fields);  // which says what is wrong
    for (const auto& choice : of_these) add(choice, wanted);
    return of_these.empty() ? none("choice", wanted, others) : std::string();
  }

  static std::string none(const char* what, const WantedInstance& wanted,
                          const std::string& others) {
    return format("there is no {} {}{}", what, signature_of(wanted.kernel, wanted.types),
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
    PrepareItem& item = found.kernels[place_of(handle, problem)];
    std::optional<std::size_t>& entry = found.entries[item.place];
    if (!entry) entry = entry_;
    item.tuned = true;
    if (config) item.instances.push_back(*std::move(config));
  } catch (const std::exception& error) {
    note(wanted, PreparedState::failed, error.what());
  } catch (...) {
    note(wanted, PreparedState::failed, kForeignException);
  }

  /// The item of a bucketed problem, which no entry has asked for if it is new.
  std::size_t place_of(const std::shared_ptr<ServedHandle>& handle, const Values& problem) {
    const auto [place, first] = places_.try_emplace({handle.get(), problem}, found.kernels.size());
    if (!first) return place->second;
    const KernelDefinition& kernel = handle->definition();
    PrepareItem& item = found.kernels.emplace_back(PrepareItem{handle, problem, report_.size()});
    std::shared_ptr<SourcesRead>& sources = sources_[handle.get()];
    if (!sources) sources = std::make_shared<SourcesRead>(kernel);
    item.sources = sources;
    item.tuned = false;
    WantedInstance asked;
    asked.kernel = kernel.name;
    asked.types = kernel.types;
    asked.problem = handle->what().named_problem(problem);
    note(asked, PreparedState::waiting, {});
    found.entries.back().reset();
    return place->second;
  }

  void add(const std::shared_ptr<ServedChoice>& choice, const WantedInstance& wanted) try {
    const KernelDefinition& operation = choice->description().operation;
    const Values problem = operation.problem(wanted.problem);
    if (!chosen_.emplace(choice.get(), problem).second) return;
    ChoiceItem item{.choice = choice, .problem = problem, .entry = choice_entries_.place(wanted)};
    const ServedChoice::Answer answer = choice->answer(problem);
    item.answered = answer.is_final;
    // Ranks decide on what their choices' kernels launch as they decide on the choice.
    if (const TuneOptions tuning = choice->tuning(); !tuning.ranks)
      for (const auto& [alternative, handle] : choice->kernels_of(problem)) {
        const bool launched = answer.is_final && answer.alternative == alternative;
        // It is left out, or compiled once the gate has not acted.
        if (choice->has_gate() && (answer.is_final ? !launched : tunes_)) continue;
        // It is tuned for the choice's bucket, and launched for the exact problem.
        const KernelDefinition& kernel = handle->definition();
        const Values bucket = kernel.bucketed(operation.bucketed(problem));
        const Values own = kernel.bucketed(problem);
        const auto add_kernel = [&](const Values& each, bool tuned) {
          const std::size_t at = place_of(handle, each);
          found.kernels[at].tuned = found.kernels[at].tuned || tuned;
          found.kernels[at].tuning = tuning;
          return at;
        };
        if (own != bucket) add_kernel(bucket, !answer.is_final);
        item.kernels.push_back({alternative, add_kernel(own, !answer.is_final || launched)});
      }
    item.place = report_.size();
    note(wanted, PreparedState::waiting, {});
    found.choices.push_back(std::move(item));
  } catch (const std::exception& error) {
    note(wanted, PreparedState::failed, error.what());
  } catch (...) {
    note(wanted, PreparedState::failed, kForeignException);
  }

  const std::vector<std::shared_ptr<ServedHandle>> handles_;
  const std::vector<std::shared_ptr<ServedChoice>> choices_;
  const Target& target_;
  const bool tunes_;
  const ChoiceEntries choice_entries_;
  std::vector<PreparedProblem>& report_;
  std::size_t entry_ = 0;
  std::map<std::pair<const ServedHandle*, Values>, std::size_t> places_;
  std::set<std::pair<const ServedChoice*, Values>> chosen_;
  std::map<const ServedHandle*, std::shared_ptr<SourcesRead>> sources_;
};

}  // namespace

ChoiceEntries::ChoiceEntries(const Manifest& manifest) {
  for (const WantedInstance& wanted : manifest.wanted)
    if (wanted.is_choice) places_.try_emplace(named(wanted), places_.size());
}

PrepareItems prepare_items(const detail::Engine& engine, const Manifest& manifest, bool tunes,
                           std::vector<PreparedProblem>& report) {
  Items items(engine, manifest, tunes, report);
  for (std::size_t i = 0; i < manifest.wanted.size(); ++i) items.add(manifest.wanted[i], i);
  return std::move(items.found);
}

}  // namespace kiln::runtime
