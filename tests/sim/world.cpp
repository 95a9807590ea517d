#include "world.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "kiln/detail/format.hpp"

namespace sim {

using kiln::RankFailure;
using kiln::detail::format;
using ranks::Conclusion;
using ranks::Exchange;
using ranks::Work;

namespace {

constexpr double kRetry = 0.05;  ///< seconds before the first retry of a lost message

std::uint32_t tree_rounds(int size) {
  return static_cast<std::uint32_t>(std::bit_width(static_cast<unsigned>(size - 1)));
}

}  // namespace

World::World(const Scenario& scenario)
    : scenario_(scenario),
      size_(static_cast<int>(scenario.ranks.size())),
      random_(scenario.seed ^ 0xfeed),
      states_(scenario.ranks.size()),
      told_(scenario.ranks.size()) {}

double World::local(int r, double t) const { return rank(r).offset + t * (1 + rank(r).drift); }
double World::global(int r, double t) const { return (t - rank(r).offset) / (1 + rank(r).drift); }
void World::violation(std::string text) {
  if (outcome_.violations.size() < 20)
    outcome_.violations.push_back(format("seed {}: {}", scenario_.seed, text));
}

void World::push(double time, What what, int r, int from, std::uint32_t sequence,
                 std::uint32_t round) {
  const int urgency = what == What::deadline ? 1 : what == What::tick ? 2 : 0;
  queue_.push({time, urgency, order_++, what, r, from, sequence, round});
}

Outcome World::run() {
  for (int r = 0; r < size_; ++r) {
    state(r).machine.emplace(rank(r).input);
    push(rank(r).start, What::begin, r);
  }
  while (!queue_.empty()) {
    const Happening h = queue_.top();
    queue_.pop();
    now_ = h.time;
    for (const std::uint64_t part :
         {std::bit_cast<std::uint64_t>(h.time), static_cast<std::uint64_t>(h.what),
          static_cast<std::uint64_t>(h.rank), static_cast<std::uint64_t>(h.sequence)})
      outcome_.trace = (outcome_.trace ^ part) * 0x100000001b3;
    happen(h);
  }
  outcome_.seconds = now_;
  check();
  return std::move(outcome_);
}

void World::happen(const Happening& h) {
  State& s = state(h.rank);
  if (h.what == What::ask) {  // at the register, not at the rank
    const bool first =
        register_.try_emplace(s.question.question, s.question.proposal).first->second;
    s.answer = scenario_.sabotage == Sabotage::lying_register ? s.question.proposal : first;
    if (h.rank != scenario_.out_of_reach)
      push(now_ + random_.exponential(2e-3), What::answer, h.rank);
    return;
  }
  if (s.dead) return;
  if (h.time < s.stalled_until) {
    Happening later = h;
    later.time = s.stalled_until;
    later.order = order_++;
    queue_.push(later);
    return;
  }
  switch (h.what) {
    case What::begin: {
      s.began = now_;
      note_phase(h.rank);
      if (s.dead) return;
      if (now_ < s.stalled_until) return push(s.stalled_until, What::begin, h.rank);
      const auto& problems = rank(h.rank).input.problems;
      s.skipped = scenario_.sabotage == Sabotage::hit_skips_exchange &&
                  std::all_of(problems.begin(), problems.end(), [](const auto& p) {
                    return p.record && p.record->answers(p.candidates);
                  });
      if (s.skipped) {
        s.ended = true;
        return;
      }
      return tell(h.rank, ranks::Begin{});
    }
    case What::message:
      return receive(h);
    case What::broken_link: {
      RankFailure why{RankFailure::Kind::lost, {h.from}, "the link is gone"};
      if (!s.poison) s.poison = why;
      if (s.waiting) fail(h.rank, *s.waiting, why);
      return;
    }
    case What::aborted:
      if (!s.poison) {
        s.poison = told_[static_cast<std::size_t>(h.from)];
        s.poison->kind = RankFailure::Kind::aborted;
        if (s.poison->ranks.empty()) s.poison->ranks = {h.from};
      }
      if (s.waiting) fail(h.rank, *s.waiting, *s.poison);
      return;
    case What::wake:  // joined on a broken end
      if (s.waiting == h.sequence) fail(h.rank, h.sequence, *s.poison);
      return;
    case What::deadline:
      if (s.waiting == h.sequence)
        fail(h.rank, h.sequence,
             {RankFailure::Kind::timeout, late(rounds_.at(h.sequence)), "did not arrive in time"});
      return;
    case What::tick:
      return tell(h.rank, ranks::Tick{});
    case What::worked:
      return tell(h.rank, s.done);
    case What::answer:
      return tell(h.rank, ranks::Settled{s.answer});
    case What::ask:
      return;
  }
}

void World::tell(int r, const ranks::Event& event) {
  State& s = state(r);
  const bool had = s.machine->conclusion().has_value();
  std::vector<ranks::Action> actions = s.machine->handle(event, local(r, now_));
  if (had && !actions.empty()) violation(format("rank {} acts after its end", r));
  note_phase(r);
  if (const auto wakes = s.machine->wakes(); wakes && scenario_.sabotage != Sabotage::no_deadlines)
    push(std::max(now_, global(r, *wakes) + 1e-6), What::tick, r);
  const std::string phase = s.machine->phase();
  if (phase == "confirm" && scenario_.sabotage == Sabotage::no_confirmation) {
    s.ended = true;
    s.deaf = true;
  }
  if (phase == "confirm" && scenario_.sabotage == Sabotage::saves_early) {
    // As if the machine had said Save{} here.
    if (const auto it = rounds_.find(s.machine->exchanges() - 1);
        it == rounds_.end() || it->second.count < size_)
      violation(format("rank {} saved before all had agreed", r));
  }
  act(r, std::move(actions));
}

void World::act(int r, std::vector<ranks::Action> actions) {
  for (ranks::Action& action : actions) {
    State& s = state(r);
    if (s.dead) return;
    if (auto* e = std::get_if<Exchange>(&action)) {
      join(r, std::move(*e));
    } else if (auto* w = std::get_if<Work>(&action)) {
      perform(r, std::move(*w));
    } else if (const auto* q = std::get_if<ranks::Settle>(&action)) {
      s.question = *q;
      if (r != scenario_.out_of_reach || random_.chance(0.5))
        push(now_ + random_.exponential(2e-3), What::ask, r);
    } else if (const auto* a = std::get_if<ranks::Abort>(&action)) {
      abort(r, a->why);
    } else if (const auto* save = std::get_if<ranks::Save>(&action)) {
      s.saved = true;
      const Round& confirm = rounds_.at(s.machine->exchanges() - 1);
      if (confirm.count < size_) violation(format("rank {} saved before all had agreed", r));
      for (int o = 0; o < size_; ++o)
        if (o != r && state(o).saved && rank(o).input.store == rank(r).input.store)
          violation(format("ranks {} and {} both write to one store", o, r));
      if (save->problems.empty() || rank(r).input.store == 0)
        violation(format("rank {} saves what it need not", r));
    } else {
      finish(r);
    }
  }
}

// --- the network --------------------------------------------------------------------------------

void World::join(int r, Exchange e) {
  State& s = state(r);
  const std::uint32_t sequence = e.sequence;
  auto [it, fresh] = rounds_.try_emplace(sequence);
  Round& round = it->second;
  const std::size_t size = e.bytes.size() + 4 * e.values.size();
  if (fresh) {
    round.kind = e.kind, round.root = e.root, round.size = size;
    const auto n = static_cast<std::size_t>(size_);
    round.parts.resize(n), round.joined.resize(n), round.finished.resize(n);
    round.received.resize(n), round.sent.resize(n);
  } else if (round.kind != e.kind || round.root != e.root || round.size != size) {
    violation(format("rank {} calls something else at exchange {}", r, sequence));
    return;
  }
  s.waiting = sequence;
  const double deadline = std::max(now_, global(r, e.deadline));
  if (scenario_.network.keeps_deadlines && scenario_.sabotage != Sabotage::no_deadlines)
    push(deadline, What::deadline, r, 0, sequence);
  if (s.poison) return push(now_, What::wake, r, 0, sequence);
  const auto i = static_cast<std::size_t>(r);
  round.parts[i] = std::move(e);
  round.joined[i] = 1;
  ++round.count;
  if (round.kind == Exchange::Kind::broadcast) {
    if (r == round.root)
      for (int o = 0; o < size_ && !s.dead; ++o)
        if (o != r) send(r, o, sequence, 0);
  } else if (!scenario_.network.tree) {
    for (int o = 1; o < size_ && !s.dead; ++o) send(r, (r + o) % size_, sequence, 0);
  }
  if (!s.dead) advance(r, sequence);
}

void World::send(int r, int to, std::uint32_t sequence, std::uint32_t round) {
  State& s = state(r);
  if (s.fault_armed && !s.fault_done && s.sends_left-- <= 0 && dies_or_stalls(r) && s.dead) return;
  const Network& n = scenario_.network;
  double time = std::max(now_, s.stalled_until) + n.delay + random_.exponential(n.jitter);
  if (n.spike > 0 && random_.chance(n.spike)) time += random_.exponential(n.spike_seconds);
  double retry = kRetry;
  for (int attempt = 1; n.loss > 0 && random_.chance(n.loss); ++attempt, retry *= 2) {
    time += retry;
    if (attempt == n.attempts) return push(time, What::broken_link, to, r, sequence);
  }
  push(time, What::message, to, r, sequence, round);
}

void World::receive(const Happening& h) {
  Round& round = rounds_.at(h.sequence);
  auto& received = round.received[static_cast<std::size_t>(h.rank)];
  const bool in_tree = scenario_.network.tree && round.kind != Exchange::Kind::broadcast;
  received = in_tree ? received | 1U << h.round : received + 1;
  advance(h.rank, h.sequence);
}

void World::advance(int r, std::uint32_t sequence) {
  Round& round = rounds_.at(sequence);
  const auto i = static_cast<std::size_t>(r);
  if (!round.joined[i] || round.finished[i] || state(r).waiting != sequence) return;
  if (round.kind == Exchange::Kind::broadcast) {
    if (r != round.root && round.received[i] == 0) return;
  } else if (scenario_.network.tree) {
    const std::uint32_t last = tree_rounds(size_);
    while (round.sent[i] < last &&
           (round.sent[i] == 0 || (round.received[i] >> (round.sent[i] - 1) & 1) != 0)) {
      const std::uint32_t k = round.sent[i]++;
      send(r, (r + (1 << k)) % size_, sequence, k);
      if (state(r).dead) return;
    }
    if (round.sent[i] < last || round.received[i] != (1U << last) - 1) return;
  } else if (round.received[i] + 1 < static_cast<std::uint32_t>(size_)) {
    return;
  }
  complete(r, sequence);
}

void World::result(Round& round) {
  if (!round.bytes.empty() || !round.values.empty()) return;
  for (const Exchange& part : round.parts)
    round.bytes.insert(round.bytes.end(), part.bytes.begin(), part.bytes.end());
  round.values = round.parts[0].values;
  for (std::size_t r = 1; r < round.parts.size(); ++r)
    for (std::size_t k = 0; k < round.values.size(); ++k) {
      const float more = round.parts[r].values[k];
      float& value = round.values[k];
      value = round.kind == Exchange::Kind::reduce_max ? std::max(value, more) : value + more;
    }
  if (round.kind == Exchange::Kind::reduce_mean)
    for (float& v : round.values) v /= static_cast<float>(size_);
}

void World::complete(int r, std::uint32_t sequence) {
  Round& round = rounds_.at(sequence);
  State& s = state(r);
  round.finished[static_cast<std::size_t>(r)] = 1;
  s.waiting.reset();
  ++s.completed;
  if (round.kind == Exchange::Kind::broadcast) {
    const auto& bytes = round.parts[static_cast<std::size_t>(round.root)].bytes;
    return tell(r, ranks::Completed{sequence, bytes, {}});
  }
  if (round.count < size_) violation("a collective finished that not all had joined");
  result(round);
  if (s.ended) {  // the job's own use of the communicator, after the agreement
    s.used = true;
    for (const Exchange& part : round.parts)
      if (part.bytes != round.parts[0].bytes)
        violation(format("rank {} works together with one of another choice", r));
    return;
  }
  std::vector<float> values = round.values;
  if (round.kind == Exchange::Kind::reduce_mean && !scenario_.network.equal_sums)
    for (float& v : values)
      if (r % 2) v = std::nextafter(v, ranks::kFailed);
  tell(r, ranks::Completed{sequence, round.bytes, values});
}

void World::fail(int r, std::uint32_t sequence, RankFailure why) {
  State& s = state(r);
  s.waiting.reset();
  outcome_.faulted = true;
  if (!s.poison) s.poison = why;
  if (s.ended) return;
  tell(r, ranks::Failed{sequence, std::move(why)});
}

void World::abort(int r, const RankFailure& why) {
  State& s = state(r);
  outcome_.faulted = true;
  s.waiting.reset();
  if (scenario_.sabotage == Sabotage::forgets_abort) {
    s.poison.reset();
    return;
  }
  s.poison = why;
  told_[static_cast<std::size_t>(r)] = why;
  if (!scenario_.network.tells_aborts) return;
  const Network& n = scenario_.network;
  for (int o = 0; o < size_; ++o)
    if (o != r) push(now_ + n.delay + random_.exponential(n.jitter), What::aborted, o, r);
}

std::vector<int> World::late(const Round& round) const {
  std::vector<int> missing;
  if (!scenario_.network.names_late) return missing;
  for (int r = 0; r < size_; ++r) {  // ranks that do not answer a roll call, too
    const State& s = states_[static_cast<std::size_t>(r)];
    if (!round.joined[static_cast<std::size_t>(r)] || s.dead || s.stalled_until > now_)
      missing.push_back(r);
  }
  return missing;
}

// --- ranks --------------------------------------------------------------------------------------

void World::note_phase(int r) {
  State& s = state(r);
  const Fault& f = rank(r).fault;
  if (f.kind == Fault::Kind::none || s.fault_armed || f.phase != s.machine->phase()) return;
  s.fault_armed = true;
  s.sends_left = f.sends;
  if (f.sends == 0) dies_or_stalls(r);
}

bool World::dies_or_stalls(int r) {
  State& s = state(r);
  if (s.fault_done) return false;
  s.fault_done = true;
  if (rank(r).fault.kind == Fault::Kind::crash) {
    s.dead = true;
  } else {
    s.stalled_for = rank(r).fault.seconds;
    s.stalled_until = now_ + s.stalled_for;
  }
  return true;
}

/// What is not done in time is left out; `takes` is how long the rest took.
std::vector<ranks::Times> World::measure(int r, double& takes) {
  State& s = state(r);
  const Rank& me = rank(r);
  const bool build = s.work.builds();
  std::vector<ranks::Times> times;
  const double budget = global(r, s.work.until) - now_;
  for (const Work::Item& item : s.work.items) {
    times.emplace_back();
    for (const std::size_t c : item.candidates) {
      double compile = 0.01, run = 0.01;
      if (const auto& costs = me.input.problems[item.problem].costs; !costs.empty())
        compile = costs[c].compile / me.input.compile_threads, run = costs[c].run;
      if (s.work.times() && now_ + takes >= me.stops_at) {
        times.back().push_back(ranks::kUntried);
        continue;
      }
      const bool there = s.built.count({item.problem, c}) != 0;
      const double more = ((there ? 0 : compile) + (build ? 0 : run)) * me.slowness;
      const bool late = s.work.kind != Work::Kind::lockstep && takes + more > budget;
      if (late && !me.overruns) {
        takes = std::max(takes, budget);
        return times;
      }
      takes += more;
      const bool builds = me.builds[item.problem][c];
      if (builds) s.built.insert({item.problem, c});
      times.back().push_back(build ? (builds ? 1.0F : ranks::kFailed) : me.times[item.problem][c]);
      if (late) return times;
    }
  }
  return times;
}

void World::perform(int r, Work work) {
  State& s = state(r);
  s.work = std::move(work);
  if (s.work.kind == Work::Kind::lockstep) {
    const std::pair step{s.work.items[0].problem, s.work.items[0].candidates[0]};
    s.lockstep.push_back(step);
    for (int o = 0; o < size_; ++o) {
      if (!rank(o).builds[step.first][step.second])
        violation(format("rank {} launches with others what rank {} cannot", r, o));
      const auto& theirs = state(o).lockstep;
      if (theirs.size() >= s.lockstep.size() && theirs[s.lockstep.size() - 1] != step)
        violation(format("ranks {} and {} launch different candidates together", r, o));
    }
  }
  double takes = 0;
  s.done = {measure(r, takes), rank(r).trouble, now_ >= rank(r).stops_at};
  if (!rank(r).trouble.empty()) takes = 0.1;
  if (std::string_view(s.machine->phase()) == "prepare") {
    s.unprepared = !rank(r).trouble.empty();
    for (std::size_t i = 0; i < s.work.items.size(); ++i)
      s.unprepared |=
          i >= s.done.times.size() || s.done.times[i].empty() || std::isinf(s.done.times[i][0]);
    if (scenario_.sabotage == Sabotage::blind_vouching)
      s.done = {std::vector<ranks::Times>(s.work.items.size(), {1}), "", false};
  }
  push(now_ + takes, What::worked, r);
}

void World::finish(int r) {
  State& s = state(r);
  if (scenario_.sabotage == Sabotage::no_confirmation && s.ended) return;
  s.ended = true;
  s.ended_at = now_;
  const Conclusion& d = *s.machine->conclusion();
  if (d.broken && scenario_.sabotage != Sabotage::forgets_abort) return;
  Exchange e;  // what the job does next
  e.sequence = s.machine->exchanges();
  e.bytes.assign(d.digest.begin(), d.digest.end());
  e.deadline = local(r, now_ + 100);
  join(r, std::move(e));
}

}  // namespace sim
