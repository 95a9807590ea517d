// One rank of a job that tunes a kernel on the host over MPI, and does to itself what it is told:
//   mpirun -n 4 rank_job FOLDER name=value...
// nccl=RANK/SIZE: over NCCL instead, on the GPU of that number. `rank_job probe`: whether two ranks
// could.
// strategy=replicate|shard|leader  lockstep=1  settle=1: how they agree.
// stores=own|one: a store per rank, or one for all.
// cache=all|disjoint: what was tuned before, by all, or ranks 0 and 1 each another problem.
// fault=...  rank=R  at=POINT: what befalls which rank, and where (see fate.hpp, odd_parts.hpp).
// Each rank writes FOLDER/R.txt: per problem `plan DIGEST config ...` or `defaults REASON`, then
// what else is to be known. Without arguments: whether it could run. Exit 77: it cannot, since this
// build has no compiler for the host.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <unistd.h>

#include "codegen/llvm_plugin.hpp"
#include "fate.hpp"
#include "kiln/communicators.hpp"
#include "kiln/runtime.hpp"
#include "odd_parts.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/runtime.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"

namespace fs = std::filesystem;

namespace {

std::map<std::string, std::string> options;
std::string option(const std::string& name, const std::string& otherwise = "") {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : found->second;
}

/// Each candidate does the same with other effort, so that the least wins by far.
kiln::KernelDefinition axpy(const std::vector<std::int64_t>& effort, const std::string& remark) {
  kiln::KernelDefinition k;
  k.name = "axpy";
  k.source.text = "// " + remark + R"(
__global__ void axpy(float* y, const float* x, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float sum = a * x[i];
  for (int k = 0; k < 40 * effort; ++k) sum += x[i] * 1e-20f;  // not to be seen in the result
  y[i] = sum;
})";
  k.entry = "axpy";
  k.passing = kiln::Passing::constants;
  k.arguments = {"float*", "const float*", "float", "int"};
  k.space.parameter("effort", effort, effort.front());
  k.problem_fields = {"n"};
  k.launch = [](auto, auto problem) {
    return kiln::Launch{{static_cast<unsigned>(problem[0] + 63) / 64}, {64}, 0};
  };
  k.workload = [](auto problem, kiln::Workload& w) {
    const auto n = static_cast<std::size_t>(problem[0]);
    w.output<float>(n).input<float>(n, {0.5, 1}).scalar(2.0F).scalar(static_cast<int>(n));
  };
  k.reference = [](auto problem, std::span<void* const> args) {
    for (std::int64_t i = 0; i < problem[0]; ++i)
      static_cast<float*>(args[0])[i] = 2 * static_cast<const float*>(args[1])[i];
  };
  return k;
}

kiln::RankOptions together() {
  kiln::RankOptions o;
  const std::string strategy = option("strategy", "replicate");
  for (const auto s :
       {kiln::RankStrategy::replicate, kiln::RankStrategy::shard, kiln::RankStrategy::leader})
    if (strategy == to_string(s)) o.strategy = s;
  o.lockstep = option("lockstep") == "1";
  o.first_seconds = 6, o.step_seconds = 2, o.tune_seconds = 8;
  o.finalists = 2;
  return o;
}

/// This rank and their number, over NCCL.
std::optional<std::pair<int, int>> nccl_place() {
  const std::string place = option("nccl");
  const auto slash = place.find('/');
  if (slash == std::string::npos) return {};
  return std::pair{std::stoi(place.substr(0, slash)), std::stoi(place.substr(slash + 1))};
}
/// 77 without two GPUs or NCCL.
int probe() {
  const kiln::runtime::CudaProbe cuda = kiln::runtime::probe_cuda();
  const auto version = kiln::nccl_version();
  if (cuda.devices < 2)
    std::printf("%d GPUs, two are needed %s\n", cuda.devices, cuda.reason.c_str());
  else if (!version)
    std::printf("no NCCL: libnccl.so.2 cannot be opened\n");
  else
    return std::printf("%d GPUs, NCCL %s\n", cuda.devices, version->c_str()), 0;
  return 77;
}

