// What one seed makes of a job: its ranks, what they have cached, the network, and what goes wrong.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "runtime/ranks/steps.hpp"

namespace sim {

namespace ranks = kiln::runtime::ranks;

/// The same numbers on every platform, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  double uniform();  ///< [0, 1)
  double uniform(double low, double high);
  int below(int count);  ///< 0 .. count - 1
  bool chance(double p) { return uniform() < p; }
  double exponential(double mean);

 private:
  std::uint64_t state_;
};

struct Network {
  double delay = 1e-3, jitter = 1e-3;   ///< seconds: least, and mean of what is added
  double spike = 0, spike_seconds = 0;  ///< chance and mean length of a long delay
  double loss = 0;                      ///< of one attempt; each retry waits twice as long
  int attempts = 8;                     ///< then the link is given up
  bool tree = false;                    ///< log2(n) rounds, else everyone to everyone
  bool keeps_deadlines = true;          ///< else only the machine's own patience ends a wait
  bool tells_aborts = true;             ///< else others wait for their deadlines
  bool names_late = true;               ///< else a timeout names nobody
  bool equal_sums = true;               ///< else a mean differs in its last bit between ranks
};

/// What befalls one rank.
struct Fault {
  enum class Kind { none, crash, stall };
  Kind kind = Kind::none;
  std::string phase;   ///< upon entering it,
  int sends = 0;       ///< after this many more messages are sent
  double seconds = 0;  ///< stall: for so long
};

struct Rank {
  double start = 0;              ///< when it enters
  double offset = 0, drift = 0;  ///< of its clock
  double slowness = 1;           ///< of its work
  bool overruns = false;         ///< finishes what it compiles or times, whatever the time
  double stops_at = std::numeric_limits<double>::infinity();  ///< times nothing from then on
  Fault fault;
  std::string trouble;                    ///< not empty: its device cannot do any work
  std::vector<std::vector<float>> times;  ///< what it would measure; infinite: the candidate fails
  std::vector<std::vector<bool>> builds;  ///< whether the candidate can be built
  ranks::AgreementInput input;
};

/// Ways to break the protocol at its edges. Each must be noticed.
enum class Sabotage {
  none,
  hit_skips_exchange,  ///< a rank that has everything cached takes no part
  saves_early,         ///< saved when the plans were seen to be equal
  no_confirmation,     ///< the plan is taken then, too
  lying_register,      ///< every rank is told what it proposed
  no_deadlines,        ///< no rank ever loses patience
  forgets_abort,       ///< a rank that gives up keeps joining in exchanges
  blind_vouching       ///< whatever was chosen is said to be built
};

struct Scenario {
  std::uint64_t seed = 0;
  Network network;
  std::vector<Rank> ranks;
  bool register_reachable = true;  ///< else one rank cannot reach it
  int out_of_reach = -1;
  bool odd_rank = false;  ///< one rank asks for something else
  int odd = -1;
  bool faulty = false;  ///< crash or stall
  Sabotage sabotage = Sabotage::none;
};

struct Limits {
  int most_ranks = 4096;
};

Scenario draw(std::uint64_t seed, const Limits& limits = {});

}  // namespace sim
