#include "runtime/together/identity.hpp"

#include <set>
#include <string>

#include "kiln/detail/format.hpp"
#include "kiln/version.hpp"
#include "runtime/together/texts.hpp"

namespace kiln::runtime {

using kiln::detail::format;
using kiln::detail::Tunable;

ranks::Identity ranks_identity(Workshop& workshop, std::span<const Subject> subjects,
                               std::span<const CandidateList> lists, const TuneOptions& options) {
  const DeviceInfo& device = workshop.device()->info();
  std::string kernels, candidates, problems, build = KILN_VERSION, model = device.name;
  for (std::size_t s = 0; s < subjects.size(); ++s) {
    const Tunable& what = subjects[s].what;
    kernels += to_hex(workshop.records().definition(what));
    problems += text_of(what.problem_fields()) + text_of(subjects[s].problem) + ";";
    for (const Parameter& p : what.space().parameters()) candidates += p.name + ",";
    for (const Values& config : lists[s].configs) candidates += text_of(config) + ";";
  }
  std::set<std::string> versions;
  for (const Subject& subject : subjects)
    for (const Version& v : workshop.records().versions(subject.what))
      if (v.rule == Version::Rule::retune) versions.insert(text_of({v.name, v.value}));
  for (const std::string& version : versions) build += version;
  const MeasuringPolicy policy = policy_of(options);
  problems += format("cold {}, overlap {}, eager {}", policy.cold_cache, policy.overlap_launches,
                     policy.launching == Launching::eager);
  for (const KeyField& f : device.fingerprint) model += text_of({f.name, f.value});
  using ranks::short_digest;
  return {short_digest(kernels),  short_digest(candidates),
          short_digest(problems), short_digest(device.target.arch),
          short_digest(build),    short_digest(model)};
}

}  // namespace kiln::runtime
