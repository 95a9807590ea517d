#include "runtime/ranks/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime::ranks {

using kiln::detail::format;

namespace {

/// How much later than the transport's deadline the state machine gives up. The transport can name
/// the rank that is late, the state machine cannot.
constexpr Time kGrace = 1.0;

void require(bool good, const char* what) {
  if (!good) throw UserError(format("tuning together: {}", what));
}

void check_input(const AgreementInput& in) {
  require(in.size >= 1 && in.rank >= 0 && in.rank < in.size,
          "the rank is not below the number of ranks");
  ranks::check(in.options, in.size);
  require(in.compile_threads >= 1, "at least one thread is needed for compiling");
  for (const ProblemInput& p : in.problems) {
    require(p.candidates >= 1, "a problem has no candidate");
    require(p.costs.empty() || p.costs.size() == p.candidates,
            "the number of costs is not the number of candidates");
    require(p.kinds.empty() || p.kinds.size() == p.candidates,
            "the number of kinds is not the number of candidates");
  }
}

/// The ranks that are in trouble; else those that would use something else than most.
RankFailure disagreement(std::span<const std::byte> bytes, std::size_t size) {
  RankFailure why{RankFailure::Kind::system, {}, ""};
  std::map<Digest, std::vector<int>> plans;
  for (std::size_t r = 0; r < size; ++r) {
    const auto m = decode<CompareMessage>(bytes, r);
    plans[m.plan].push_back(static_cast<int>(r));
    if (m.status == 0) continue;
    if (why.ranks.empty()) why.text = m.reason.get();
    why.ranks.push_back(static_cast<int>(r));
  }
  if (!why.ranks.empty()) return why;
  const auto most = std::max_element(plans.begin(), plans.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), -a.second[0]) < std::pair(b.second.size(), -b.second[0]);
  });
  why = {RankFailure::Kind::mismatch, {}, "it made another choice from the same numbers"};
  for (auto it = plans.begin(); it != plans.end(); ++it)
    if (it != most) why.ranks.insert(why.ranks.end(), it->second.begin(), it->second.end());
  std::sort(why.ranks.begin(), why.ranks.end());
  return why;
}

/// The rank whose record of problem `p` is used (-1: none), and the ranks that had no such record.
std::string cache_note(std::span<const std::byte> votes, std::size_t size, std::size_t problems,
                       std::size_t p, int root) {
  constexpr std::size_t kNamed = 8;
  const auto vote = [&](std::size_t r) { return decode<VoteMessage>(votes, r * problems + p); };
  std::string names;
  std::size_t others = 0;
  for (std::size_t r = 0; r < size; ++r) {
    const bool has = vote(r).has_record == 1;
    if (has && (root < 0 || vote(r).record == vote(static_cast<std::size_t>(root)).record))
      continue;
    if (++others <= kNamed) names += format("{}{}", names.empty() ? "" : ", ", r);
  }
  if (others > kNamed) names += format(" and {} more", others - kNamed);
  if (root < 0 && others == 0)
    return format("problem {}: records differ between ranks, so all tune", p);
  return format("problem {}: no {}record on rank{} {}, so all {}", p, root < 0 ? "" : "such ",
                others == 1 ? "" : "s", names, root < 0 ? "tune" : format("take rank {}'s", root));
}

}  // namespace

void check(const RankOptions& o, int size) {
  require(o.leader >= 0 && o.leader < size, "`leader` is not a rank");
  require(!o.lockstep || o.strategy == RankStrategy::replicate,
          "`lockstep` needs the strategy `replicate`: all ranks run each candidate");
  for (const double s : {o.first_seconds, o.step_seconds, o.tune_seconds})
    require(s > 0 && std::isfinite(s), "a limit is not a positive number of seconds");
  require(o.margin >= 0 && std::isfinite(o.margin),
          "`margin` must be a fraction of a time, 0 or more");
}

