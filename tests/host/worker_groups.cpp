// Ranks that tune kernels which communicate, each candidate in the workers of all ranks: what ends
// a worker, or makes the others wait for ever, costs a candidate on all ranks, and nothing else.
// Where there can be no workers, candidates run in the ranks' own processes; where workers end, or
// do not start, they do not. Ranks are threads, or processes; on the host, or on the GPUs.
// Ends with "candidates of ranks: faults tried N, jobs lost N, hangs N".
//   worker_groups [--device host|cuda] [--only TEXT]
// Started by itself as `worker_groups --rank FOLDER CASE RANK SIZE DEVICE` it is one rank. Exit 77:
// this build cannot run kernels on the host, or there are not two GPUs.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/llvm_plugin.hpp"
#include "folder_communicator.hpp"
#include "kiln/communicators.hpp"
#include "meeting.hpp"
#include "odd_device.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/worker/isolation.hpp"
#include "temporary_directory.hpp"
#include "trouble.hpp"

using namespace kiln;
using namespace kiln::test;
namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

constexpr double kCandidateSeconds = 2;
/// Candidates that ended workers through no fault of their own; then there are no workers any more.
constexpr int kMostExcused = 50;

bool on_gpus = false;

double timeout_factor() {
  const char* text = std::getenv("KILN_TIMEOUT_FACTOR");
  return std::max(1.0, text ? std::atof(text) : 1);
}

/// Which of a rank's workers live, by their starts; the others end before they say anything.
struct Lives {
  int first = 1, most = 1000;
};

/// What is tried: which modes, and with what options.
struct Case {
  const char* name;
  std::vector<std::int64_t> modes;  ///< besides slow and fast
  int odd_isolation = -1;           ///< of the last rank; -1: as the others
  bool stranger = false;            ///< the kernel takes other memory of the program
  bool killed = false;              ///< the last rank, while the workers run
  bool missing = false;             ///< the last rank's installation has no worker program
  std::string odd{};                ///< what the last rank's workers do (odd_device.hpp)
  Lives lives{};                    ///< of the last rank
  bool edited = false;              ///< the last rank's source, once a candidate was measured

  /// The last rank's installation is not this program's.
  bool of_installation() const { return missing || !odd.empty() || lives.first > 1 || !lasting(); }
  /// Something is wrong with the last rank's process.
  bool of_process() const { return killed || of_installation(); }
  /// Workers can be replaced as often as necessary.
  bool lasting() const { return lives.most == Lives{}.most; }
  bool many() const { return !modes.empty() && modes.back() >= kUneasy; }
};
std::vector<Case> cases() {
  std::vector<Case> all{{"nothing", {}}};
  for (const Fault& fault : kFaults) all.push_back({"one fault", {fault.mode}});
  all.push_back({"all faults", {null, exits, loops, silent, wrong, stray}});
  all.push_back({"off on one rank", {silent}, static_cast<int>(Isolation::off)});
  all.push_back({"memory of the program", {silent}, -1, true});
  all.push_back({"a rank is killed", {loops}, -1, false, true});
  all.push_back({.name = "no worker program", .modes = {silent}, .missing = true});
  all.push_back({.name = "workers are not reached", .modes = {silent}, .odd = "no_peers"});
  all.push_back({.name = "a worker ends early", .modes = {null, wrong}, .odd = "ends_early"});
  all.push_back({.name = "a worker is late for each sample", .modes = {}, .odd = "late"});
  all.push_back({.name = "no worker starts", .modes = {null}, .lives = {1, 0}});
  all.push_back({.name = "no second worker", .modes = {null, wrong}, .lives = {1, 1}});
  all.push_back({.name = "the first workers end", .modes = {null, wrong}, .lives = {4}});
  all.push_back({.name = "a source is edited", .modes = {null, wrong}, .edited = true});
  Case uneasy{.name = "workers end again and again", .modes = {}};
  for (int i = 0; i < kMostExcused + 2; ++i) uneasy.modes.push_back(kUneasy + i);
  all.push_back(uneasy);
  return all;
}

/// Collects what is wrong on a rank.
struct Wrong {
  std::string text;
  void unless(bool right, const std::string& what) {
    if (!right) text += what + "; ";
  }
};

/// When its worker is there, this process ends; it says which one that was.
void end_with_worker(const fs::path& note) {
  std::thread([note] {
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      if (const auto workers = trouble::children(); !workers.empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        std::ofstream(note) << workers.front() << std::flush;
        ::raise(SIGKILL);
      }
  }).detach();
}

