// A file is removed only if it is the one that is meant.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include <fcntl.h>

#include "cache/remove_if.hpp"
#include "cache/store.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::Removal;
using cache::Store;

namespace {

constexpr std::size_t kFileBytes = 10'000;

}  // namespace

TEST_CASE("what takes the victim's place is never removed in its stead", "[cache][eviction]") {
  const TemporaryDirectory root;
  auto system = std::make_shared<FaultyFileSystem>();
  Store store(evicting_options(root.path()), system);
  const Key key = make_key("a");
  const fs::path path = binary_path(root.path(), key);
  for (const int moment : {0, 1}) {
    INFO(moment);
    store.put(key, make_bytes(kFileBytes, 1));
    int renames = 0;
    // Rewritten by another process just before the victim is taken aside, then again before what
    // was taken by mistake is put back.
    system->fault = [&](Call call, int) {
      if (call == Call::rename && renames++ <= moment) {
        Store other(evicting_options(root.path()));
        other.put(key, make_bytes(kFileBytes, 10 + static_cast<unsigned>(renames)));
      }
      return 0;
    };
    const TrimReport report = store.trim(0);
    system->fault = [](Call, int) { return 0; };
    CHECK(report.entries == 0);
    CHECK(report.left == fs::file_size(path));
    CHECK(store.find(key) == make_bytes(kFileBytes, 11 + static_cast<unsigned>(moment)));
    CHECK(files_below(root.path()).size() == 1);
  }
}

TEST_CASE("of two that remove, none puts back what has been replaced", "[cache][eviction]") {
  const TemporaryDirectory root;
  auto system = std::make_shared<FaultyFileSystem>();
  Store store(evicting_options(root.path()), system);
  Store other(evicting_options(root.path()));
  const Key key = make_key("a");
  store.put(key, make_bytes(kFileBytes, 1));
  int renames = 0;
  std::optional<std::jthread> second;
  std::atomic<bool> trimmed = false;
  // The first remover has version 2 aside by mistake when version 3 is put, and trimmed by a second
  // one, which waits for its turn.
  system->fault = [&](Call call, int) {
    if (call != Call::rename) return 0;
    ++renames;
    if (renames == 1) other.put(key, make_bytes(kFileBytes, 2));
    if (renames == 2) {
      other.put(key, make_bytes(kFileBytes, 3));
      second.emplace([&] {
        other.trim(0);
        trimmed = true;
      });
      for (int i = 0; i < 100 && !trimmed; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 0;
  };
  CHECK(store.trim(0).entries == 0);
  second->join();
  CHECK(renames == 2);
  CHECK(files_below(root.path()).empty());
}

TEST_CASE("an exclusive rename that fails puts the file back all the same", "[cache][eviction]") {
  const TemporaryDirectory root;
  const cache::UniqueFd fd(::open(root.path().c_str(), O_RDONLY | O_DIRECTORY));
  write_bytes(root.path() / "file", make_bytes(5));
  class NoExclusiveRename : public cache::FileSystem {
    int rename_new(int, const char*, const char*) override { return errno = EPERM, -1; }
  } system;
  int asked = 0;
  const auto right_at_first = [&](const std::string&) { return asked++ == 0; };
  CHECK(remove_if(system, fd.get(), "file", right_at_first) == Removal::other);
  CHECK(asked == 2);
  CHECK(read_bytes(root.path() / "file") == make_bytes(5));
  CHECK(files_below(root.path()).size() == 1);
  const auto always = [](const std::string&) { return true; };
  CHECK(remove_if(system, fd.get(), "nothing", always) == Removal::absent);
  CHECK(remove_if(system, fd.get(), "file", always) == Removal::removed);
}