Agreement::Agreement(AgreementInput input) : in_(std::move(input)) {
  check_input(in_);
  // The sizes of all later exchanges follow from these counts.
  std::string counts = format("{}", in_.identity.candidates);
  for (const ProblemInput& p : in_.problems) counts += format(" {}", p.candidates);
  in_.identity.candidates = short_digest(counts);
  problems_.resize(in_.problems.size());
  for (std::size_t p = 0; p < problems_.size(); ++p) {
    std::optional<Record>& record = in_.problems[p].record;
    if (record && !record->answers(in_.problems[p].candidates)) record.reset();
    problems_[p].agreed.assign(in_.problems[p].candidates, kFailed);
  }
}

const char* Agreement::phase() const noexcept {
  constexpr const char* kNames[] = {
      "start",  "digest",  "vote",    "share",   "costs",    "tune",   "reduce",    "finals",
      "reduce", "build",   "ready",   "go",      "lockstep", "reduce", "finalists", "finals",
      "reduce", "prepare", "compare", "confirm", "settle",   "done"};
  return kNames[static_cast<std::size_t>(phase_)];
}

std::vector<Action> Agreement::handle(const Event& event, Time now) {
  if (phase_ == Phase::done) return {};
  if (std::holds_alternative<Begin>(event) && phase_ == Phase::created) {
    DigestMessage m;
    m.settings = settings_digest(in_.options, in_.settles);
    m.identity = in_.identity;
    m.store = in_.store;
    m.nonce = in_.nonce;
    m.trouble = in_.trouble.empty() ? 0 : 1;
    return {gather(Phase::digest, encode(m), now + in_.options.first_seconds)};
  }
  if (const auto* e = std::get_if<Completed>(&event)) return completed(*e, now);
  if (const auto* e = std::get_if<Worked>(&event)) return worked(*e, now);
  if (const auto* e = std::get_if<Failed>(&event)) {
    if (!deadline_ || phase_ == Phase::settle || e->sequence + 1 != sequence_) return {};
    return give_up(e->why, now);
  }
  if (const auto* e = std::get_if<Settled>(&event))
    return phase_ == Phase::settle ? settled(e->answer) : Actions{};
  if (std::holds_alternative<Tick>(event) && deadline_ && now >= *wakes()) {
    if (phase_ == Phase::settle) return settled({});
    return give_up({RankFailure::Kind::timeout, {}, format("{} took too long", phase())}, now);
  }
  return {};
}

std::optional<Time> Agreement::wakes() const noexcept {
  return deadline_ ? std::optional(*deadline_ + kGrace) : std::nullopt;
}

Agreement::Actions Agreement::completed(const Completed& e, Time now) {
  if (!deadline_ || phase_ == Phase::settle || e.sequence + 1 != sequence_) return {};
  deadline_.reset();
  // What follows relies on this rank having the records that it told the others it has.
  if (!sent_.empty()) {
    const std::size_t mine = sent_.size() * static_cast<std::size_t>(in_.rank);
    const bool intact =
        e.bytes.size() == sent_.size() * static_cast<std::size_t>(in_.size) &&
        std::equal(sent_.begin(), sent_.end(), e.bytes.begin() + static_cast<std::ptrdiff_t>(mine));
    if (!intact)
      return give_up({RankFailure::Kind::system, {}, "the result of a gather was damaged"}, now);
  }
  switch (phase_) {
    case Phase::digest:
      return read_digests(e.bytes, now);
    case Phase::vote:
      return read_votes(e.bytes, now);
    case Phase::share:
      return read_shared(e.bytes, now);
    case Phase::costs:
      return read_costs(e.values, now);
    case Phase::reduce:
    case Phase::reduce_finals:
      return read_reduced(e, now);
    case Phase::ready:
      return read_ready(e.values, now);
    case Phase::go:
      return lockstep_next(now);
    case Phase::reduce_one:
      return read_one(e.values, now);
    case Phase::finalists:
      return read_finalists(e.values, now);
    case Phase::reduce_final:
      return read_final(e.values, now);
    case Phase::compare:
      return read_plans(e.bytes, now);
    case Phase::confirm:
      return read_confirmations(e.bytes, now);
    default:
      return {};
  }
}

// --- what is asked, and which ranks have it -----------------------------------------------------