/// The expected outcome of a candidate of a case. `says`: in its reason
struct Expected {
  CandidateStatus status = CandidateStatus::measured;
  std::string says{};
};
Expected expected(const Case& c, std::int64_t mode, int size) {
  const std::string rank = ": rank " + std::to_string(size - 1);
  const auto fault = std::ranges::find(kFaults, mode, [](const Fault& one) { return one.mode; });
  const bool faulty = fault != kFaults.end();
  if (c.lives.most == 0) return {CandidateStatus::not_tried, "workers cannot be started" + rank};
  if (c.lives.most == 1 && faulty)
    return {CandidateStatus::not_tried, "workers cannot be started any more" + rank};
  // The first one finds its workers at ease, and each of the others ends them once.
  if (mode >= kUneasy + kMostExcused)
    return {CandidateStatus::not_tried,
            "workers ended 50 times through no fault of the candidates at work; the last one of" +
                rank.substr(1)};
  if (faulty) return {fault->status, on_gpus ? fault->says_on_gpu : fault->says};
  return {};
}

/// How often a kernel has been launched on this rank's memory. Collective.
int launches_on(const Runtime& runtime, const SymmetricMemory& memory) {
  const DynamicTuned kernel = runtime.tuned(meeting(memory, {tell}));
  const Array<int> out = runtime.array<int>(1);
  memory.within(deadline_in(60 * timeout_factor()), [&] {
    kernel({}, {1}, out.data(), memory.peers(), static_cast<int*>(memory.data()),
           static_cast<const int*>(memory.data(0)));
    runtime.synchronize();
  });
  return out.download().front() - 1;
}