std::string device_name() {
  const auto place = nccl_place();
  return place ? "cuda:" + std::to_string(place->first) : "host";
}

/// A process's view of Kiln, as if started anew.
class Kiln {
 public:
  Kiln(const fs::path& store, const std::string& fault,
       std::shared_ptr<kiln::Communicator> ranks = {}) {
    kiln::RuntimeOptions o;
    o.store.directory = store;
    o.compile_threads = 1;
    o.tuning.ranks = std::move(ranks);
    o.tuning.together = together();
    if (fault == "refuse") o.tuning.together.margin = -1;
    o.log = o.store.log = [this](kiln::LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      (level == kiln::LogLevel::warning ? warnings_ : notes_).emplace_back(text);
    };
    auto device = kiln::runtime::open_device(device_name(), {});
    auto compiler =
        std::make_shared<odd::Compiler>(kiln::runtime::make_compiler(device->info().target.kind));
    if (fault == "odd-arch" || fault == "slow") {
      const auto odd_device = std::make_shared<odd::Device>(device);
      if (fault == "odd-arch") odd_device->told.target.arch = "x86-64";
      if (fault == "slow") odd_device->slowness = compiler->slowness = 10;
      device = odd_device;
    }
    if (fault == "odd-build") compiler->build = "of last week";
    if (fault == "fail") compiler->refuses = "effort=1";
    o.tuning.progress = [this](const kiln::TuneProgress& p) {
      if (on_timing && p.phase == kiln::TuneProgress::Phase::time) on_timing();
    };
    runtime.emplace(kiln::detail::Access::runtime(kiln::runtime::make_engine(
        std::move(o), device, [compiler](kiln::Target::Kind) { return compiler; })));
  }

  std::vector<std::string> warnings() const { return warnings_; }
  std::vector<std::string> notes() const { return notes_; }
  std::optional<kiln::Runtime> runtime;
  std::function<void()> on_timing;

 private:
  std::mutex mutex_;
  std::vector<std::string> warnings_, notes_;
};

/// Changes one byte in the middle of each record.
void damage_records(const fs::path& store) {
  for (const auto& item : fs::recursive_directory_iterator(store)) {
    if (!item.is_regular_file() || item.path().string().find("/records") == std::string::npos)
      continue;
    std::fstream file(item.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(item.file_size() / 2);
    file.seekg(middle);
    const char c = static_cast<char>(file.get() ^ 0x20);
    file.seekp(middle);
    file.put(c);
  }
}

std::string line_of(const std::string& text) {
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line + '\n';
}

std::string describe(const kiln::TuneResult& result) {
  const kiln::RankReport& agreed = *result.agreed;
  if (agreed.outcome != kiln::RankReport::Outcome::plan) return line_of("defaults " + agreed.why);
  return line_of("plan " + agreed.plan_digest + " " + result.describe(result.winner()) + " timed " +
                 std::to_string(agreed.measured) + (result.from_store ? " stored" : ""));
}

}  // namespace

