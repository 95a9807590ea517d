#include <pwd.h>

#include "cache/location.hpp"
#include "cache/store.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::locate;

namespace {

/// Sets the variables for one test, and puts the old ones back.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<const char*, const char*>> values) {
    for (const char* name : {"KILN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      saved_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
      ::unsetenv(name);
    }
    for (const auto& [name, value] : values) ::setenv(name, value, 1);
  }
  ~Environment() {
    for (const auto& [name, value] : saved_)
      value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

}  // namespace

TEST_CASE("the directory comes from the options, else from the environment, in order",
          "[cache][location]") {
  const Environment all({{"KILN_CACHE_DIR", "/k"}, {"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}});
  CHECK(locate("/named/").directory == "/named");
  CHECK(locate("/a/./b/../c//").directory == "/a/c");
  CHECK(locate("relative").directory == fs::current_path() / "relative");
  CHECK(locate("").directory == "/k");
  ::setenv("KILN_CACHE_DIR", "", 1);  // set to nothing is not set
  CHECK(locate("").directory == "/x/kiln");
  ::setenv("XDG_CACHE_HOME", "not/absolute", 1);
  CHECK(locate("").directory == "/h/.cache/kiln");
}

TEST_CASE("without HOME the user's entry decides", "[cache][location]") {
  const Environment none({});
  const passwd* user = ::getpwuid(::geteuid());
  if (user != nullptr && user->pw_dir[0] == '/')
    CHECK(locate("").directory == fs::path(user->pw_dir) / ".cache" / "kiln");
  else
    CHECK(locate("").directory.empty());
}

TEST_CASE("a user without HOME and without an entry works in memory", "[cache][location]") {
  if (::geteuid() != 0) KILN_SKIP("only root may become a user that does not exist");
  const int code = in_child([] {
    const Environment none({});
    constexpr uid_t kNobodyKnows = 2'000'000'123;
    if (::setresuid(kNobodyKnows, kNobodyKnows, kNobodyKnows) != 0) return 1;
    if (!locate("").directory.empty() || locate("").reason.empty()) return 2;
    Log log;
    StoreOptions options;
    options.log = log.sink();
    cache::Store store(options);
    const Key key = make_key("a");
    if (store.find(key)) return 3;
    store.put(key, make_bytes(10));
    store.put(make_key("b"), make_bytes(10));
    if (store.find(key) != make_bytes(10)) return 4;
    if (log.warnings().size() != 1) return 5;
    if (log.warnings()[0].find("KILN_CACHE_DIR") == std::string::npos) return 6;
    const StoreStatistics stats = store.stats();
    if (!stats.memory_only || stats.reason.empty() || stats.failed_writes != 2) return 7;
    return 0;
  });
  CHECK(code == 0);
}
