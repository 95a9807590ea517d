// Every order in which exchanges can finish, fail and be cut off by a death, for few ranks.
#include <map>
#include <set>
#include <sstream>

#include "job.hpp"
#include "kiln_test.hpp"

using namespace job;

namespace {

struct World {
  std::vector<Agreement> machines;
  std::vector<std::map<std::uint32_t, Exchange>> joined;  // by rank: what it ever contributed
  std::vector<std::optional<std::uint32_t>> waiting;
  std::vector<char> dead, asks, replied;
  std::vector<bool> proposal;
  std::optional<bool> answer;  // of the register
  int deaths_left = 1;

  std::string key() const {  // all that a state depends on: payloads are the same every time
    std::ostringstream s;
    for (std::size_t r = 0; r < machines.size(); ++r) {
      const auto& d = machines[r].conclusion();
      s << machines[r].exchanges() << machines[r].phase() << waiting[r].has_value() << int{dead[r]}
        << int{asks[r]} << int{replied[r]} << proposal[r] << (d ? static_cast<int>(d->kind) : 9)
        << (d && d->broken) << joined[r].size() << '|';
    }
    s << (answer ? *answer : 2) << deaths_left;
    return s.str();
  }
};

struct Explorer {
  std::set<std::string> seen;
  std::size_t ends = 0, split = 0, plans = 0;
  bool settles = false;
  int builds_nothing = -1;  ///< this rank cannot build what is chosen

  void act(World& w, std::size_t r, const std::vector<Action>& actions) {
    for (const Action& a : actions) {
      if (const auto* e = std::get_if<Exchange>(&a)) {
        w.joined[r][e->sequence] = *e;
        w.waiting[r] = e->sequence;
      } else if (const auto* work = std::get_if<Work>(&a)) {
        Worked done;
        const bool fails = work->builds() && static_cast<int>(r) == builds_nothing;
        for (const auto& item : work->items)
          done.times.emplace_back(item.candidates.size(), fails ? kFailed : 1.0F);
        act(w, r, w.machines[r].handle(done, 0));
      } else if (const auto* s = std::get_if<Settle>(&a)) {
        w.asks[r] = 1;
        w.proposal[r] = s->proposal;
      } else if (std::holds_alternative<Save>(a)) {
        for (const auto& all : w.joined)  // everyone is past the comparison
          REQUIRE(all.count(w.machines[r].exchanges() - 1) == 1);
      }
    }
  }

  void visit(const World& w) {
    if (!seen.insert(w.key()).second) return;
    bool moved = false;
    const std::size_t n = w.machines.size();
    for (std::size_t r = 0; r < n; ++r) {
      if (w.dead[r]) continue;
      if (w.deaths_left > 0 && !w.machines[r].conclusion()) {
        World next = w;
        next.dead[r] = 1;
        next.waiting[r].reset();
        --next.deaths_left;
        visit(next);
      }
      if (w.asks[r]) {  // the register hears it; then the answer comes back
        World next = w;
        if (!next.answer) next.answer = next.proposal[r];
        next.asks[r] = 0;
        act(next, r, next.machines[r].handle(Settled{next.answer}, 0));
        visit(next);
        moved = true;
      }
      if (!w.waiting[r]) continue;
      moved = true;
      const std::uint32_t sequence = *w.waiting[r];
      bool complete = true;
      for (const auto& all : w.joined) complete &= all.count(sequence) == 1;
      {
        World next = w;
        next.waiting[r].reset();
        act(next, r,
            next.machines[r].handle(
                Failed{sequence, {kiln::RankFailure::Kind::timeout, {}, "late"}}, 0));
        visit(next);
      }
      if (!complete) continue;
      World next = w;
      next.waiting[r].reset();
      std::vector<std::byte> bytes;
      const Exchange& mine = next.joined[r][sequence];
      for (const auto& all : next.joined) {
        const Exchange& e = all.at(sequence);
        REQUIRE(e.kind == mine.kind);
        REQUIRE(e.bytes.size() == mine.bytes.size());
        bytes.insert(bytes.end(), e.bytes.begin(), e.bytes.end());
      }
      const std::vector<float> values = mine.values;  // all the same
      act(next, r, next.machines[r].handle(Completed{sequence, bytes, values}, 0));
      visit(next);
    }
    if (!moved) end(w);
  }

  void end(const World& w) {
    ++ends;
    int with_plan = 0, without = 0;
    for (std::size_t r = 0; r < w.machines.size(); ++r) {
      if (w.dead[r]) continue;
      REQUIRE(w.machines[r].conclusion());
      const Conclusion& d = *w.machines[r].conclusion();
      (d.kind == Conclusion::Kind::plan ? with_plan : without) += 1;
      if (d.kind == Conclusion::Kind::plan) continue;
      // Fenced off: it joins nothing more. Or all had been told before.
      REQUIRE((d.broken || builds_nothing >= 0));
    }
    plans += with_plan > 0;
    if (with_plan > 0 && without > 0) ++split;
    if (settles) REQUIRE((with_plan == 0 || without == 0));
  }
};

Explorer explore(int size, bool settles, int builds_nothing = -1) {
  Explorer explorer;
  explorer.settles = settles;
  explorer.builds_nothing = builds_nothing;
  World w;
  const auto n = static_cast<std::size_t>(size);
  w.joined.resize(n), w.waiting.resize(n), w.dead.resize(n), w.asks.resize(n);
  w.replied.resize(n), w.proposal.resize(n);
  auto all = inputs(size, 2);
  for (auto& in : all) {
    in.settles = settles;
    in.store = 1;
    w.machines.emplace_back(in);
  }
  for (std::size_t r = 0; r < n; ++r) explorer.act(w, r, w.machines[r].handle(Begin{}, 0));
  explorer.visit(w);
  return explorer;
}

}  // namespace

TEST_CASE("with a register, survivors never differ in any order of events", "[ranks]") {
  for (const int size : {2, 3}) {
    const Explorer e = explore(size, true);
    CHECK(e.split == 0);
    CHECK(e.plans > 0);
    CHECK(e.ends > 20);
  }
}

TEST_CASE("without one, they differ only where one is fenced off", "[ranks]") {
  for (const int size : {2, 3}) {
    const Explorer e = explore(size, false);
    CHECK(e.split > 0);  // two generals: it cannot be helped
    CHECK(e.plans > e.split);
  }
}

TEST_CASE("in no order of events does a plan come of what one rank cannot build", "[ranks]") {
  for (const bool settles : {false, true})
    for (const int size : {2, 3})
      for (int rank = 0; rank < size; ++rank) {
        const Explorer e = explore(size, settles, rank);
        CHECK(e.plans == 0);
        CHECK(e.ends > 20);
      }
}
