// Processes whose kernels communicate, of which one is killed or stopped, or does not come. The
// others must end in time and name it. Ends with "communicating kernels: faults tried N, hangs N".
//   symmetric_faults [--all] [--only TEXT]
// --all: also every shipped kernel with every fault and number of ranks, and more rounds.
// Started by itself as `symmetric_faults --rank FOLDER STORE RANK SIZE SECONDS FAULT AT KERNEL
// ROUNDS` it is one rank. Exit 77: this build cannot run kernels on the host.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/llvm_plugin.hpp"
#include "experts_test.hpp"
#include "folder_communicator.hpp"
#include "silent_candidates.hpp"
#include "symmetric_ring.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

double timeout_factor() {
  const char* text = std::getenv("KILN_TIMEOUT_FACTOR");
  const double factor = text ? std::atof(text) : 1;
  return factor >= 1 ? factor : 1;
}

/// What goes wrong: `kill`, `stop`, or nothing, on the last rank; `at` which point; of which
/// kernel.
struct Fault {
  std::string name, kind, at;
  int ranks;
  std::string kernel = "ring";
  int rounds = 12;
};
const Fault kFaults[] = {
    {"nothing, 2 ranks", "none", "", 2},
    {"nothing, 3 ranks", "none", "", 3},
    {"nothing, 8 ranks", "none", "", 8},
    {"killed before creation", "kill", "join", 3},
    {"killed between creation and first use", "kill", "made", 3},
    {"killed between two launches", "kill", "work", 3},
    {"killed while its kernel runs", "kill", "kernel", 3},
    {"killed while its kernel runs, 8 ranks", "kill", "kernel", 8},
    {"killed before close", "kill", "close", 3},
    {"stopped before creation", "stop", "join", 3},
    {"stopped between creation and first use", "stop", "made", 3},
    {"stopped while its kernel runs", "stop", "kernel", 3},
    {"stopped before close", "stop", "close", 3},
    {"stopped while its kernel runs, 2 ranks", "stop", "kernel", 2},
    {"nothing, all-gather + GEMM, 4 ranks", "none", "", 4, "gather"},
    {"killed within all-gather + GEMM, 8 ranks", "kill", "kernel", 8, "gather"},
    {"stopped within all-gather + GEMM, 4 ranks", "stop", "kernel", 4, "gather"},
    {"nothing, GEMM + reduce-scatter, 8 ranks", "none", "", 8, "scatter"},
    {"killed within GEMM + reduce-scatter, 4 ranks", "kill", "kernel", 4, "scatter"},
    {"killed between two GEMM + reduce-scatter", "kill", "work", 3, "scatter"},
    {"stopped within GEMM + reduce-scatter, 8 ranks", "stop", "kernel", 8, "scatter"},
    {"stopped within GEMM + reduce-scatter, 2 ranks", "stop", "kernel", 2, "scatter"},
    {"nothing, an all-gather of experts, 4 ranks", "none", "", 4, "experts"},
    {"killed within an all-gather of experts, 4 ranks", "kill", "kernel", 4, "experts"},
    {"stopped within an all-gather of experts, 8 ranks", "stop", "kernel", 8, "experts"},
    {"nothing, a combination of experts, 8 ranks", "none", "", 8, "combine"},
    {"killed within a combination of experts, 8 ranks", "kill", "kernel", 8, "combine"},
    {"stopped within a combination of experts, 4 ranks", "stop", "kernel", 4, "combine"},
    {"given up and tuned again, 2 ranks", "none", "", 2, "tune"},
    {"given up and tuned again, 3 ranks", "none", "", 3, "tune"},
};

