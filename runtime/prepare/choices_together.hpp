// What ranks tell each other before they prepare the choices of a manifest, so that all of them
// enter the same collectives.
#pragma once

#include <cstddef>
#include <vector>

#include "kiln/manifest.hpp"
#include "kiln/tune.hpp"
#include "runtime/prepare/prepare_items.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

/// What becomes of a problem of a choice on all ranks.
enum class RanksAsk {
  together,  ///< all have it, and have not decided on it: they do
  no,        ///< all have decided; or some have, and the others learn nothing
  different  ///< they differ in how many choices they have of it, or in whether they tune
};

/// Whether ranks decide on choices in a preparation: by tuning, unless their mode tunes nothing.
bool decides(detail::Engine& engine, bool measure);
/// By item; `no` of choices without ranks. One collective of each communicator that has choices of
/// the manifest, and of the runtime's if it names any, after the agreement on kernels. All of a
/// communicator's are `different` where a rank takes no part.
/// @param measure whether this rank tunes
std::vector<RanksAsk> ask_ranks(detail::Engine& engine, const Manifest& manifest,
                                const std::vector<ChoiceItem>& items, bool measure);
/// In the place of ask_ranks(): this rank goes on without the choices. Never throws.
void leave_choices(detail::Engine& engine, const Manifest& manifest) noexcept;

}  // namespace kiln::runtime
