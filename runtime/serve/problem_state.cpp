#include "runtime/serve/problem_state.hpp"

namespace kiln::runtime {

std::optional<ProblemState> next(ProblemState state, ProblemEvent event) noexcept {
  using enum ProblemState;
  constexpr std::nullopt_t never = std::nullopt;
  using Row = std::array<std::optional<ProblemState>, kProblemEvents.size()>;
  // A row per state, a column per event, both in the order of their enumerations.
  // clang-format off
  static constexpr std::array<Row, kProblemStates.size()> kNext{{
    // state begin stand_in publish miss leave_unmade fail choose
    /* unknown                */ {being_made,             on_stand_in,            never,  never,               never,       never,       in_use},
    /* being_made             */ {never,                  being_made_on_stand_in, in_use, missing,             unknown,     failed,      being_remade},
    /* on_stand_in            */ {being_made_on_stand_in, on_stand_in,            never,  never,               never,       never,       in_use},
    /* being_made_on_stand_in */ {never,                  being_made_on_stand_in, in_use, missing_on_stand_in, on_stand_in, on_stand_in, being_remade},
    /* in_use                 */ {being_remade,           in_use,                 never,  never,               never,       never,       in_use},
    /* being_remade           */ {never,                  being_remade,           in_use, in_use,              in_use,      in_use,      being_remade},
    /* missing                */ {being_made,             missing_on_stand_in,    never,  never,               never,       never,       in_use},
    /* missing_on_stand_in    */ {being_made_on_stand_in, missing_on_stand_in,    never,  never,               never,       never,       in_use},
    /* failed                 */ {being_made,             on_stand_in,            never,  never,               never,       never,       in_use},
  }};
  // clang-format on
  return kNext[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

std::string_view to_string(ProblemState state) noexcept {
  switch (state) {
    case ProblemState::unknown:
      return "unknown";
    case ProblemState::being_made:
      return "being made";
    case ProblemState::on_stand_in:
      return "on a stand-in";
    case ProblemState::being_made_on_stand_in:
      return "being made, on a stand-in";
    case ProblemState::in_use:
      return "in use";
    case ProblemState::being_remade:
      return "being remade";
    case ProblemState::missing:
      return "missing";
    case ProblemState::missing_on_stand_in:
      return "missing, on a stand-in";
    case ProblemState::failed:
      return "failed";
  }
  return "";
}

std::string_view to_string(ProblemEvent event) noexcept {
  switch (event) {
    case ProblemEvent::begin:
      return "begin";
    case ProblemEvent::stand_in:
      return "stand in";
    case ProblemEvent::publish:
      return "publish";
    case ProblemEvent::miss:
      return "miss";
    case ProblemEvent::leave_unmade:
      return "leave unmade";
    case ProblemEvent::fail:
      return "fail";
    case ProblemEvent::choose:
      return "choose";
  }
  return "";
}

}  // namespace kiln::runtime