std::vector<Fault> faults(bool all) {
  std::vector<Fault> faults(std::begin(kFaults), std::end(kFaults));
  if (!all) return faults;
  for (const char* kernel : {"gather", "scatter", "experts", "combine"})
    for (const int ranks : {2, 3, 4, 8}) {
      const auto add = [&](const std::string& kind, const std::string& at, int rounds) {
        faults.push_back({kernel + (" " + kind + " " + at + " ") + std::to_string(ranks), kind, at,
                          ranks, kernel, rounds});
      };
      add("none", "", 100);
      for (const char* kind : {"kill", "stop"})
        for (const char* at : {"join", "made", "work", "kernel", "close"}) add(kind, at, 12);
    }
  for (const int ranks : {2, 3, 4})
    faults.push_back({"tune " + std::to_string(ranks), "none", "", ranks, "tune", 100});
  return faults;
}

// One rank.

RuntimeOptions rank_options(const std::string& store) {
  RuntimeOptions options;
  options.device = "host";
  options.store.directory = store;
  options.mode = Mode::untuned;
  options.isolation = Isolation::off;  // else workers try the rest once a candidate has hung
  return options;
}

/// What ranks run together, round by round.
class Work {
 public:
  virtual ~Work() = default;
  /// `endless`: this rank does not come to the end of its kernel. @returns whether results are
  /// right
  virtual bool run(unsigned round, Deadline deadline, bool endless) = 0;
  /// The flag by which the next rank learns that the kernel has begun.
  virtual unsigned first_flag() const { return 0; }
};

class RingWork final : public Work {
 public:
  RingWork(const Runtime& runtime, const SymmetricMemory& memory)
      : ring_(runtime), memory_(memory) {}
  bool run(unsigned round, Deadline deadline, bool endless) override {
    return ring_.run(memory_, round, deadline, endless ? memory_.rank() : -1);
  }
  unsigned first_flag() const override { return 1; }

 private:
  Ring ring_;
  const SymmetricMemory& memory_;
};

/// A shipped operation, and the same with a rank that is late until it is given up.
template <class Kernel, class Problem>
class Shipped : public Work {
 protected:
  Shipped(const Runtime& runtime, const SymmetricMemory& memory, const Kernel& kernel,
          const Problem& problem)
      : memory_(memory),
        usual_(runtime, memory, kernel),
        endless_(runtime, memory, with_delays(kernel, "~0u")) {
    // Compiled before anybody waits.
    usual_.handle().prepare(problem);
    endless_.handle().prepare(problem);
  }
  const auto& handle(bool endless) const { return (endless ? endless_ : usual_).handle(); }

  const SymmetricMemory& memory_;

 private:
  PeerGemmHandle<Kernel> usual_, endless_;
};

constexpr int kM = 9, kN = 12, kK = 17;

class Gather final : public Shipped<AllGatherGemmKernel<float>, PeerGemmProblem> {
 public:
  Gather(const Runtime& runtime, const SymmetricMemory& memory)
      : Shipped(runtime, memory, all_gather_gemm_kernel<float>(memory),
                {kM, kN, kK, memory.size()}),
        rank_(runtime, memory, data_, true) {}
  bool run(unsigned round, Deadline deadline, bool endless) override {
    return rank_.run(static_cast<int>(round), deadline,
                     [&](float* c, const float* a, const float* b) {
                       handle(endless)({}, c, a, b, static_cast<const float*>(memory_.data()), a,
                                       memory_.peers(), kM, kN, kK, memory_.size());
                     });
  }

 private:
  const PeerData<float> data_{kM, kN, kK};
  PeerRank<float> rank_;
};

class Scatter final : public Shipped<ReduceScatterGemmKernel<float>, PeerGemmProblem> {
 public:
  Scatter(const Runtime& runtime, const SymmetricMemory& memory)
      : Shipped(runtime, memory, reduce_scatter_gemm_kernel<float>(memory),
                {kM, kN, kK, memory.size()}),
        data_(kM * memory.size(), kN, kK),
        rank_(runtime, memory, data_, false) {}
  bool run(unsigned round, Deadline deadline, bool endless) override {
    return rank_.run(static_cast<int>(round), deadline,
                     [&](float* c, const float* a, const float* b) {
                       handle(endless)({}, c, a, b, static_cast<float*>(memory_.data()),
                                       memory_.peers(), kM, kN, kK, memory_.size());
                     });
  }