Agreement::Actions Agreement::read_digests(std::span<const std::byte> bytes, Time now) {
  const auto size = static_cast<std::size_t>(in_.size);
  const RankStrategy strategy = in_.options.strategy;
  for (std::size_t r = 0; r < size; ++r) {
    const auto m = decode<DigestMessage>(bytes, r);
    if (m.magic != DigestMessage::kMagic || m.trouble == 0) continue;
    const int rank = static_cast<int>(r);
    return finish_defaults({RankFailure::Kind::aborted,
                            {rank},
                            rank == in_.rank ? in_.trouble : "it cannot say what it would try"});
  }
  const Difference difference = find_difference(
      bytes, in_.size, strategy == RankStrategy::shard || strategy == RankStrategy::leader);
  if (!difference.what.empty())
    return finish_defaults({RankFailure::Kind::mismatch, difference.ranks, difference.what});
  for (std::size_t r = 0; r < size; ++r) {
    const auto m = decode<DigestMessage>(bytes, r);
    stores_.emplace_back(m.store, m.identity.device);
    like_devices_ = like_devices_ && m.identity.device == in_.identity.device;
    nonces_ = nonces_ * 0x100000001b3 + m.nonce;
  }
  std::vector<std::byte> votes;
  for (const ProblemInput& p : in_.problems) {
    VoteMessage vote;
    if (p.record) vote = {1, short_digest(encode_record(*p.record))};
    const auto encoded = encode(vote);
    votes.insert(votes.end(), encoded.begin(), encoded.end());
  }
  return {gather(Phase::vote, std::move(votes), now + in_.options.step_seconds)};
}

Agreement::Actions Agreement::read_votes(std::span<const std::byte> bytes, Time now) {
  const auto size = static_cast<std::size_t>(in_.size);
  const std::size_t count = problems_.size();
  for (std::size_t p = 0; p < count; ++p) {
    Problem& problem = problems_[p];
    std::map<std::uint64_t, std::pair<std::size_t, int>> records;  // holders, lowest holder
    std::size_t holders = 0;
    for (std::size_t r = 0; r < size; ++r) {
      const auto vote = decode<VoteMessage>(bytes, r * count + p);
      if (vote.has_record != 1) continue;
      ++holders;
      const auto [it, fresh] = records.try_emplace(vote.record, 0, static_cast<int>(r));
      ++it->second.first;
    }
    if (records.empty()) continue;
    if (holders == size && records.size() == 1) {
      problem.source = Source::own_record;
      problem.voted = records.begin()->first;
      problem.agreed = in_.problems[p].record->times;
      problem.winner = in_.problems[p].record->winner;
    } else if (in_.options.on_partial_cache == OnPartialCache::distribute && like_devices_) {
      const auto best =
          std::min_element(records.begin(), records.end(), [](const auto& a, const auto& b) {
            return std::pair(b.second.first, a.second.second) <
                   std::pair(a.second.first, b.second.second);
          });
      problem.source = Source::shared_record;
      problem.voted = best->first;
      problem.root = best->second.second;
    }
    if (problem.source != Source::own_record)
      notes_.push_back(
          cache_note(bytes, size, count, p, problem.source == Source::tune ? -1 : problem.root));
  }
  current_ = 0;
  return share_next(now);
}

Agreement::Actions Agreement::share_next(Time now) {
  while (current_ < problems_.size() && problems_[current_].source != Source::shared_record)
    ++current_;
  if (current_ == problems_.size()) return begin_tuning(now);
  const Problem& problem = problems_[current_];
  Exchange e = exchange(Phase::share, Exchange::Kind::broadcast, now + in_.options.step_seconds);
  e.root = problem.root;
  if (in_.rank == problem.root)
    e.bytes = encode_record(*in_.problems[current_].record);
  else
    e.bytes = encode_record({Times(in_.problems[current_].candidates), 0});
  return {std::move(e)};
}

/// A record that differs from the vote was damaged on its way, and every rank sees the same damage.
Agreement::Actions Agreement::read_shared(std::span<const std::byte> bytes, Time now) {
  Problem& problem = problems_[current_];
  Record record = decode_record(bytes);
  if (short_digest(bytes) == problem.voted && record.answers(in_.problems[current_].candidates)) {
    problem.agreed = std::move(record.times);
    problem.winner = record.winner;
  } else {
    problem.source = Source::tune;
  }
  ++current_;
  return share_next(now);
}

