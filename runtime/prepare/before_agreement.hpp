// What ranks do before they agree on a manifest.
#pragma once

#include <algorithm>

#include "kiln/manifest.hpp"
#include "kiln/tune.hpp"
#include "runtime/together/beside_agreement.hpp"

namespace kiln::runtime {

/// Calls `work`. If it throws, the other ranks are told first, unless they agree on nothing.
template <class Work>
void before_agreement(const Manifest& manifest, const TuneOptions& options, const Work& work) {
  if (manifest.wanted.empty())
    work();
  else
    tell_if_it_throws(options, work);
}

/// The others may have to compile before they agree.
inline TuneOptions patient(TuneOptions options) {
  RankOptions& together = options.together;
  together.first_seconds = std::max(together.first_seconds, together.tune_seconds);
  return options;
}

}  // namespace kiln::runtime