 private:
  const PeerData<float> data_;
  PeerRank<float> rank_;
};

ExpertsProblem of_experts(int ranks) { return {kM, kN, kK, 4, 2, ranks}; }

class Experts final : public Shipped<ExpertsGatherKernel<float>, ExpertsProblem> {
 public:
  Experts(const Runtime& runtime, const SymmetricMemory& memory)
      : Shipped(runtime, memory, experts_gather_kernel<float>(memory), of_experts(memory.size())),
        data_(of_experts(memory.size())),
        rank_(runtime, memory, data_) {}
  bool run(unsigned round, Deadline deadline, bool endless) override {
    const ExpertsProblem& p = data_.problem();
    return rank_.gather(
        static_cast<int>(round), deadline,
        [&](float* c, const float* a, const float* b, const int* tokens, const int* ends) {
          handle(endless)({}, c, a, b, static_cast<const float*>(memory_.data()), tokens, ends,
                          memory_.peers(), p.m, p.n, p.k, p.groups, p.top, p.ranks);
        });
  }

 private:
  const ExpertsData<float> data_;
  ExpertsRank<float> rank_;
};

class Combine final : public Shipped<ExpertsCombineKernel<float>, ExpertsProblem> {
 public:
  Combine(const Runtime& runtime, const SymmetricMemory& memory)
      : Shipped(runtime, memory, experts_combine_kernel<float>(memory), of_experts(memory.size())),
        data_(of_experts(memory.size())),
        rank_(runtime, memory, data_) {}
  bool run(unsigned round, Deadline deadline, bool endless) override {
    const ExpertsProblem& p = data_.problem();
    return rank_.combine(static_cast<int>(round), deadline,
                         [&](float* c, const float* a, const float* b, const int* ends,
                             const int* places, const float* weights) {
                           handle(endless)({}, c, a, b, ends, places, weights, memory_.peers(), p.m,
                                           p.n, p.k, p.groups, p.top, p.ranks);
                         });
  }

 private:
  const ExpertsData<float> data_;
  ExpertsRank<float> rank_;
};

class Tuning final : public Work {
 public:
  Tuning(const Runtime& runtime, const SymmetricMemory& memory, std::shared_ptr<Communicator> ranks)
      : rounds_(runtime, memory, std::move(ranks)) {}
  bool run(unsigned round, Deadline, bool) override { return rounds_.run(static_cast<int>(round)); }

 private:
  GivenUpRounds rounds_;
};

std::unique_ptr<Work> work_of(const std::string& kernel, const Runtime& runtime,
                              const SymmetricMemory& memory,
                              const std::shared_ptr<Communicator>& ranks) {
  if (kernel == "gather") return std::make_unique<Gather>(runtime, memory);
  if (kernel == "scatter") return std::make_unique<Scatter>(runtime, memory);
  if (kernel == "experts") return std::make_unique<Experts>(runtime, memory);
  if (kernel == "combine") return std::make_unique<Combine>(runtime, memory);
  if (kernel == "tune") return std::make_unique<Tuning>(runtime, memory, ranks);
  return std::make_unique<RingWork>(runtime, memory);
}

SymmetricOptions memory_for(const std::string& kernel, int ranks, double seconds) {
  SymmetricOptions options = Ring::options(ranks, seconds);
  if (kernel == "gather")
    options = {all_gather_bytes<float>(kM, kK, ranks), kPeerGemmFlags, seconds};
  else if (kernel == "scatter")
    options = {reduce_scatter_bytes<float>(kM, kN, ranks), kPeerGemmFlags, seconds};
  else if (kernel == "tune")
    options = {64, 2, seconds};
  else if (kernel == "experts" || kernel == "combine")
    options = {expert_bytes<float>(of_experts(ranks)), kExpertFlags, seconds};
  return options;
}

