// A problem's life: its states, what can happen to it, and the one table of what follows from what.
//
// A state says whether a thread is making a problem, and what launches of the problem get. Kernels,
// functions and regions differ only in when they raise events. Serving from the background, before
// a commit and on a sealed runtime adds no state: provisional launchables are `in use`, proposals
// lie with the background, and a sealed runtime does not change the table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kiln::runtime {

enum class ProblemState : std::uint8_t {
  unknown,      ///< nothing is loaded
  being_made,   ///< a thread makes the first launchable; nothing is loaded
  on_stand_in,  ///< a stand-in is loaded: the untuned config, or the winner on record
  being_made_on_stand_in,
  in_use,               ///< a launchable is in use
  being_remade,         ///< a thread makes another launchable; the one in use stays until then
  missing,              ///< there is no binary, and none may be compiled; nothing is loaded
  missing_on_stand_in,  ///< the same, but a stand-in is loaded, which regions continue to use
  failed,               ///< the last making failed; nothing is loaded
};

enum class ProblemEvent : std::uint8_t {
  begin,     ///< a thread begins to make a launchable
  stand_in,  ///< a stand-in has been loaded
  publish,   ///< the making ended with a launchable
  miss,      ///< the making ended without one: its binary is missing
  give_up,   ///< the making ended before it could begin to tune: the wait took all its time
  fail,      ///< the making ended with an exception
  choose,    ///< a launchable was chosen from outside: an explicit tuning, a region, the ranks
};

inline constexpr std::array kProblemStates{
    ProblemState::unknown,     ProblemState::being_made,
    ProblemState::on_stand_in, ProblemState::being_made_on_stand_in,
    ProblemState::in_use,      ProblemState::being_remade,
    ProblemState::missing,     ProblemState::missing_on_stand_in,
    ProblemState::failed};

inline constexpr std::array kProblemEvents{
    ProblemEvent::begin,   ProblemEvent::stand_in, ProblemEvent::publish, ProblemEvent::miss,
    ProblemEvent::give_up, ProblemEvent::fail,     ProblemEvent::choose};

/// The state that follows; none where the event cannot happen in this state.
std::optional<ProblemState> next(ProblemState state, ProblemEvent event) noexcept;

/// As in messages and ARCHITECTURE.md: "being made, on a stand-in", "give up".
std::string_view to_string(ProblemState state) noexcept;
std::string_view to_string(ProblemEvent event) noexcept;

}  // namespace kiln::runtime
