// One rank of a job over real NCCL, which does to itself what it is told to; see
// rank_faults_nccl.py, which starts and judges it.
//   rank_job_nccl probe                   what there is; 77 without a GPU or NCCL
//   rank_job_nccl FOLDER name=value...    one rank
//     boot=file|env|threads|engine|blocking-engine  rank=R size=N device=D
//     do=collectives|loop|agree   fault=kill|stop   faulty=R   at=init|loop|tune|N
// FOLDER/R.txt: `ok ...`, `plan DIGEST`, `defaults REASON`, `failed REASON`, or `wrong WHAT`; and
// how long after the fault or the beginning that was.
#include <array>
#include <atomic>
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
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/ranks/drive.hpp"
#include "runtime/transport/nccl/nccl_communicator.hpp"
#include "runtime/transport/rendezvous.hpp"

using namespace kiln;
using namespace kiln::runtime::ranks;

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kStartSeconds = 20;  ///< for the ranks to meet, and NCCL to begin
constexpr double kCallSeconds = 2;

std::map<std::string, std::string> options;
std::string option(const std::string& name, const std::string& otherwise = "") {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : found->second;
}
int number(const std::string& name, int otherwise) {
  return std::stoi(option(name, std::to_string(otherwise)));
}

std::string folder;
int my_rank = 0;

bool faulty() { return number("faulty", -1) == my_rank; }

void befall() {
  std::fprintf(stderr, "rank %d: %s\n", my_rank, option("fault").c_str());
  if (option("fault") == "kill") ::kill(::getpid(), SIGKILL);
  if (option("fault") == "stop") ::kill(::getpid(), SIGSTOP);  // until someone lets it go on
}

/// What went wrong, thrown up to main.
struct Wrong {
  std::string what;
};
void expect(bool right, const std::string& what) {
  if (!right) throw Wrong{what};
}
void expect(const Communicator::Failure& failure, const std::string& what) {
  if (failure) throw Wrong{what + ": " + failure->describe()};
}

/// Does what it is told to just before call number `at`.
class Fated : public Communicator {
 public:
  Fated(Communicator& base, int at) : base_(base), at_(at) {}
  int rank() const noexcept override { return base_.rank(); }
  int size() const noexcept override { return base_.size(); }
  Failure gather(std::span<const std::byte> a, std::span<std::byte> b, Deadline d) override {
    count();
    return base_.gather(a, b, d);
  }
  Failure reduce(std::span<float> v, Reduction op, Deadline d) override {
    count();
    return base_.reduce(v, op, d);
  }
  Failure broadcast(std::span<std::byte> b, int root, Deadline d) override {
    count();
    return base_.broadcast(b, root, d);
  }
  void abort(const RankFailure& why) noexcept override { base_.abort(why); }
  Failure split(int g, std::unique_ptr<Communicator>& part, Deadline d) override {
    return base_.split(g, part, d);
  }

 private:
  void count() {
    if (calls_++ == at_) befall();
  }
  Communicator& base_;
  const int at_;
  int calls_ = 0;
};

void check_collectives(Communicator& c, std::size_t count) {
  const auto n = static_cast<std::size_t>(c.size());
  const std::string where = " of " + std::to_string(count) + " elements";
  std::vector<int> mine(count), all(count * n, -1);
  for (std::size_t i = 0; i < count; ++i) mine[i] = c.rank() * 1000 + static_cast<int>(i % 1000);
  expect(c.gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)),
                  deadline_in(kCallSeconds)),
         "gather" + where);
  for (std::size_t i = 0; i < all.size(); ++i)
    expect(all[i] == static_cast<int>(i / count) * 1000 + static_cast<int>(i % count % 1000),
           "gather" + where + " is not right");
  const auto rank = static_cast<float>(c.rank()), last = static_cast<float>(c.size() - 1);
  for (const auto op : {Reduction::max, Reduction::sum, Reduction::mean}) {
    std::vector<float> v(count, rank);
    v[0] = HUGE_VALF;
    if (count > 1) v[1] = c.rank() == 0 ? HUGE_VALF : 1;
    expect(c.reduce(v, op, deadline_in(kCallSeconds)), "reduce" + where);
    const float total = last * (last + 1) / 2;
    const float right = op == Reduction::max   ? last
                        : op == Reduction::sum ? total
                                               : total / static_cast<float>(n);
    for (std::size_t i = 0; i < count; ++i)
      expect(i < 2 ? std::isinf(v[i]) : v[i] == right, "reduce" + where + " is not right");
  }
  for (int root = 0; root < c.size(); ++root) {
    std::vector<int> told(count, c.rank() == root ? root + 7 : -1);
    expect(c.broadcast(std::as_writable_bytes(std::span(told)), root, deadline_in(kCallSeconds)),
           "broadcast" + where);
    for (const int t : told) expect(t == root + 7, "broadcast" + where + " is not right");
  }
}

