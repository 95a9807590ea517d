#include "runtime/together/identity.hpp"

#include <set>
#include <string>

#include "kiln/detail/format.hpp"
#include "kiln/version.hpp"
#include "runtime/support/random.hpp"
#include "runtime/together/texts.hpp"

namespace kiln::runtime {

using kiln::detail::format;
using kiln::detail::Tunable;

ranks::Identity ranks_identity(Workshop& workshop, std::span<const TunableProblem> problems,
                               std::span<const CandidateList> lists, const TuneOptions& options) {
  const DeviceInfo& device = workshop.device()->info();
  std::string kernels, candidates, texts, build = KILN_VERSION, model = device.name;
  for (std::size_t s = 0; s < problems.size(); ++s) {
    const Tunable& what = problems[s].what;
    kernels += to_hex(workshop.records().definition(what));
    texts += text_of(what.problem_fields()) + text_of(problems[s].problem) + ";";
    for (const Parameter& p : what.space().parameters()) candidates += p.name + ",";
    for (const Values& config : lists[s].configs) candidates += text_of(config) + ";";
  }
  std::set<std::string> versions;
  for (const TunableProblem& problem : problems)
    for (const Version& v : workshop.records().versions(problem.what))
      if (v.rule == Version::Rule::retune) versions.insert(text_of({v.name, v.value}));
  for (const std::string& version : versions) build += version;
  const MeasuringPolicy policy = policy_of(options);
  texts += format("cold {}, overlap {}, eager {}", policy.cold_cache, policy.overlap_launches,
                  policy.launching == Launching::eager);
  for (const KeyField& f : device.fingerprint) model += text_of({f.name, f.value});
  using ranks::short_digest;
  return {short_digest(kernels), short_digest(candidates),
          short_digest(texts),   short_digest(device.target.arch),
          short_digest(build),   short_digest(model)};
}

std::uint64_t unseen_store() { return unpredictable_bits() | 1; }

}  // namespace kiln::runtime