/// @returns what is wrong, then what must be equal on all ranks
std::pair<std::string, std::string> work(const Case& c, const std::shared_ptr<Communicator>& ranks,
                                         const fs::path& store) {
  const int rank = ranks->rank(), size = ranks->size();
  const bool odd = rank == size - 1;
  RuntimeOptions o;
  o.device = on_gpus ? "cuda:" + std::to_string(rank) : "host";
  o.store.directory = store;
  o.mode = kiln::Mode::untuned;
  o.compile_processes = 0;
  o.isolation =
      odd && c.odd_isolation >= 0 ? static_cast<Isolation>(c.odd_isolation) : Isolation::always;
  // Candidates cannot run in workers.
  const bool here = c.odd_isolation >= 0 || c.stranger || c.missing || c.odd == "no_peers";
  const bool untried = c.lives.most == 0;
  TuneOptions tuning;
  tuning.ranks = ranks;
  tuning.candidate_seconds = kCandidateSeconds;
  tuning.together.lockstep = true;
  tuning.together.finalists = 0;  // faults are looked for; more ranks spin than there are cores
  tuning.together.step_seconds = 20 * timeout_factor();
  if (c.killed) tuning.together.step_seconds = 3;
  std::vector<std::int64_t> modes{slow, fast};
  modes.insert(modes.end(), c.modes.begin(), c.modes.end());
  Wrong wrongs;
  std::string same;
  const auto look_at = [&](const TuneResult& result) {
    for (const Candidate& candidate : result.candidates) {
      const std::int64_t mode = candidate.config.front();
      const auto [status, says] = expected(c, mode, size);
      const std::string of = "mode " + std::to_string(mode) + " is " + to_string(candidate.status) +
                             ": " + candidate.reason;
      wrongs.unless(candidate.status == status, of);
      if (!here) wrongs.unless(candidate.reason.find(says) != std::string::npos, of);
      if (!here) same += of + "\n";
      wrongs.unless(c.odd != "late" || mode != fast || candidate.seconds < kLate / 2, "late");
    }
    // On a busy machine, the luckiest of many uneasy candidates is faster than the fast one.
    const std::int64_t winner = result.winner().config.front();
    wrongs.unless(winner == (untried ? slow : fast) || (c.many() && winner >= kUneasy), "winner");
    wrongs.unless(
        result.agreed && result.agreed->outcome ==
                             (untried ? RankReport::Outcome::defaults : RankReport::Outcome::plan),
        "another outcome");
    same += result.agreed->plan_digest + "\n";
    const auto warns_once = [&](bool wanted, const std::string& of) {
      const auto count = std::ranges::count_if(result.warnings, [&](const std::string& text) {
        return text.find(of) != std::string::npos;
      });
      wrongs.unless(count == (wanted ? 1 : 0), std::to_string(count) + " warnings: " + of);
    };
    warns_once(here, "candidates run in this process, not in workers: ");
    warns_once(!c.lasting() || c.many(), "candidates are not tried: workers ");
    if (c.odd == "no_peers")
      warns_once(true, "rank " + std::to_string(size - 1) + ": handles of other processes are not");
  };
  const auto run = [&](const Runtime& runtime, bool more) {
    SymmetricMemory memory(runtime, ranks,
                           {.bytes = 64, .flags = 2, .seconds = 60 * timeout_factor()});
    std::vector<std::int64_t> all = modes;
    if (more) all.push_back(100);
    const Array<int> stranger = runtime.array<int>(1);
    KernelDefinition definition = meeting(memory, all, c.stranger ? stranger.data() : nullptr);
    if (c.edited) edit_later(definition, store.string() + ".cuh", odd);
    const DynamicTuned kernel = runtime.tuned(definition);
    int guarded = 0;
    tuning.together.guard = [&, guard = memory.guard(kCandidateSeconds)](const auto& launches) {
      ++guarded;
      guard(launches);
    };
    const auto begin = Clock::now();
    const TuneResult result = kernel.tune({1}, tuning);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (c.killed) {
      wrongs.unless(result.agreed->outcome == RankReport::Outcome::defaults, "a plan");
      wrongs.unless(seconds < 60 * timeout_factor(), "it took " + std::to_string(seconds) + " s");
      return;
    }
    if (c.edited) {
      const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
      };
      int refused = 0;
      for (const Candidate& candidate : result.candidates)
        refused += has(candidate.reason, "was edited") && !has(candidate.reason, "the defaults");
      wrongs.unless(refused == (odd ? 0 : 1), std::to_string(refused) + " met the edit");
      wrongs.unless(has(result.agreed->why, "was edited"), "the edit is no reason");
      same += "edited";
      return memory.close();
    }
    if (more) {  // what is on record is not tried again
      wrongs.unless(result.candidates.size() == all.size(), "another space");
      for (const Candidate& candidate : result.candidates)
        if (candidate.config.front() == 100)
          wrongs.unless(candidate.status == CandidateStatus::measured, "the new one was not tried");
      wrongs.unless(seconds < kCandidateSeconds + 10 * timeout_factor(), "hung again");
      wrongs.unless(launches_on(runtime, memory) == 0, "a candidate ran here after a fault");
      memory.close();
      return;
    }
    look_at(result);
    wrongs.unless((guarded > 0) == here, "candidates ran in another place");
    if (!here)
      wrongs.unless(launches_on(runtime, memory) == 0, "a candidate used the program's memory");
    // The program's own memory and communicator are as they were.
    const Array<int> out = runtime.array<int>(1);
    memory.within(deadline_in(60 * timeout_factor()), [&] {
      kernel({}, {1}, out.data(), memory.peers(), static_cast<int*>(memory.data()),
             static_cast<const int*>(c.stranger ? stranger.data() : memory.data(0)));
      runtime.synchronize();
    });
    wrongs.unless(out.download().front() == 7, "the launch was wrong");
    memory.close();
  };
  {
    const Runtime runtime(o);
    if (c.killed && odd) end_with_worker(store.string() + ".worker");
    run(runtime, false);
  }
  if (!c.modes.empty() && !here && !c.of_process() && !c.many() && !c.edited) {
    o.isolation = Isolation::after_fault;
    const Runtime runtime(o);
    const bool faulted = std::ranges::any_of(c.modes, [](std::int64_t m) { return m != wrong; });
    if (faulted) run(runtime, true);
  }
  return {wrongs.text, same};
}

struct Outcome {
  std::string wrong;
  bool hangs = false, lost = false;
};

void compare(Outcome& outcome, const std::vector<std::pair<std::string, std::string>>& said) {
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (!said[r].first.empty()) outcome.wrong += "rank " + std::to_string(r) + ": " + said[r].first;
    if (said[r].second != said[0].second)
      outcome.wrong +=
          "rank " + std::to_string(r) + " has\n" + said[r].second + "but rank 0\n" + said[0].second;
  }
}

