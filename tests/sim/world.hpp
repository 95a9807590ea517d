// Plays a scenario: agreements on a simulated network in simulated time. Deterministic.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "runtime/ranks/agreement.hpp"
#include "scenario.hpp"

namespace sim {

struct Outcome {
  std::vector<std::string> violations;       ///< empty: all that is promised held
  int plans = 0, defaults = 0, crashed = 0;  ///< ranks, at the end
  bool divergent = false;  ///< survivors hold different choices (not promised against without a
                           ///< register: then it is counted, and must be fenced)
  bool faulted = false;    ///< an exchange failed somewhere
  std::uint32_t exchanges = 0;
  std::uint64_t trace = 0;    ///< digest of everything that happened
  double seconds = 0;         ///< simulated
  std::vector<double> ended;  ///< when, by rank; infinite: it died, or never ends
};

class World {
 public:
  explicit World(const Scenario& scenario);
  Outcome run();

 private:
  enum class What {
    begin,
    message,
    broken_link,
    deadline,
    tick,
    worked,
    ask,
    answer,
    aborted,
    wake
  };
  struct Happening {
    double time = 0;
    int urgency = 0;  ///< at the same time, data is seen before clocks
    std::uint64_t order = 0;
    What what = What::begin;
    int rank = 0, from = 0;
    std::uint32_t sequence = 0, round = 0;
    bool operator<(const Happening& o) const {
      return std::tie(time, urgency, order) > std::tie(o.time, o.urgency, o.order);
    }
  };
  /// One collective, as all ranks see it.
  struct Round {
    ranks::Exchange::Kind kind = ranks::Exchange::Kind::gather;
    int root = 0;
    std::size_t size = 0;
    std::vector<ranks::Exchange> parts;
    std::vector<char> joined, finished;
    std::vector<std::uint32_t> received;  ///< a count, or in a tree a mask of rounds
    std::vector<std::uint32_t> sent;
    int count = 0;
    std::vector<std::byte> bytes;  ///< the result, once all have joined
    std::vector<float> values;
  };
  struct State {
    std::optional<ranks::Agreement> machine;
    bool dead = false, ended = false, deaf = false;
    double stalled_until = 0, stalled_for = 0, began = 0, ended_at = 0;
    bool fault_armed = false, fault_done = false;
    int sends_left = 0;
    std::optional<std::uint32_t> waiting;  ///< for this collective
    std::optional<kiln::RankFailure> poison;
    ranks::Work work;
    ranks::Worked done;  ///< told when that is over
    ranks::Settle question;
    std::optional<bool> answer;
    std::vector<std::pair<std::size_t, std::size_t>> lockstep;
    std::set<std::pair<std::size_t, std::size_t>> built;
    bool unprepared = false;  ///< could not build what was chosen, or not in time
    bool saved = false, skipped = false, used = false;
    std::uint32_t completed = 0;
  };

  void happen(const Happening& h);
  void push(double time, What what, int rank, int from = 0, std::uint32_t sequence = 0,
            std::uint32_t round = 0);
  void tell(int rank, const ranks::Event& event);
  void act(int rank, std::vector<ranks::Action> actions);
  void perform(int rank, ranks::Exchange exchange);
  void perform(int rank, ranks::Work work);
  void join(int rank, ranks::Exchange exchange);
  void send(int rank, int to, std::uint32_t sequence, std::uint32_t round);
  void receive(const Happening& h);
  void advance(int rank, std::uint32_t sequence);
  void complete(int rank, std::uint32_t sequence);
  void fail(int rank, std::uint32_t sequence, kiln::RankFailure why);
  void abort(int rank, const kiln::RankFailure& why);
  void finish(int rank);
  void use(int rank);
  void note_phase(int rank);
  bool dies_or_stalls(int rank);
  void result(Round& round);
  std::vector<int> late(const Round& round) const;
  std::vector<ranks::Times> measure(int rank, double& takes);
  double local(int rank, double time) const;
  double global(int rank, double time) const;
  bool decided(int rank) const;
  void check();
  void violation(std::string text);

  State& state(int rank) { return states_[static_cast<std::size_t>(rank)]; }
  const Rank& rank(int r) const { return scenario_.ranks[static_cast<std::size_t>(r)]; }

  Scenario scenario_;
  const int size_;
  Random random_;
  std::priority_queue<Happening> queue_;
  std::uint64_t order_ = 0;
  double now_ = 0;
  std::vector<State> states_;
  std::map<std::uint32_t, Round> rounds_;
  std::map<kiln::Digest, bool> register_;
  std::vector<kiln::RankFailure> told_;  ///< reasons of aborts, by aborting rank
  Outcome outcome_;
};

}  // namespace sim
