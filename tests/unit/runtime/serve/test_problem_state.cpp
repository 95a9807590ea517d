// The table of a problem's life, against one that was written for this test, and by what must hold
// of any such table.
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/serve/problem_state.hpp"

using namespace kiln::runtime;

namespace {

std::string said(std::optional<ProblemState> state) {
  return std::string(state ? to_string(*state) : "-");
}

bool is_being_made(ProblemState s) {
  return s == ProblemState::being_made || s == ProblemState::being_made_on_stand_in ||
         s == ProblemState::being_remade;
}

/// 0: nothing is loaded, 1: a stand-in, 2: a launchable.
int loaded(ProblemState s) {
  switch (s) {
    case ProblemState::on_stand_in:
    case ProblemState::being_made_on_stand_in:
    case ProblemState::missing_on_stand_in:
      return 1;
    case ProblemState::in_use:
    case ProblemState::being_remade:
      return 2;
    default:
      return 0;
  }
}

bool ends_a_making(ProblemEvent e) {
  return e == ProblemEvent::publish || e == ProblemEvent::miss || e == ProblemEvent::leave_unmade ||
         e == ProblemEvent::fail;
}

}  // namespace

TEST_CASE("every event in every state", "[runtime][problem_state]") {
  const std::vector<std::string> events{"begin",        "stand in", "publish", "miss",
                                        "leave unmade", "fail",     "choose"};
  const std::string half = "being made, on a stand-in", gone = "missing, on a stand-in";
  const std::vector<std::vector<std::string>> expected{
      {"unknown", "being made", "on a stand-in", "-", "-", "-", "-", "in use"},
      {"being made", "-", half, "in use", "missing", "unknown", "failed", "being remade"},
      {"on a stand-in", half, "on a stand-in", "-", "-", "-", "-", "in use"},
      {half, "-", half, "in use", gone, "on a stand-in", "on a stand-in", "being remade"},
      {"in use", "being remade", "in use", "-", "-", "-", "-", "in use"},
      {"being remade", "-", "being remade", "in use", "in use", "in use", "in use", "being remade"},
      {"missing", "being made", gone, "-", "-", "-", "-", "in use"},
      {gone, half, gone, "-", "-", "-", "-", "in use"},
      {"failed", "being made", "on a stand-in", "-", "-", "-", "-", "in use"}};
  REQUIRE(kProblemStates.size() == expected.size());
  REQUIRE(kProblemEvents.size() == events.size());
  for (std::size_t s = 0; s < expected.size(); ++s) {
    CHECK(to_string(kProblemStates[s]) == expected[s][0]);
    for (std::size_t e = 0; e < events.size(); ++e) {
      INFO(expected[s][0] << " meets " << events[e]);
      CHECK(to_string(kProblemEvents[e]) == events[e]);
      CHECK(said(next(kProblemStates[s], kProblemEvents[e])) == expected[s][e + 1]);
    }
  }
}

TEST_CASE("a making begins where there is none, and ends in each of four ways",
          "[runtime][problem_state]") {
  for (const ProblemState s : kProblemStates) {
    INFO(to_string(s));
    CHECK(next(s, ProblemEvent::begin).has_value() == !is_being_made(s));
    if (const auto begun = next(s, ProblemEvent::begin)) CHECK(is_being_made(*begun));
    for (const ProblemEvent e : kProblemEvents) {
      if (!ends_a_making(e)) continue;
      INFO(to_string(e));
      const auto after = next(s, e);
      CHECK(after.has_value() == is_being_made(s));
      if (after) CHECK_FALSE(is_being_made(*after));
    }
    // The others come from outside, at any time, and do not end it.
    for (const ProblemEvent e : {ProblemEvent::stand_in, ProblemEvent::choose}) {
      const auto after = next(s, e);
      REQUIRE(after.has_value());
      CHECK(is_being_made(*after) == is_being_made(s));
    }
  }
}

TEST_CASE("what launches get is never taken away", "[runtime][problem_state]") {
  for (const ProblemState s : kProblemStates)
    for (const ProblemEvent e : kProblemEvents) {
      const auto after = next(s, e);
      if (!after) continue;
      INFO(to_string(s) << " meets " << to_string(e));
      CHECK(loaded(*after) >= loaded(s));
      // A launchable comes from a making or a choice, a stand-in from its loading, and from nothing
      // else.
      if (e == ProblemEvent::publish || e == ProblemEvent::choose)
        CHECK(loaded(*after) == 2);
      else if (e == ProblemEvent::stand_in)
        CHECK(loaded(*after) == std::max(loaded(s), 1));
      else
        CHECK(loaded(*after) == loaded(s));
    }
}

TEST_CASE("no state is out of reach", "[runtime][problem_state]") {
  std::set<ProblemState> reached{ProblemState::unknown};
  for (std::size_t before = 0; before != reached.size();) {
    before = reached.size();
    for (const ProblemState s : std::set(reached))
      for (const ProblemEvent e : kProblemEvents)
        if (const auto after = next(s, e)) reached.insert(*after);
  }
  CHECK(reached.size() == kProblemStates.size());
}

TEST_CASE("ARCHITECTURE.md shows this table", "[runtime][problem_state]") {
  std::ifstream file(KILN_ARCHITECTURE_PAGE);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(page.empty());
  std::ostringstream table;
  table << "| state |";
  for (const ProblemEvent e : kProblemEvents) table << ' ' << to_string(e) << " |";
  table << "\n|";
  for (std::size_t i = 0; i <= kProblemEvents.size(); ++i) table << "---|";
  table << '\n';
  for (const ProblemState s : kProblemStates) {
    table << "| " << to_string(s) << " |";
    for (const ProblemEvent e : kProblemEvents) table << ' ' << said(next(s, e)) << " |";
    table << '\n';
  }
  INFO("it should be\n" << table.str());
  CHECK(page.find(table.str()) != std::string::npos);
}