Outcome as_threads(const Case& c, int size) {
  const TemporaryDirectory stores;
  Outcome outcome;
  std::vector<std::pair<std::string, std::string>> said(static_cast<std::size_t>(size));
  auto ends = thread_communicators(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r, end = std::shared_ptr(std::move(ends[std::size_t(r)]))] {
      try {
        said[std::size_t(r)] = work(c, end, stores.path() / std::to_string(r));
      } catch (const std::exception& error) {
        said[std::size_t(r)].first = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  compare(outcome, said);
  if (!trouble::children().empty()) outcome.wrong += "a worker was left behind; ";
  return outcome;
}

fs::path library() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto begin = line.find('/');
        begin != std::string::npos && line.ends_with("/libkiln_internal.so"))
      return line.substr(begin);
  throw std::runtime_error("Kiln's library is not mapped");
}

fs::path odd_worker() { return fs::read_symlink("/proc/self/exe").parent_path() / "odd_worker"; }

/// The worker program that a case's last rank is to have.
void install_worker(const Case& c, const fs::path& folder) {
  fs::create_directories(folder);
  if (c.missing) return;
  const fs::path starts = folder / "starts", program = folder / "kiln-worker";
  std::ofstream script(program);
  script << "#!/bin/sh\necho >>" << starts << "\nstarts=$(wc -l <" << starts << ")\n";
  script << "if [ $starts -lt " << c.lives.first << " ] || [ $starts -gt " << c.lives.most
         << " ]; then kill -KILL $$; fi\n";
  if (!c.odd.empty()) {
    std::ofstream(folder / c.odd);
    script << "export KILN_TEST_ODD=" << folder << "\nexec " << odd_worker() << " \"$@\"\n";
  } else {
    script << "exec " << runtime::worker_options({}).executable << " \"$@\"\n";
  }
  script.close();
  fs::permissions(program, fs::perms::owner_all);
}

/// Kiln's library in a folder of its own, whose installation has other programs.
void install_with(const fs::path& programs, const fs::path& folder) {
  const fs::path from = library(), to = folder / from.filename();
  fs::create_directories(folder);
  std::error_code other_filesystem;
  fs::create_hard_link(from, to, other_filesystem);
  if (other_filesystem) fs::copy_file(from, to);
  std::ifstream note(from.parent_path() / "kiln-build-tree");
  std::ofstream copy(folder / "kiln-build-tree");
  for (std::string key, value; note >> key && std::getline(note >> std::ws, value);)
    if (key == "plugins")
      copy << key << ' ' << (from.parent_path() / value).string() << '\n';
    else
      copy << key << ' ' << (key == "programs" ? programs.string() : value) << '\n';
}

pid_t start(const Case& c, const fs::path& folder, std::size_t index, int rank, int size) {
  std::vector<char*> variables;
  for (char** variable = environ; *variable; ++variable) variables.push_back(*variable);
  std::string libraries = "LD_LIBRARY_PATH=" + (folder / "lib").string();
  if (c.of_installation() && rank == size - 1) {
    install_worker(c, folder / "programs");
    install_with(folder / "programs", folder / "lib");
    if (const char* others = std::getenv("LD_LIBRARY_PATH")) libraries += ":" + std::string(others);
    std::erase_if(variables,
                  [](std::string_view one) { return one.starts_with("LD_LIBRARY_PATH="); });
    variables.push_back(libraries.data());
  }
  variables.push_back(nullptr);
  const std::string words[] = {"worker_groups",          "--rank",
                               folder.string(),          std::to_string(index),
                               std::to_string(rank),     std::to_string(size),
                               on_gpus ? "cuda" : "host"};
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int failed =
      posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments.data(), variables.data());
  return failed ? -1 : pid;
}

bool is_gone(pid_t id) { return ::kill(id, 0) != 0 || trouble::is_zombie(id); }