/// Does something as soon as `ready`, unless it is gone before.
class Striker {
 public:
  ~Striker() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  template <class Ready, class Strike>
  void start(Ready ready, Strike strike) {
    thread_ = std::thread([this, ready, strike] {
      while (!over_ && !ready()) std::this_thread::yield();
      if (!over_) strike();
    });
  }

 private:
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

/// @returns what it has to say: "right", or why it ended before
std::string work(const fs::path& folder, const std::string& store, int rank, int size,
                 double seconds, const std::string& fault, const std::string& at,
                 const std::string& kernel, unsigned rounds) {
  const bool odd = fault != "none" && rank == size - 1;
  const auto strike = [&](const char* point) {
    if (odd && at == point) ::raise(fault == "kill" ? SIGKILL : SIGSTOP);
  };
  const Runtime runtime(rank_options(store));
  // All have started when the seconds begin to count.
  const auto ranks = std::make_shared<FolderCommunicator>(folder, rank, size);
  if (auto failure = ranks->gather({}, {}, deadline_in(120 * timeout_factor())))
    return failure->describe();
  strike("join");
  SymmetricMemory memory(runtime, ranks, memory_for(kernel, size, seconds));
  const std::unique_ptr<Work> work = work_of(kernel, runtime, memory, ranks);
  strike("made");
  for (unsigned epoch = 1; epoch <= rounds; ++epoch) {
    if (epoch == rounds / 2) strike("work");
    const bool in_kernel = odd && at == "kernel" && epoch == rounds / 2;
    Striker striker;
    if (in_kernel) {
      // The kernel's first signal, which lies in memory that outlives the striker.
      const Peers& peers = *memory.peers();
      const unsigned* const first = peers.peer[(rank + 1) % size].flags +
                                    static_cast<unsigned>(rank) * peers.flags + work->first_flag();
      striker.start([=] { return epoch_reached(__atomic_load_n(first, __ATOMIC_ACQUIRE), epoch); },
                    [&] { strike("kernel"); });
    }
    const bool right = work->run(epoch, deadline_in(seconds), in_kernel);
    if (!right) return "wrong in epoch " + std::to_string(epoch);
  }
  strike("close");
  memory.close();
  return "right";
}

int rank_main(char** a) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string said;
  try {
    said = work(a[2], a[3], std::atoi(a[4]), std::atoi(a[5]), std::atof(a[6]), a[7], a[8], a[9],
                static_cast<unsigned>(std::atoi(a[10])));
  } catch (const std::exception& error) {
    said = error.what();
  }
  std::ofstream(std::string(a[2]) + "/said." + a[4]) << said;
  return 0;
}

// The job.

/// -1: it could not be started.
pid_t start(const char* program, const fs::path& folder, const std::string& store,
            const Fault& fault, int rank, double seconds) {
  const std::string words[] = {program,
                               "--rank",
                               folder.string(),
                               store,
                               std::to_string(rank),
                               std::to_string(fault.ranks),
                               std::to_string(seconds),
                               fault.kind,
                               fault.at,
                               fault.kernel,
                               std::to_string(fault.rounds)};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0)
    return -1;
  return pid;
}

