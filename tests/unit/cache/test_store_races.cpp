// The store under threads and processes at once.
#include <thread>

#include <nlohmann/json.hpp>

#include "cache/store.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Store;
using nlohmann::json;

namespace {

constexpr unsigned kKeys = 3, kRounds = 60;

Key key_of(unsigned number) { return make_key("race" + std::to_string(number)); }

/// A payload that proves itself: key, seed, and bytes that follow from both.
Buffer payload_of(unsigned key, unsigned seed) {
  Buffer bytes = make_bytes(2 + 3000 + 500 * seed % 7000, 1000 * key + seed);
  bytes[0] = static_cast<std::byte>(key);
  bytes[1] = static_cast<std::byte>(seed);
  return bytes;
}

bool is_whole(unsigned key, const detail::Bytes& bytes) {
  return bytes.size() > 2 && bytes == payload_of(key, std::to_integer<unsigned>(bytes.data()[1])) &&
         bytes.data()[0] == static_cast<std::byte>(key);
}

json record_of(unsigned seed) {
  return {{"seed", seed}, {"filler", std::string(100 + 37 * seed, 'x')}};
}

StoreOptions racing_options(const fs::path& directory, std::size_t memory_bytes) {
  StoreOptions options = options_for(directory);
  options.memory_bytes = memory_bytes;
  return options;
}

/// Puts and finds on a few keys; what is found must be whole. Returns the number of torn finds.
int contend(Store& store, unsigned writer, bool identical) {
  int torn = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    const unsigned number = (round + writer) % kKeys;
    const Key key = key_of(number);
    const unsigned seed = identical ? 0 : (writer * 31 + round) % 200;
    if (round % 2 == writer % 2) {
      store.put(key, payload_of(number, seed));
      store.put_record(key, record_of(seed));
    }
    if (const auto bytes = store.find(key)) torn += !is_whole(number, *bytes);
    if (const auto record = store.find_record(key))
      torn += *record != record_of((*record)["seed"].get<unsigned>());
    if (identical && round > 0 && store.stats().damaged != 0) ++torn;
  }
  return torn;
}

/// Forks `count` contenders, each with a store of its own, and returns how many did not exit with
/// 0.
int failing_processes(const fs::path& directory, unsigned count, bool identical) {
  std::vector<pid_t> children;
  for (unsigned writer = 0; writer < count; ++writer) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      int code = 1;
      try {
        Store store(racing_options(directory, 0), std::make_shared<FaultyFileSystem>());
        code = contend(store, writer, identical) == 0 && store.stats().damaged == 0 &&
                       store.stats().failed_writes == 0
                   ? 0
                   : 2;
      } catch (...) {
      }
      ::_exit(code);
    }
    children.push_back(pid);
  }
  int failing = 0;
  for (const pid_t pid : children) {
    int status = 1;
    failing += pid < 0 || ::waitpid(pid, &status, 0) != pid || status != 0;
  }
  return failing;
}

}  // namespace

TEST_CASE("processes racing on few keys find whole payloads or none", "[cache][store][race]") {
  for (const bool identical : {true, false}) {
    const TemporaryDirectory root;
    CHECK(failing_processes(root.path() / "cache", 8, identical) == 0);
    Store store(racing_options(root.path() / "cache", 0));
    for (unsigned number = 0; number < kKeys; ++number) {
      const auto bytes = store.find(key_of(number));
      REQUIRE(bytes);
      CHECK(is_whole(number, *bytes));
    }
    CHECK(store.verify().ok());
    CHECK(store.verify().unfinished == 0);
    CHECK(store.stats().binaries == kKeys);
    CHECK(store.stats().records == kKeys);
  }
}

TEST_CASE("threads racing on one store find whole payloads or none", "[cache][store][race]") {
  for (const std::size_t memory : {std::size_t{0}, std::size_t{20'000}, std::size_t{1} << 20}) {
    const TemporaryDirectory root;
    Store store(racing_options(root.path() / "cache", memory),
                std::make_shared<FaultyFileSystem>());
    std::atomic<int> torn{0};
    std::vector<std::thread> threads;
    for (unsigned writer = 0; writer < 16; ++writer)
      threads.emplace_back([&, writer] { torn += contend(store, writer, false); });
    for (std::thread& thread : threads) thread.join();
    CHECK(torn == 0);
    const StoreStatistics stats = store.stats();
    CHECK(stats.damaged == 0);
    CHECK(stats.failed_writes == 0);
    CHECK(stats.binaries == kKeys);
    CHECK(store.verify().ok());
    CHECK(store.verify().unfinished == 0);
  }
}

TEST_CASE("clearing while others write breaks nothing", "[cache][store][race]") {
  const TemporaryDirectory root;
  auto system = std::make_shared<FaultyFileSystem>();
  Store store(racing_options(root.path() / "cache", 0), system);
  std::atomic<int> torn{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (unsigned writer = 0; writer < 4; ++writer)
    threads.emplace_back([&, writer] { torn += contend(store, writer, false); });
  std::thread cleaner([&] {
    while (!done) store.clear();
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  cleaner.join();
  CHECK(torn == 0);
  CHECK(store.verify().ok());
}
