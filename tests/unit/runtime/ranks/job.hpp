// Some ranks of an agreement, driven in step over a network that does nothing wrong.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "kiln_test.hpp"
#include "runtime/ranks/agreement.hpp"

namespace job {

using namespace kiln::runtime::ranks;

inline std::vector<AgreementInput> inputs(int size, std::size_t candidates,
                                          const kiln::RankOptions& options = {},
                                          std::size_t problems = 1) {
  std::vector<AgreementInput> all(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    AgreementInput& in = all[static_cast<std::size_t>(r)];
    in.rank = r, in.size = size;
    in.options = options;
    in.identity = {1, 2, 3, 4, 5, 6};
    in.problems.resize(problems);
    for (ProblemInput& p : in.problems) p.candidates = candidates;
    in.nonce = static_cast<std::uint64_t>(r);
  }
  return all;
}

struct Job {
  using Measure =
      std::function<float(int rank, Work::Kind kind, std::size_t problem, std::size_t c)>;

  explicit Job(const std::vector<AgreementInput>& all) {
    for (const AgreementInput& in : all) machines.emplace_back(in);
    exchanges.resize(all.size()), works.resize(all.size()), saves.resize(all.size());
    troubles.resize(all.size()), questions.resize(all.size());
  }

  /// Until nobody waits for anything.
  void run(const Measure& measure) {
    std::vector<std::pair<int, Event>> events;
    for (std::size_t r = 0; r < machines.size(); ++r) tell(r, Begin{}, measure);
    while (!open.empty() && open.size() == machines.size()) {
      const std::vector<Exchange> joined = std::move(open);
      open.clear();
      std::vector<std::byte> bytes;
      std::vector<float> values = joined[0].values;
      for (const Exchange& e : joined) bytes.insert(bytes.end(), e.bytes.begin(), e.bytes.end());
      if (joined[0].kind == Exchange::Kind::broadcast)
        bytes = joined[static_cast<std::size_t>(joined[0].root)].bytes;
      for (std::size_t r = 1; r < joined.size(); ++r)
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = joined[0].kind == Exchange::Kind::reduce_max
                          ? std::max(values[i], joined[r].values[i])
                          : values[i] + joined[r].values[i];
      if (joined[0].kind == Exchange::Kind::reduce_mean)
        for (float& v : values) v /= static_cast<float>(joined.size());
      if (spoil) spoil(joined[0], bytes, values);
      for (std::size_t r = 0; r < machines.size(); ++r)
        if (gives_up && gives_up(r, joined[r]))
          tell(r, Failed{joined[r].sequence, {kiln::RankFailure::Kind::timeout, {}, "late"}},
               measure);
        else
          tell(r, Completed{joined[r].sequence, bytes, values}, measure);
    }
  }

  void tell(std::size_t r, const Event& event, const Measure& measure) {
    for (Action& a : machines[r].handle(event, now)) {
      if (auto* e = std::get_if<Exchange>(&a)) {
        exchanges[r].push_back(*e);
        open.push_back(std::move(*e));
      } else if (const auto* w = std::get_if<Work>(&a)) {
        works[r].push_back(*w);
        Worked done;
        for (const Work::Item& item : w->items) {
          done.times.emplace_back();
          if (w->builds() && unanswered.count(static_cast<int>(r))) continue;
          for (const std::size_t c : item.candidates)
            done.times.back().push_back(measure(
                static_cast<int>(r), w->builds() ? Work::Kind::build : w->kind, item.problem, c));
        }
        done.trouble = troubles[r];
        done.stop = stops && stops(r, *w);
        tell(r, done, measure);
      } else if (const auto* s = std::get_if<Save>(&a)) {
        saves[r] = s->problems;
      } else if (const auto* q = std::get_if<Settle>(&a)) {
        questions[r] = q->question;
        tell(r, Settled{answer}, measure);
      }
    }
  }

  const Conclusion& conclusion(std::size_t r) const { return *machines[r].conclusion(); }

  std::vector<Agreement> machines;
  std::vector<std::vector<Exchange>> exchanges;
  std::vector<std::vector<Work>> works;
  std::vector<std::vector<std::size_t>> saves;
  std::vector<std::string> troubles;
  std::set<int> unanswered;  ///< ranks that never finish a build
  std::function<bool(std::size_t rank, const Work&)> stops{};
  /// Ranks that leave an exchange once they have sent their part.
  std::function<bool(std::size_t rank, const Exchange&)> gives_up{};
  std::vector<kiln::Digest> questions;
  std::vector<Exchange> open;
  std::optional<bool> answer = true;
  std::function<void(const Exchange&, std::vector<std::byte>&, std::vector<float>&)> spoil;
  Time now = 0;
};

inline float ones(int, Work::Kind, std::size_t, std::size_t) { return 1; }

/// Candidate `best` takes half of what the others take.
inline Job::Measure fastest(std::size_t best) {
  return [best](int, Work::Kind, std::size_t, std::size_t c) { return c == best ? 1.0F : 2.0F; };
}

inline void check_same_exchanges(const Job& job) {
  for (const auto& e : job.exchanges) {
    REQUIRE(e.size() == job.exchanges[0].size());
    for (std::size_t i = 0; i < e.size(); ++i) {
      CHECK(e[i].kind == job.exchanges[0][i].kind);
      CHECK(e[i].bytes.size() == job.exchanges[0][i].bytes.size());
      CHECK(e[i].values.size() == job.exchanges[0][i].values.size());
      CHECK(e[i].sequence == i);
    }
  }
}

}  // namespace job