int main(int argc, char** argv) try {
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    options[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  if (argc == 2 && std::string(argv[1]) == "probe") return probe();
  const auto nccl = nccl_place();
  if (const std::string problem = kiln::codegen::host_compiler_problem();
      !nccl && !problem.empty()) {
    std::printf("skipped: %s\n", problem.c_str());
    return 77;
  }
  if (argc < 2) return 0;
  const fs::path folder = argv[1];
  std::unique_ptr<kiln::Communicator> world =
      nccl ? kiln::nccl_communicator(folder / "meet", nccl->first, nccl->second,
                                     kiln::deadline_in(30), nccl->first)
           : kiln::mpi_communicator(kiln::deadline_in(20));
  if (option("settle") == "1")
    world = kiln::settle_in(std::move(world), folder, kiln::deadline_in(20));
  const int rank = world->rank();
  const fs::path path = folder / std::to_string(rank);
  std::ofstream(path.string() + ".pid") << ::getpid() << '\n';

  const bool me = std::to_string(rank) == option("rank");
  const std::string fault = me ? option("fault") : "", at = option("at");
  const fs::path store = fs::path(option("store", folder / "store")) /
                         (option("stores", "own") == "own" ? std::to_string(rank) : "one");
  const fate::Blow blow = fault == "kill"   ? fate::Blow::kill
                          : fault == "stop" ? fate::Blow::stop
                                            : fate::Blow::none;
  auto ranks = std::make_shared<fate::Fated>(std::move(world), fate::Fate{blow, at});

  std::vector<std::int64_t> effort{8, 4, 2, 1};
  const kiln::Values problems[] = {{1 << 14}, {1 << 15}};
  const std::string cache = option("cache");
  if (cache == "all") {
    // Whatever else the machine does: what is cut off would be tuned again.
    kiln::TuneOptions unhurried;
    unhurried.together = together();
    unhurried.together.step_seconds = 10, unhurried.together.tune_seconds = 30;
    Kiln(store, "", ranks).runtime->tuned(axpy(effort, "")).tune(problems[0], unhurried);
  }
  if (cache == "disjoint" && rank < 2)
    Kiln(store, "").runtime->tuned(axpy(effort, "")).tune(problems[rank]);
  if (fault == "corrupt") damage_records(store);
  if (fault == "stale") {
    fs::remove_all(store);
    Kiln(store, "").runtime->tuned(axpy(effort, "of last week")).tune(problems[0]);
  }
  if (fault == "odd-list") effort.push_back(16);
  if (fault == "full") fate::fill_disk(store);
  if (fault == "kill" && at == "save") fate::die_when_saving();

  Kiln kiln(store, fault, ranks);
  if (blow != fate::Blow::none && at == "tune")
    kiln.on_timing = [blow, done = false]() mutable {
      if (!std::exchange(done, true)) fate::strike(blow);
    };
  ranks->arm();
  const auto begin = std::chrono::steady_clock::now();
  std::string said;
  bool broken = false;
  try {
    const auto handle = kiln.runtime->tuned(axpy(effort, ""));
    for (std::size_t p = 0; p < (cache == "disjoint" ? 2 : 1); ++p) {
      const kiln::TuneResult result = handle.tune(problems[p]);
      said += describe(result);
      broken |= result.agreed->broken;
      for (const kiln::Candidate& c : result.candidates)
        if (c.status == kiln::CandidateStatus::compile_failed)
          said += line_of("failed " + result.describe(c) + " " + c.reason);
      const auto config = handle.config(problems[p]);  // what a launch then uses
      said += line_of("uses effort=" + std::to_string(config[0]));
      said += line_of("right " + std::to_string(handle.verify(problems[p]).right));
    }
  } catch (const kiln::UserError& e) {
    said = line_of(std::string("refused ") + e.what());
    broken = true;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::string text = said + "seconds " + std::to_string(seconds.count()) + '\n';
  text += "written " + std::to_string(kiln.runtime->statistics().store.writes) + '\n';
  for (const std::string& warning : kiln.warnings()) text += line_of("warning " + warning);
  for (const std::string& note : kiln.notes()) text += line_of("note " + note);
  std::ofstream(path.string() + ".tmp") << text;
  std::rename((path.string() + ".tmp").c_str(), (path.string() + ".txt").c_str());
  std::fprintf(stderr, "rank %d:\n%s", rank, text.c_str());
  if (broken) {  // others may still be reading what this rank told them
    std::this_thread::sleep_for(std::chrono::seconds(1));
    _exit(0);
  }
  // Where a rank has died after all was agreed on, NCCL's end would wait for it.
  if (nccl && option("fault") == "kill") _exit(0);
  return 0;
} catch (const kiln::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  _exit(2);
}
