// What a tuning leaves on disk: a bounded number of files, and of the candidates that lost nothing
// if that is asked for.
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "../engine_fixture.hpp"
#include "kiln_test.hpp"
#include "unit/cache/store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

TuneResult tune_in(Process& process, const KernelDefinition& kernel = doubling(),
                   const TuneOptions& options = {}) {
  return process.runtime().tuned(kernel).tune(Values{100}, options);
}

/// The configs whose binaries are on disk.
std::set<std::string> left_in(const Directory& directory) {
  std::set<std::string> entries;
  for (const fs::path& file : directory.entries(".kiln"))
    for (const int a : {1, 2, 4, 8})
      if (const std::string entry = "k<" + std::to_string(a) + ", 0>";
          read_text(file).find(entry) != std::string::npos)
        entries.insert(entry);
  return entries;
}

}  // namespace

TEST_CASE("losers stay, because another problem will ask for them", "[runtime][tune][losers]") {
  const Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.1e-3;
  tune_in(process);
  CHECK(left_in(directory).size() == 4);
}

TEST_CASE("losers of a complete search are removed if that is asked for",
          "[runtime][tune][losers]") {
  const Directory directory;
  Process process(directory.path());
  process.options.store.keep_losers = false;
  process.of(8).seconds = 0.1e-3;
  const TuneResult result = tune_in(process);
  REQUIRE(result.complete);
  CHECK(left_in(directory) == std::set<std::string>{"k<2, 0>", "k<8, 0>"});
  CHECK(directory.entries(".json").size() == 1);

  // The next process launches without compiling, and does not search again.
  Process next(directory.path());
  const Runtime runtime = next.runtime();
  std::vector<float> x(100, 1), y(100);
  runtime.tuned(doubling())({}, Values{100}, y.data(), static_cast<const float*>(x.data()), 100);
  CHECK(y[99] == 2);
  CHECK(next.compiler->compiles == 0);
  CHECK(runtime.statistics().tuned == 0);
}

TEST_CASE("what an unfinished search has compiled stays for its continuation",
          "[runtime][tune][losers]") {
  const Directory directory;
  Process process(directory.path());
  process.options.store.keep_losers = false;
  TuneOptions options;
  options.max_evaluations = 3;
  CHECK_FALSE(tune_in(process, doubling(), options).complete);
  CHECK(left_in(directory).size() == 3);
}

TEST_CASE("the winner of another problem is no loser of this one", "[runtime][tune][losers]") {
  const Directory directory;
  {
    Process first(directory.path());
    first.options.store.keep_losers = false;
    first.of(8).seconds = 0.1e-3;
    first.runtime().tuned(doubling()).tune(Values{100});
  }
  Process second(directory.path());
  second.options.store.keep_losers = false;
  second.of(4).seconds = 0.1e-3;
  second.runtime().tuned(doubling()).tune(Values{200});
  CHECK(left_in(directory) == std::set<std::string>{"k<2, 0>", "k<4, 0>", "k<8, 0>"});
}

TEST_CASE("what another process has found to win meanwhile is no loser",
          "[runtime][tune][losers]") {
  const Directory directory;
  Process first(directory.path());
  first.options.store.keep_losers = false;
  first.of(8).seconds = 0.1e-3;
  bool other = false;
  TuneOptions options;
  options.progress = [&](const TuneProgress& progress) {
    // All is compiled by now. The other process uses what it finds.
    if (progress.phase != TuneProgress::Phase::finals || std::exchange(other, true)) return;
    Process second(directory.path());
    second.of(4).seconds = 0.1e-3;
    CHECK(second.runtime().tuned(doubling()).tune(Values{200}).winner().config == Values{4, 0});
    CHECK(second.compiler->compiles == 0);
  };
  REQUIRE(tune_in(first, doubling(), options).complete);
  REQUIRE(other);
  CHECK(left_in(directory) == std::set<std::string>{"k<2, 0>", "k<4, 0>", "k<8, 0>"});
}

TEST_CASE("ten thousand candidates leave a bounded number of files",
          "[runtime][tune][losers][slow][long]") {
  const Directory directory;
  Process process(directory.path());
  process.options.store.max_files = 8000;
  std::vector<std::int64_t> a(100), b(100);
  std::iota(a.begin(), a.end(), 1);
  std::iota(b.begin(), b.end(), 0);
  const KernelDefinition kernel = doubling(a, 2, b);
  const auto store =
      std::make_shared<cache::Store>(process.options.store, std::make_shared<FaultyFileSystem>());
  const Runtime runtime = detail::Access::runtime(std::make_shared<detail::Engine>(
      process.options, store, process.device, [&](Target::Kind) { return process.compiler; }));
  process.of(77, 5).seconds = 0.1e-3;
  TuneOptions options;
  options.strategy = "exhaustive";
  std::mutex mutex;  // compilers run on several threads
  std::size_t most = 0;
  int next = 1000;
  process.compiler->on_compile = [&](const codegen::Source&) {
    const std::lock_guard lock(mutex);
    if (process.compiler->compiles < next) return;
    next += 1000;
    most = std::max(most, files_below(directory.path()).size());
  };
  const TuneResult result = runtime.tuned(kernel).tune(Values{10}, options);
  CHECK(process.compiler->compiles >= 10'000);
  CHECK(result.count(CandidateStatus::measured) == 10'000);
  CHECK(result.winner().config == Values{77, 5});
  most = std::max(most, files_below(directory.path()).size());
  CHECK(most <= 8020);  // beside the entries: locks, the store's identity, what is being written
  CHECK(most >= 7000);
  CHECK(store->stats().files <= 8000);
  CHECK(store->stats().records == 1);
  CHECK(process.warnings().empty());
}