// --- the end ------------------------------------------------------------------------------------

/// Makes the plan from the agreed times. Then this rank builds what it has to launch.
Agreement::Actions Agreement::choose(Time now) {
  std::vector<Work::Item> items;
  for (std::size_t p = 0; p < problems_.size(); ++p) {
    Problem& problem = problems_[p];
    Pick pick = select(problem.agreed, in_.options.margin);
    if (problem.winner) pick = {*problem.winner, problem.agreed[*problem.winner]};
    // Where finalists were timed again, the others keep their one time. Where none was, because
    // time was over or a rank was stopped, that one time decides.
    if (!problem.first_round.empty()) {
      Times& times = problem.first_round;
      for (const std::size_t c : problem.again)
        if (is_time(problem.agreed[c]) || !std::isfinite(problem.agreed[c]))
          times[c] = problem.agreed[c];
      if (!is_time(pick.seconds)) pick = select(times, in_.options.margin);
      problem.agreed = std::move(times);
    }
    if (std::isfinite(pick.seconds)) items.push_back({p, {pick.candidate}});
    plan_.picks.push_back(pick);
    plan_.records.push_back({problem.agreed, pick.candidate});
  }
  digest_ = plan_digest(in_.identity, plan_.picks);
  if (items.empty() || !trouble_.empty()) return compare(now);
  return {
      work(Phase::prepare, Work::Kind::prepare, std::move(items), now + in_.options.step_seconds)};
}

Agreement::Actions Agreement::prepared(const Worked& e, Time now) {
  trouble_ = e.trouble;
  for (std::size_t i = 0; i < items_.size() && trouble_.empty(); ++i)
    if (i >= e.times.size() || e.times[i].empty() || !is_time(e.times[i][0]))
      trouble_ = format("cannot build the chosen config of problem {}", items_[i].problem);
  items_.clear();
  return compare(now);
}

Agreement::Actions Agreement::compare(Time now) {
  CompareMessage m;
  m.plan = digest_;
  if (!trouble_.empty()) {
    m.status = 1;
    m.reason.set(trouble_);
  }
  // Others may have more to build than this rank, each up to one step.
  return {gather(Phase::compare, encode(m), now + 2 * in_.options.step_seconds)};
}

Agreement::Actions Agreement::read_plans(std::span<const std::byte> bytes, Time now) {
  const auto size = static_cast<std::size_t>(in_.size);
  bool all_equal = trouble_.empty();
  for (std::size_t r = 0; r < size && all_equal; ++r) {
    const auto m = decode<CompareMessage>(bytes, r);
    all_equal = m.status == 0 && m.plan == digest_;
  }
  if (!all_equal) return finish_defaults(disagreement(bytes, size));
  const ConfirmMessage confirm{decode<std::uint64_t>(digest_)};
  return {gather(Phase::confirm, encode(confirm), now + 2 * in_.options.step_seconds)};
}

Agreement::Actions Agreement::read_confirmations(std::span<const std::byte> bytes, Time now) {
  const auto size = static_cast<std::size_t>(in_.size);
  bool all = true;
  for (std::size_t r = 0; all && r < size; ++r)
    all = decode<ConfirmMessage>(bytes, r).confirmed == decode<std::uint64_t>(digest_);
  if (!all) return give_up({RankFailure::Kind::system, {}, "a confirmation was damaged"}, now);
  return in_.settles ? settle(true, now) : finish_plan();
}

Agreement::Actions Agreement::give_up(RankFailure why, Time now) {
  deadline_.reset();
  if (phase_ != Phase::confirm || !in_.settles) return abort_with(std::move(why));
  failure_ = std::move(why);
  broken_ = true;
  Actions actions{Abort{failure_}};
  actions.push_back(settle(false, now).front());
  return actions;
}

Agreement::Actions Agreement::settle(bool proposal, Time now) {
  phase_ = Phase::settle;
  deadline_ = now + in_.options.step_seconds;
  return {Settle{sha256(format("{} {}", nonces_, to_hex(digest_))), proposal, *deadline_}};
}

