// What ranks ask each other before they tune a choice: which alternatives all of them have.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kiln/detail/choice_core.hpp"
#include "kiln/tune.hpp"
#include "runtime/choice/contender.hpp"

namespace kiln::runtime {

/// This rank's alternatives for a bucket, without those that are not the same on all ranks: ranks
/// would launch different things. Collective; all ranks come to the same, also where they throw,
/// unless one fails meanwhile.
/// @param how what else must be the same on all ranks
/// @param mine in the order of the contenders, which must be the same for what ranks have in common
/// @pre options.ranks
/// @throws UserError where ranks ask for different things, or list them in another order;
/// EnvironmentError, naming the rank, where one gives up or does not come: the latter breaks this
/// rank's end of the communicator
std::vector<Entrance> meet(const detail::ChoiceDescription& choice, std::string_view how,
                           std::span<const std::unique_ptr<Contender>> contenders,
                           std::vector<Entrance> mine, std::span<const std::int64_t> problem,
                           const TuneOptions& options);

}  // namespace kiln::runtime