/// @pre pid > 0: others stand for many processes
void end(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

struct Outcome {
  int hangs = 0;
  std::string wrong;  ///< empty: as it must be
};

Outcome run(const char* program, const Fault& fault, const std::string& store, double seconds) {
  const TemporaryDirectory folder;
  const int last = fault.ranks - 1;
  const std::string kind = fault.kind;
  std::map<int, pid_t> living;
  Outcome outcome;
  for (int r = 0; r < fault.ranks && outcome.wrong.empty(); ++r) {
    const pid_t pid = start(program, folder.path(), store, fault, r, seconds);
    if (pid > 0)
      living[r] = pid;
    else
      outcome.wrong = "rank " + std::to_string(r) + " could not be started";
  }
  if (!outcome.wrong.empty()) {
    for (const auto& [rank, pid] : living) end(pid);
    return outcome;
  }
  const auto limit =
      Clock::now() + std::chrono::duration<double>(130 * timeout_factor() + 4 * seconds);
  bool continued = false;
  while (!living.empty() && Clock::now() < limit) {
    std::erase_if(living,
                  [](const auto& one) { return waitpid(one.second, nullptr, WNOHANG) != 0; });
    // A stopped rank goes on when the others have ended, which must not need it to.
    if (kind == "stop" && living.size() == 1 && living.count(last) && !continued) {
      kill(living[last], SIGCONT);
      continued = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (const auto& [rank, pid] : living) {
    ++outcome.hangs;
    outcome.wrong += "rank " + std::to_string(rank) + " hangs; ";
    end(pid);
  }
  const std::string odd = "rank " + std::to_string(last);
  int named = 0;
  for (int r = 0; r < fault.ranks; ++r) {
    std::ifstream file(folder.path() / ("said." + std::to_string(r)));
    const std::string said{std::istreambuf_iterator<char>(file), {}};
    const bool dead = kind == "kill" && r == last;
    const bool right = kind == "none" ? said == "right"
                       : dead         ? said.empty()
                       : r == last    ? !said.empty() && said != "right"
                                      : said.find(odd) != std::string::npos;
    // A rank that waits for a waiting neighbour may hear of that one alone, when all are slow.
    const bool heard = kind != "none" && r != last && said.find(" gave up") != std::string::npos;
    named += r != last && right;
    if (!right && !heard) outcome.wrong += "rank " + std::to_string(r) + ": '" + said + "'; ";
  }
  if (kind != "none" && named == 0) outcome.wrong += "nobody names " + odd;
  return outcome;
}

int job(const char* program, bool all, const std::string& only) {
  const TemporaryDirectory store;
  {
    const Runtime runtime(rank_options(store.path().string()));
    for (const char* kernel : {"ring", "gather", "scatter", "experts", "combine"}) {
      const std::shared_ptr<Communicator> alone = std::move(thread_communicators(1).front());
      SymmetricMemory memory(runtime, alone, memory_for(kernel, 1, 60));
      work_of(kernel, runtime, memory, alone);  // the ranks find it in the store
      memory.close();
    }
  }
  int tried = 0, hangs = 0, failed = 0;
  for (const Fault& fault : faults(all)) {
    if (fault.name.find(only) == std::string::npos) continue;
    // There is more time on machines so slow that other ranks seem late, too.
    Outcome outcome;
    double seconds = fault.kind == "none" ? 120 * timeout_factor() : 0.5;
    for (int attempt = 0; attempt < 3; ++attempt, seconds *= 8) {
      outcome = run(program, fault, store.path().string(), seconds);
      if (outcome.wrong.empty() || outcome.hangs) break;
    }
    ++tried;
    hangs += outcome.hangs > 0;
    failed += !outcome.wrong.empty();
    if (!outcome.wrong.empty()) std::printf("%s: %s\n", fault.name.c_str(), outcome.wrong.c_str());
  }
  for (const auto& entry : fs::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().find("kiln-symmetric") != std::string::npos)
      ++failed, std::printf("%s was left behind\n", entry.path().c_str());
  std::printf("communicating kernels: faults tried %d, hangs %d\n", tried, hangs);
  return tried == 0 || failed || hangs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 11 && std::string(argv[1]) == "--rank") return rank_main(argv);
  if (const std::string obstacle = codegen::host_compiler_obstacle(); !obstacle.empty()) {
    std::printf("skipped: %s\n", obstacle.c_str());
    return 77;
  }
  bool all = false;
  std::string only;
  for (int i = 1; i < argc; ++i)
    if (std::string(argv[i]) == "--all")
      all = true;
    else if (std::string(argv[i]) == "--only" && i + 1 < argc)
      only = argv[++i];
  return job(argv[0], all, only);
}
