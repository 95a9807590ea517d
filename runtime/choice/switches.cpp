#include "runtime/choice/switches.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::vector<std::string> listed(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view name = text.substr(begin, end - begin);
    name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
    name = name.substr(0, name.find_last_not_of(' ') + 1);
    names.emplace_back(name);
    begin = end + 1;
  }
  return names;
}

/// Names, and whose they are, for messages.
struct Names {
  std::vector<std::string> names;
  std::string from;
  bool of_all_choices = false;  ///< other choices may have alternatives that this one lacks
};

class Reader {
 public:
  Reader(const detail::ChoiceDescription& choice, const ChoiceOptions& options)
      : choice_(choice), options_(options) {
    switches_.on.assign(choice.alternatives.size(), true);
    switches_.why_not.resize(choice.alternatives.size());
  }

  Switches read(bool deterministic) {
    const Names backends = backends_asked_for();
    apply(backends);
    apply_numerics();
    apply_choose();
    if (deterministic) stay_in_one_class();
    read_gate();
    if (std::ranges::count(switches_.on, true) > 0) return switches_;
    std::string reasons;
    for (std::size_t i = 0; i < switches_.on.size(); ++i)
      reasons +=
          format("{}{}: {}", i ? "; " : "", choice_.alternatives[i].name, switches_.why_not[i]);
    throw UserError(format("choice {}: no alternative is left: {}", choice_.name, reasons));
  }

 private:
  Names backends_asked_for() const {
    if (!options_.backends.empty()) return {options_.backends, "ChoiceOptions::backends"};
    const std::string own = upper(choice_.name);
    if (const auto text = detail::environment("KILN_BACKENDS_*", own); !text.empty())
      return {listed(text), "KILN_BACKENDS_" + own};
    if (const auto text = detail::environment("KILN_BACKENDS"); !text.empty())
      return {listed(text), "KILN_BACKENDS", true};
    return {};
  }

  void apply(const Names& asked) {
    std::vector<bool> named(switches_.on.size()), left_out(switches_.on.size());
    bool only = false, none = asked.of_all_choices;
    for (const std::string& text : asked.names) {
      const bool minus = text.starts_with('-');
      const std::string name = text.substr(minus);
      if (asked.of_all_choices && !has(name)) continue;
      none = false;
      only = only || !minus;
      (minus ? left_out : named)[index_of(name, asked.from)] = true;
    }
    for (std::size_t i = 0; i < switches_.on.size(); ++i)
      if (left_out[i] || (only && !named[i])) leave_out(i, format("{} leaves it out", asked.from));
    if (none)
      switches_.warning =
          format("choice {}: {} names none of its alternatives, so all take part: {}", choice_.name,
                 asked.from, known_names());
  }

  void apply_numerics() {
    if (options_.numerics.empty()) return;
    for (std::size_t i = 0; i < switches_.on.size(); ++i)
      if (const std::string& of = choice_.alternatives[i].numerics; of != options_.numerics)
        leave_out(
            i, of.empty()
                   ? format("it states no numerics class, and {} is asked for", options_.numerics)
                   : format("its numerics class is {}, not {}", of, options_.numerics));
  }

  void apply_choose() {
    const std::string own = upper(choice_.name);
    std::string name = options_.choose, from = "ChoiceOptions::choose";
    if (name.empty()) {
      name = detail::environment("KILN_CHOOSE_*", own);
      from = "KILN_CHOOSE_" + own;
      switches_.forced_by = from;
    }
    if (name.empty()) return;
    const std::size_t chosen = index_of(name, from);
    if (!switches_.on[chosen])
      throw UserError(format("choice {}: {} asks for {}, but {}", choice_.name, from, name,
                             switches_.why_not[chosen]));
    switches_.forced = true;
    for (std::size_t i = 0; i < switches_.on.size(); ++i)
      if (i != chosen) leave_out(i, format("{} is {}", from, name));
  }

  /// The class of the first alternative that is on. Without one, no other gives the same results.
  void stay_in_one_class() {
    const auto first =
        static_cast<std::size_t>(std::ranges::find(switches_.on, true) - switches_.on.begin());
    for (std::size_t i = first + 1; i < switches_.on.size(); ++i) {
      const detail::AlternativeDescription& base = choice_.alternatives[first];
      const std::string& of = choice_.alternatives[i].numerics;
      if (base.numerics.empty() || of != base.numerics)
        leave_out(i, base.numerics.empty()
                         ? format("the runtime is deterministic, and {}, the first alternative, "
                                  "states no numerics class",
                                  base.name)
                         : format("the runtime is deterministic, and its numerics class is {}, not "
                                  "{} as that of {}",
                                  of.empty() ? "unknown" : of, base.numerics, base.name));
    }
  }

  void read_gate() {
    const ChoiceGate& gate = options_.gate;
    for (const double value : {gate.seconds, gate.share, gate.step_seconds})
      if (!(value >= 0) || std::isinf(value))
        throw UserError(
            format("choice {}: ChoiceOptions::gate holds {}, which must be finite and "
                   "not negative",
                   choice_.name, value));
    if ((gate.share > 0) != (gate.step_seconds > 0))
      throw UserError(
          format("choice {}: ChoiceOptions::gate has a share of {} of a step of {} "
                 "seconds: both are needed, or none",
                 choice_.name, gate.share, gate.step_seconds));
    switches_.gate_seconds = std::max(gate.seconds, gate.share * gate.step_seconds);
  }

  void leave_out(std::size_t i, std::string why) {
    if (switches_.on[i]) switches_.why_not[i] = std::move(why);
    switches_.on[i] = false;
  }

  bool has(std::string_view name) const {
    return std::ranges::any_of(choice_.alternatives, [&](const auto& a) { return a.name == name; });
  }

  std::size_t index_of(const std::string& name, const std::string& from) const {
    for (std::size_t i = 0; i < choice_.alternatives.size(); ++i)
      if (choice_.alternatives[i].name == name) return i;
    throw UserError(format("choice {}: {} names `{}`, which is none of its alternatives: {}",
                           choice_.name, from, name, known_names()));
  }
  std::string known_names() const {
    std::string known;
    for (const auto& alternative : choice_.alternatives)
      known += (known.empty() ? "" : ", ") + alternative.name;
    return known;
  }

  const detail::ChoiceDescription& choice_;
  const ChoiceOptions& options_;
  Switches switches_;
};

}  // namespace

Switches read_switches(const detail::ChoiceDescription& choice, const ChoiceOptions& options,
                       bool deterministic) {
  return Reader(choice, options).read(deterministic);
}

}  // namespace kiln::runtime