Outcome as_processes(const Case& c, std::size_t index, int size) {
  const TemporaryDirectory folder;
  Outcome outcome;
  std::map<int, pid_t> living;
  for (int r = 0; r < size; ++r)
    if (const pid_t pid = start(c, folder.path(), index, r, size); pid > 0) living[r] = pid;
  outcome.lost = static_cast<int>(living.size()) != size;
  const auto limit = Clock::now() + std::chrono::duration<double>(120 * timeout_factor());
  while (!living.empty() && Clock::now() < limit) {
    std::erase_if(living, [&](const auto& one) {
      int status = 0;
      if (::waitpid(one.second, &status, WNOHANG) == 0) return false;
      const bool meant = c.killed && one.first == size - 1;
      outcome.lost = outcome.lost || (!meant && (!WIFEXITED(status) || WEXITSTATUS(status) != 0));
      return true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  outcome.hangs = !living.empty();
  for (const auto& [rank, pid] : living) {
    outcome.wrong += "rank " + std::to_string(rank) + " hangs; ";
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  std::vector<std::pair<std::string, std::string>> said;
  for (int r = 0; r < size - (c.killed ? 1 : 0); ++r)
    said.emplace_back(read_text(folder.path() / ("wrong." + std::to_string(r))),
                      read_text(folder.path() / ("same." + std::to_string(r))));
  compare(outcome, said);
  if (c.killed) {
    const auto worker = static_cast<pid_t>(std::atol(
        read_text(folder.path() / ("store." + std::to_string(size - 1) + ".worker")).c_str()));
    for (int i = 0; i < 1000 && worker > 0 && !is_gone(worker); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (worker <= 0 || !is_gone(worker)) outcome.wrong += "the worker of the killed rank lives; ";
  } else if (said.front().second.empty()) {
    outcome.wrong += "rank 0 said nothing; ";
  }
  return outcome;
}

int rank_main(char** a) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const fs::path folder = a[2];
  const Case c = cases().at(static_cast<std::size_t>(std::atoi(a[3])));
  std::string wrong, same;
  try {
    const auto ranks =
        std::make_shared<FolderCommunicator>(folder, std::atoi(a[4]), std::atoi(a[5]));
    // All have started when the seconds begin to count.
    if (auto failure = ranks->gather({}, {}, deadline_in(60 * timeout_factor())))
      throw EnvironmentError(failure->describe());
    const auto store = folder / (std::string("store.") + a[4]);
    std::tie(wrong, same) = work(c, ranks, store);
    const std::ptrdiff_t descriptors = trouble::open_descriptors();
    // The driver has many of its own.
    if (!on_gpus && descriptors > 12)
      wrong += std::to_string(descriptors) + " descriptors are open; ";
    if (!trouble::children().empty()) wrong += "a worker was left behind; ";
  } catch (const std::exception& error) {
    wrong += error.what();
  }
  std::ofstream(folder / (std::string("wrong.") + a[4])) << wrong;
  std::ofstream(folder / (std::string("same.") + a[4])) << same;
  return 0;
}

int job(const std::string& only, int gpus) {
  int tried = 0, hangs = 0, lost = 0, failed = 0;
  const std::vector<Case> all = cases();
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const int size : on_gpus ? std::vector{std::min(gpus, 8)} : std::vector{2, 4})
      for (const bool processes : {false, true}) {
        const Case& c = all[i];
        std::string name = std::string(c.name) + " (" + std::to_string(i) + "), " +
                           std::to_string(size) + (processes ? " processes" : " threads");
        if (name.find(only) == std::string::npos || (c.of_process() && !processes)) continue;
        if (on_gpus && (!c.odd.empty() || c.many())) continue;  // what they need is the host's
        if (c.many() && (size != 2 || processes)) continue;     // it takes long
        const Outcome outcome = processes ? as_processes(c, i, size) : as_threads(c, size);
        ++tried;
        hangs += outcome.hangs;
        lost += outcome.lost;
        failed += !outcome.wrong.empty();
        if (!outcome.wrong.empty()) std::printf("%s: %s\n", name.c_str(), outcome.wrong.c_str());
        std::fflush(stdout);
      }
  std::printf("candidates of ranks: faults tried %d, jobs lost %d, hangs %d\n", tried, lost, hangs);
  return tried == 0 || failed || hangs || lost;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 6 && words[0] == "--rank") {
    on_gpus = words[5] == "cuda";
    return rank_main(argv);
  }
  std::map<std::string, std::string> options;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) options[words[i]] = words[i + 1];
  on_gpus = options["--device"] == "cuda";
  const runtime::CudaProbe cuda = on_gpus ? runtime::probe_cuda() : runtime::CudaProbe{};
  const int gpus = cuda.devices;
  std::string missing = on_gpus ? cuda.reason : codegen::host_compiler_obstacle();
  if (gpus == 1) missing = "two GPUs are needed, one is here";
  if (!missing.empty()) return std::printf("skipped: %s\n", missing.c_str()), 77;
  const fs::path worker = runtime::worker_options({}).executable;
  for (const fs::path& program : {worker, on_gpus ? worker : odd_worker()})
    if (!fs::exists(program))  // then all would run in the ranks' own processes, and end them
      return std::fprintf(stderr, "%s is not built\n", program.c_str()), 1;
  return job(options["--only"], gpus);
}
