// A choice as prepare and seal see it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "kiln/detail/choice_core.hpp"
#include "kiln/missing.hpp"
#include "kiln/prepare.hpp"
#include "kiln/tune.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// What launches of a problem of a choice use, and why.
struct PreparedChoice {
  PreparedState state = PreparedState::missing;
  std::string why{};
  std::string alternative{};                     ///< that launches use; empty: nothing is ready
  std::map<std::string, std::int64_t> config{};  ///< its own
  bool as_its_kernel = false;         ///< it has one candidate, whose tuning is the kernel's own
  std::optional<TuneResult> tuned{};  ///< measured for this
};

class ServedChoice : public detail::ChoiceCore {
 public:
  /// How it is tuned; complete.
  virtual TuneOptions tuning() const = 0;
  struct Answer {
    bool is_final = false;  ///< measuring would find nothing else
    std::string alternative{};
  };
  /// What is decided, on record or forced; with ranks, what they have decided.
  /// @throws what alternatives' functions throw
  virtual Answer answer(Span problem) = 0;
  struct KernelOf {
    std::string alternative;
    std::shared_ptr<ServedHandle> handle;
  };
  /// Whether a gate comes before the kernels, where the answer is not final.
  virtual bool has_gate() const = 0;
  /// The kernels that take part. @throws what alternatives' functions throw
  virtual std::vector<KernelOf> kernels_of(Span problem) = 0;

  struct HowReady {
    bool measure = false;                 ///< what has no answer that is final
    std::optional<double> max_seconds{};  ///< nothing: as the choice's own options say
    std::stop_token stop{};
    bool ask = true;  ///< whether ranks decide now, all of them
  };
  /// Makes an exact problem ready for launches, which stays. It is measured with kernels as they
  /// are in use. Nothing is compiled, unless ranks tune or a gate comes first. With ranks and `ask`
  /// a collective. @throws what a launch throws
  virtual PreparedChoice make_ready(Span problem, const HowReady& how) = 0;
  /// Gets the workspaces that launches of all problems in use need on this stream.
  /// @throws as Workspaces::reserve
  virtual void reserve_workspaces(Stream stream) = 0;
  /// Notes from now on what is launched unprepared. By one thread at a time.
  virtual void seal() = 0;
  /// Exact problems that were launched unprepared and are still not in use, and how often.
  virtual std::map<Values, std::uint64_t> launched_unprepared() const = 0;
};

}  // namespace kiln::runtime
