// Launches on stores that cannot be written to, or not be trusted: they go on, with one message.
#include <functional>
#include <optional>

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kiln_test.hpp"
#include "modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// A file system in memory; empty where this process may mount none.
class Mounted {
 public:
  Mounted(const fs::path& at, const char* options) : at_(at) {
    fs::create_directories(at);
    mounted_ = ::mount("kiln-test", at.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options) == 0;
  }
  ~Mounted() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  explicit operator bool() const { return mounted_; }
  bool make_read_only() const {
    return ::mount("kiln-test", at_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  fs::path at_;
  bool mounted_ = false;
};

/// Tunes two problems and launches each twice; the warnings, of which `part` is in each.
std::vector<std::string> warnings_on(const fs::path& store, const std::string& part,
                                     std::optional<StoreSharing> sharing = {}) {
  Process process(store);
  process.options.store.sharing = sharing;
  process.of(8).seconds = 0.1e-3;
  const Runtime runtime = process.runtime();
  const DynamicTuned handle = runtime.tuned(doubling());
  for (const int n : {100, 200, 100, 200}) CHECK(launch(handle, n));
  CHECK(runtime.statistics().tuned == 2);
  const StoreStatistics stats = runtime.statistics().store;
  CHECK(stats.memory_only);
  CHECK_FALSE(stats.reason.empty());
  for (const std::string& text : process.warnings()) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  }
  return process.warnings();
}

}  // namespace

TEST_CASE("launches go on with a store on a full disk", "[runtime][serve][store]") {
  const Directory directory;
  const fs::path store = directory.path() / "full";
  const Mounted disk(store, "size=16k,mode=0700");
  if (!disk) KILN_SKIP("no file system can be mounted here");
  write_text(store / "filling", std::string(8192, 'x'));
  CHECK(warnings_on(store, "No space left on device").size() == 1);
}

TEST_CASE("launches go on with a store that is out of inodes", "[runtime][serve][store]") {
  const Directory directory;
  const fs::path store = directory.path() / "inodes";
  const Mounted disk(store, "size=16m,nr_inodes=8,mode=0700");
  if (!disk) KILN_SKIP("no file system can be mounted here");
  CHECK(warnings_on(store, "No space left on device").size() == 1);
}

TEST_CASE("launches go on with a store on a read-only disk", "[runtime][serve][store]") {
  const Directory directory;
  const fs::path store = directory.path() / "read-only";
  const Mounted disk(store, "size=16m,mode=0700");
  if (!disk) KILN_SKIP("no file system can be mounted here");
  REQUIRE(disk.make_read_only());
  CHECK(warnings_on(store, "Read-only file system").size() == 1);
}

TEST_CASE("launches go on with a store that is not this user's", "[runtime][serve][store]") {
  if (::geteuid() != 0) KILN_SKIP("only root may give a directory away");
  const Directory directory;
  const fs::path store = directory.path() / "theirs";
  fs::create_directory(store);
  REQUIRE(::chown(store.c_str(), 65534, 65534) == 0);
  REQUIRE(::chmod(store.c_str(), 0700) == 0);
  CHECK(warnings_on(store, "belongs to uid 65534").size() == 1);
  CHECK(warnings_on(store, "this process is not in that group", StoreSharing::group).size() == 1);
}

TEST_CASE("launches go on with a store that a group may write to", "[runtime][serve][store]") {
  const Directory directory;
  const fs::path store = directory.path() / "shared";
  fs::create_directory(store);
  REQUIRE(::chmod(store.c_str(), 02770) == 0);
  CHECK(warnings_on(store, "is writable by others (mode 2770)").size() == 1);
  CHECK(fs::is_empty(store));
  Process process(store);
  process.options.store.sharing = StoreSharing::group;
  const Runtime runtime = process.runtime();
  CHECK(launch(runtime.tuned(doubling()), 100));
  CHECK(process.warnings().empty());
  CHECK_FALSE(runtime.statistics().store.memory_only);
  CHECK(runtime.statistics().store.records == 1);
}

TEST_CASE("launches go on with a store behind a link", "[runtime][serve][store]") {
  const Directory directory;
  fs::create_directory(directory.path() / "real");
  fs::create_directory_symlink(directory.path() / "real", directory.path() / "link");
  CHECK(warnings_on(directory.path() / "link", "is a symbolic link").size() == 1);
  CHECK(warnings_on(directory.path() / "link", "is a symbolic link", StoreSharing::group).size() ==
        1);
  CHECK(fs::is_empty(directory.path() / "real"));
}
