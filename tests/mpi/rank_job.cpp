// One rank of a job over MPI that agrees on made-up times, and does to itself what it is told to:
//   mpirun -n 4 rank_job FOLDER name=value...
// fault=kill|stop|slow|fail|odd-build|odd-arch|odd-list|corrupt|stale|full|refuse  rank=R  at=CALL
// Each rank writes FOLDER/R.txt: `plan DIGEST` or `defaults REASON`, and the seconds that it took.
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include <unistd.h>

#include "kiln/communicators.hpp"
#include "kiln/error.hpp"
#include "runtime/ranks/drive.hpp"

using namespace kiln::runtime::ranks;

namespace {

std::map<std::string, std::string> options;
std::string option(const std::string& name, const std::string& otherwise = "") {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : found->second;
}

void befall() {
  if (option("fault") == "kill") ::kill(::getpid(), SIGKILL);
  if (option("fault") == "stop") ::kill(::getpid(), SIGSTOP);  // until someone lets it go on
}

/// Dies or stops just before call number `at`.
class Fated : public kiln::Communicator {
 public:
  Fated(kiln::Communicator& base, int at) : base_(base), at_(at) {}
  int rank() const noexcept override { return base_.rank(); }
  int size() const noexcept override { return base_.size(); }
  Failure gather(std::span<const std::byte> a, std::span<std::byte> b, kiln::Deadline d) override {
    count();
    return base_.gather(a, b, d);
  }
  Failure reduce(std::span<float> v, kiln::Reduction op, kiln::Deadline d) override {
    count();
    return base_.reduce(v, op, d);
  }
  Failure broadcast(std::span<std::byte> b, int root, kiln::Deadline d) override {
    count();
    return base_.broadcast(b, root, d);
  }
  void abort(const kiln::RankFailure& why) noexcept override { base_.abort(why); }
  bool settles() const noexcept override { return base_.settles(); }
  std::optional<bool> settle(const kiln::Digest& q, bool p, kiln::Deadline d) override {
    return base_.settle(q, p, d);
  }
  Failure split(int g, std::unique_ptr<Communicator>& part, kiln::Deadline d) override {
    return base_.split(g, part, d);
  }

 private:
  void count() {
    if (calls_++ == at_) befall();
  }
  kiln::Communicator& base_;
  const int at_;
  int calls_ = 0;
};

AgreementInput input(int rank, bool me, const std::string& fault) {
  AgreementInput in;
  const std::string strategy = option("strategy", "replicate");
  for (const auto s : {kiln::RankStrategy::replicate, kiln::RankStrategy::shard,
                       kiln::RankStrategy::leader, kiln::RankStrategy::independent})
    if (strategy == to_string(s)) in.options.strategy = s;
  in.options.lockstep = option("lockstep") == "1";
  in.options.first_seconds = 8, in.options.step_seconds = 2, in.options.tune_seconds = 4;
  in.options.finalists = 2;
  in.identity = {1, 2, 3, 4, 5, 6};
  in.problems.resize(2);
  for (ProblemInput& p : in.problems) p.candidates = 8;
  in.store = 1;
  const Record good{{8, 7, 6, 5, 4, 3, 2, 1}, 7};
  const std::string cache = option("cache");
  if (cache == "all" || (cache == "disjoint" && rank < 2)) {
    if (cache == "all" || rank == 0) in.problems[0].record = good;
    if (cache == "all" || rank == 1) in.problems[1].record = good;
  }
  if (!me) return in;
  if (fault == "odd-build") in.identity.build = 99;
  if (fault == "odd-arch") in.identity.target = 99;
  if (fault == "odd-list") in.problems[1].candidates = 9;
  if (fault == "corrupt") in.problems[0].record = Record{{1, 2}, 77};
  if (fault == "stale") in.problems[0].record.reset();
  if (fault == "refuse") in.options.margin = -1;
  return in;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    options[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  std::unique_ptr<kiln::Communicator> world;
  try {
    world = kiln::mpi_communicator(kiln::deadline_in(20));
    if (option("settle") == "1")
      world = kiln::settle_in(std::move(world), folder, kiln::deadline_in(20));
  } catch (const kiln::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    _exit(2);
  }
  const int rank = world->rank();
  const std::string path = folder + "/" + std::to_string(rank);
  std::ofstream(path + ".pid") << ::getpid() << '\n';
  const bool me = std::to_string(rank) == option("rank");
  const std::string fault = option("fault"), at = option("at", "-1");
  Fated comm(*world, me && at != "tune" && at != "save" ? std::stoi(at) : -1);

  Tasks tasks;
  tasks.work = [&](const Work& work, kiln::Deadline until) {
    if (me && at == "tune") befall();
    Worked done;
    for (const Work::Item& item : work.items) {
      done.times.emplace_back();
      for (const std::size_t c : item.candidates) {
        if (work.kind == Work::Kind::time && std::chrono::steady_clock::now() >= until) return done;
        std::this_thread::sleep_for(std::chrono::milliseconds(me && fault == "slow" ? 100 : 10));
        const bool fails = me && fault == "fail" && c == 7;
        done.times.back().push_back(fails ? HUGE_VALF : 8 - static_cast<float>(c));
      }
    }
    return done;
  };
  std::string saved = "no";
  tasks.save = [&](auto, const Plan&) {
    if (me && at == "save") befall();
    if (me && fault == "full") throw kiln::EnvironmentError("write: no space left on device (28)");
    saved = "yes";
  };
  std::string said;
  tasks.log = [&](kiln::LogLevel, std::string_view text) { said += std::string(text) + "; "; };

  const auto begin = std::chrono::steady_clock::now();
  std::string line;
  bool broken = true;
  try {
    const Decision d = agree(comm, input(rank, me, fault), tasks);
    broken = d.broken;
    line = d.kind == Decision::Kind::plan ? "plan " + kiln::to_hex(d.digest) + " choices " +
                                                std::to_string(d.plan.choices[0].candidate) + " " +
                                                std::to_string(d.plan.choices[1].candidate) +
                                                " timed " + std::to_string(d.measured)
                                          : "defaults " + d.why.describe();
  } catch (const kiln::UserError& e) {
    line = std::string("refused ") + e.what();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::ofstream(path + ".tmp") << line << '\n'
                               << "seconds " << seconds << '\n'
                               << "saved " << saved << '\n'
                               << said << '\n';
  std::rename((path + ".tmp").c_str(), (path + ".txt").c_str());
  std::fprintf(stderr, "rank %d: %s (%.2f s)\n", rank, line.c_str(), seconds);
  if (broken) {  // others may still be reading what this rank told them
    std::this_thread::sleep_for(std::chrono::seconds(1));
    _exit(0);
  }
  world.reset();
  return 0;
}