/// A line of what was done.
std::string collectives(Communicator& c) {
  for (const std::size_t count : {1UL, 3UL, 1000UL, 1UL << 20}) check_collectives(c, count);
  for (const bool halves : {true, false}) {
    std::unique_ptr<Communicator> part;
    expect(c.split(halves ? c.rank() % 2 : 0, part, deadline_in(kStartSeconds)), "split");
    expect(part && part->size() == (halves ? (c.size() + 1 - c.rank() % 2) / 2 : c.size()),
           "the size of a part is not right");
    check_collectives(*part, 100);
  }
  check_collectives(c, 10);
  std::vector<float> v{1};
  const auto begin = Clock::now();
  constexpr int kCalls = 200;
  for (int i = 0; i < kCalls; ++i)
    expect(c.reduce(v, Reduction::max, deadline_in(kCallSeconds)), "reduce");
  const double us =
      std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / kCalls;
  return "ok collectives right, a reduction takes " + std::to_string(us) + " us";
}

/// Collectives without an end, until one fails. The faulty rank's other thread is what befalls it,
/// so it is in the middle of one.
std::string loop(Communicator& c) {
  std::thread other;
  if (faulty())
    other = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      befall();
    });
  std::vector<float> v(1 << 20, 1);
  Communicator::Failure failure;
  for (long i = 0; !failure && i < 1'000'000; ++i)
    failure = c.reduce(v, Reduction::max, deadline_in(kCallSeconds));
  if (other.joinable()) other.join();
  expect(failure.has_value(), "nothing failed");
  c.abort(*failure);
  const auto again = c.reduce(v, Reduction::max, deadline_in(1000));
  expect(again.has_value(), "a broken end reduces");
  return "failed " + failure->describe();
}

std::string agreement(Communicator& base) {
  const std::string at = option("at", "-1");
  Fated c(base, faulty() && at != "tune" ? std::stoi(at) : -1);
  AgreementInput in;
  in.options.strategy = RankStrategy::shard;
  in.options.first_seconds = 6, in.options.step_seconds = 2, in.options.tune_seconds = 3;
  in.options.finalists = 2;
  in.identity = {1, 2, 3, 4, 5, 6};
  in.problems.resize(2);
  for (ProblemInput& p : in.problems) p.candidates = 8;
  Tasks tasks;
  tasks.work = [&](const Work& work, Deadline) {
    if (faulty() && at == "tune") befall();
    Worked done;
    for (const Work::Item& item : work.items) {
      done.times.emplace_back();
      for (const std::size_t k : item.candidates)
        done.times.back().push_back(8 - static_cast<float>(k));
    }
    return done;
  };
  const Decision d = agree(c, in, tasks);
  if (d.kind != Decision::Kind::plan) return "defaults " + d.why.describe();
  expect(d.plan.choices[0].candidate == 7, "the choice is not right");
  return "plan " + to_hex(d.digest);
}

std::string work(Communicator& c) {
  expect(c.rank() == my_rank && c.size() == number("size", 1), "rank or size is not right");
  const std::string what = option("do", "collectives");
  return what == "loop" ? loop(c) : what == "agree" ? agreement(c) : collectives(c);
}