Agreement::Actions Agreement::settled(std::optional<bool> answer) {
  if (answer.value_or(false)) return finish_plan();
  if (broken_) return finish_defaults(failure_);
  return abort_with({RankFailure::Kind::aborted,
                     {},
                     answer ? "a rank failed in the last exchange"
                            : "the folder where the ranks settle their answer cannot be reached"});
}

Agreement::Actions Agreement::abort_with(RankFailure why) {
  broken_ = true;
  return {Abort{why}, finish_defaults(why).front()};
}

Agreement::Actions Agreement::finish_plan() {
  deadline_.reset();
  phase_ = Phase::done;
  Conclusion d;
  d.kind = Conclusion::Kind::plan;
  d.plan = std::move(plan_);
  d.digest = digest_;
  d.broken = broken_;
  d.measured = measured_;
  d.notes = std::move(notes_);
  conclusion_ = std::move(d);
  Actions actions;
  if (auto problems = to_save(); !problems.empty()) actions.emplace_back(Save{std::move(problems)});
  actions.emplace_back(Finish{});
  return actions;
}

Agreement::Actions Agreement::finish_defaults(RankFailure why) {
  deadline_.reset();
  phase_ = Phase::done;
  Conclusion d;
  d.why = std::move(why);
  d.broken = broken_;
  d.measured = measured_;
  d.notes = std::move(notes_);
  conclusion_ = std::move(d);
  return {Finish{}};
}

std::vector<std::size_t> Agreement::to_save() const {
  std::vector<std::size_t> problems;
  const auto first =
      std::find(stores_.begin(), stores_.end(), std::pair(in_.store, in_.identity.device));
  if (in_.store == 0 || first - stores_.begin() != in_.rank) return problems;
  for (std::size_t p = 0; p < problems_.size(); ++p) {
    const auto& own = in_.problems[p].record;
    const Record& agreed = conclusion_->plan.records[p];
    if ((!own || *own != agreed) && std::isfinite(conclusion_->plan.picks[p].seconds))
      problems.push_back(p);
  }
  return problems;
}

Exchange Agreement::exchange(Phase phase, Exchange::Kind kind, Time deadline) {
  phase_ = phase;
  deadline_ = deadline;
  Exchange e;
  e.kind = kind;
  e.sequence = sequence_++;
  e.deadline = deadline;
  sent_.clear();
  return e;
}

Exchange Agreement::gather(Phase phase, std::vector<std::byte> bytes, Time deadline) {
  Exchange e = exchange(phase, Exchange::Kind::gather, deadline);
  sent_ = bytes;
  e.bytes = std::move(bytes);
  return e;
}

Work Agreement::work(Phase phase, Work::Kind kind, std::vector<Work::Item> items, Time until) {
  phase_ = phase;
  items_ = items;
  Work work{kind, std::move(items), until};
  if (!work.builds() && phase != Phase::lockstep_finals)
    for (const Work::Item& item : work.items) measured_ += item.candidates.size();
  return work;
}

Exchange::Kind Agreement::reduction() const noexcept {
  return in_.options.reduction == RankReduction::max ? Exchange::Kind::reduce_max
                                                     : Exchange::Kind::reduce_mean;
}

/// A single rank has nothing to split, and no other rank to time its best again.
bool Agreement::sharded() const noexcept {
  return in_.options.strategy == RankStrategy::shard && in_.size > 1;
}

bool Agreement::tuned(std::size_t problem) const noexcept {
  return problems_[problem].source == Source::tune;
}

std::size_t Agreement::next_tuned(std::size_t from) const noexcept {
  while (from < problems_.size() && !tuned(from)) ++from;
  return from;
}

/// Whether several ranks have its candidates.
bool Agreement::divided(std::size_t problem) const noexcept {
  if (!tuned(problem) || owners_.empty()) return false;
  const std::vector<int>& owners = owners_[problem];
  return std::ranges::any_of(owners, [&](int owner) { return owner != owners.front(); });
}

bool Agreement::any_divided() const noexcept {
  for (std::size_t p = 0; p < problems_.size(); ++p)
    if (divided(p)) return true;
  return false;
}

}  // namespace kiln::runtime::ranks