/// Does as an engine does: it lends a communicator and a stream of its own to Kiln.
std::string with_engine(bool blocking) {
  const NcclProbe probe = open_nccl();
  expect(probe.table != nullptr, probe.reason);
  const NcclTable& nccl = *probe.table;
  const auto context =
      std::make_shared<const runtime::CudaContext>(nccl.driver, number("device", 0));
  const runtime::CurrentContext current(*context);
  const runtime::CudaStream stream = runtime::create_stream(context);
  ncclUniqueId id{};
  if (my_rank == 0) expect(nccl.GetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId");
  meet_over_file({my_rank, number("size", 1), "engine", deadline_in(kStartSeconds)},
                 folder + "/engine", std::as_writable_bytes(std::span(&id, 1)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  ncclComm_t comm = nullptr;
  ncclResult_t state = nccl.CommInitRankConfig(&comm, number("size", 1), id, my_rank, &config);
  while (state == ncclInProgress) nccl.CommGetAsyncError(comm, &state);
  expect(state == ncclSuccess,
         std::string("ncclCommInitRankConfig: ") + nccl.GetErrorString(state));
  std::string line;
  for (const bool own : {true, false}) {
    const auto c = nccl_communicator(comm, own ? view(stream) : Stream{});
    line = work(*c);
  }
  // It is the engine's still, and whole.
  int size = 0;
  expect(nccl.CommCount(comm, &size) == ncclSuccess && size == number("size", 1),
         "the engine's communicator is not whole");
  state = nccl.CommFinalize(comm);
  while (state == ncclInProgress) nccl.CommGetAsyncError(comm, &state);
  expect(state == ncclSuccess && nccl.CommDestroy(comm) == ncclSuccess, "ncclCommDestroy");
  return line;
}

/// Dies between the rendezvous and NCCL's beginning.
[[noreturn]] void die_before_nccl() {
  std::array<std::byte, sizeof(ncclUniqueId) + sizeof(int)> told{};
  meet_over_file({my_rank, number("size", 1), job_identity({}, process_environment()),
                  deadline_in(kStartSeconds)},
                 folder + "/meet", told);
  befall();
  _exit(1);
}

std::string rank_of_a_job() {
  const std::string boot = option("boot", "file");
  const int size = number("size", 1), device = number("device", 0);
  if (boot == "engine" || boot == "blocking-engine") return with_engine(boot != "engine");
  if (faulty() && option("at") == "init") die_before_nccl();
  const Deadline deadline =
      deadline_in(std::stod(option("seconds", std::to_string(kStartSeconds))));
  std::unique_ptr<Communicator> c;
  if (boot == "env") {
    c = nccl_communicator_from_environment(deadline);
  } else if (boot == "threads") {
    auto ends = thread_communicators(1);
    c = nccl_communicator(*ends[0], deadline, device);
  } else {
    c = nccl_communicator(folder + "/meet", my_rank, size, deadline, device);
  }
  const std::string line = work(*c);
  c.reset();
  return line;
}

int probe() {
  const runtime::CudaProbe cuda = runtime::probe_cuda();
  const auto version = nccl_version();
  if (cuda.devices == 0) return std::printf("no GPU: %s\n", cuda.reason.c_str()), 77;
  if (!version) return std::printf("no NCCL: libnccl.so.2 cannot be opened\n"), 77;
  std::printf("%d %s\n", cuda.devices, version->c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  folder = argv[1];
  if (folder == "probe") return probe();
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    options[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  my_rank = number("rank", 0);
  const std::string path = folder + "/" + std::to_string(my_rank);
  std::ofstream(path + ".pid") << ::getpid() << '\n';
  const auto begin = Clock::now();
  std::string line;
  try {
    line = rank_of_a_job();
  } catch (const Wrong& wrong) {
    line = "wrong " + wrong.what;
  } catch (const std::exception& error) {
    line = std::string("failed ") + error.what();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::ofstream(path + ".tmp") << line << '\n' << seconds << '\n';
  std::rename((path + ".tmp").c_str(), (path + ".txt").c_str());
  std::fprintf(stderr, "rank %d: %s (%.2f s)\n", my_rank, line.c_str(), seconds);
  // After a failure the driver's and NCCL's exit handlers may wait for what is gone.
  if (line.rfind("ok", 0) != 0 && line.rfind("plan", 0) != 0) _exit(0);
  return 0;
}
