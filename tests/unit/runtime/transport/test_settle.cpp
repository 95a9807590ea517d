#include <atomic>
#include <cerrno>
#include <ctime>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kiln/communicators.hpp"
#include "kiln_test.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using kiln::test::read_text;
using kiln::test::TemporaryDirectory;
using kiln::test::write_text;
namespace fs = std::filesystem;

namespace {

/// If true, this thread's file system has no hard links.
thread_local bool refuses_links = false;

/// Ends that do not settle by themselves.
class Plain : public Communicator {
 public:
  explicit Plain(std::unique_ptr<Communicator> base) : base_(std::move(base)) {}
  int rank() const noexcept override { return base_->rank(); }
  int size() const noexcept override { return base_->size(); }
  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline d) override {
    return base_->gather(mine, all, d);
  }
  Failure reduce(std::span<float> values, Reduction op, Deadline d) override {
    return base_->reduce(values, op, d);
  }
  Failure broadcast(std::span<std::byte> bytes, int root, Deadline d) override {
    return base_->broadcast(bytes, root, d);
  }
  void abort(const RankFailure& why) noexcept override { base_->abort(why); }
  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline d) override {
    std::unique_ptr<Communicator> end;
    auto failure = base_->split(group, end, d);
    if (!failure) part = std::make_unique<Plain>(std::move(end));
    return failure;
  }

 private:
  std::unique_ptr<Communicator> base_;
};

struct SettledRanks {
  std::vector<std::unique_ptr<Communicator>> ends;
  std::vector<std::string> why;
};

void on_each(std::size_t ranks, const std::function<void(std::size_t rank)>& body) {
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks; ++r) threads.emplace_back([&body, r] { body(r); });
}

/// Every rank in its folder; rank `without` has no hard links.
SettledRanks settle_in(const std::vector<fs::path>& folders, int without = -1) {
  SettledRanks all;
  all.why.assign(folders.size(), "not asked");
  all.ends = thread_communicators(static_cast<int>(folders.size()));
  on_each(folders.size(), [&](std::size_t r) {
    refuses_links = static_cast<int>(r) == without;
    all.ends[r] = kiln::settle_in(std::make_unique<Plain>(std::move(all.ends[r])), folders[r],
                                  deadline_in(30), &all.why[r]);
  });
  return all;
}

void check_settles(const SettledRanks& all) {
  for (std::size_t r = 0; r < all.ends.size(); ++r) {
    CHECK(all.why[r] == "");
    CHECK(all.ends[r]->settles());
  }
}

void check_refused(const SettledRanks& all, const std::vector<std::string>& why) {
  for (std::size_t r = 0; r < all.ends.size(); ++r) {
    CHECK_FALSE(all.ends[r]->settles());
    CHECK(all.ends[r]->rank() == static_cast<int>(r));
    CHECK_THAT(all.why[r], Catch::Contains(why[r]));
  }
}

fs::path own_place(const fs::path& folder) {
  return folder / ("kiln-settle-" + std::to_string(::geteuid()));
}

int mode_of(const fs::path& path) {
  struct stat status{};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  return static_cast<int>(status.st_mode & 07777);
}

/// As if nobody had touched it for five days; a link itself, not what it leads to.
void make_old(const fs::path& path) {
  const timespec then{std::time(nullptr) - std::time_t{5} * 24 * 3600, 0};
  const timespec times[2] = {then, then};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) == 0);
}

std::string digits(std::size_t count) { return std::string(count - 2, 'a') + "07"; }

}  // namespace

extern "C" int linkat(int from_folder, const char* from, int to_folder, const char* to,
                      int flags) noexcept {
  if (refuses_links) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

TEST_CASE("in a folder the first proposal is everyone's answer", "[ranks][settle]") {
  const TemporaryDirectory folder;
  const fs::path made = folder.path() / "made" / "for this";
  const SettledRanks all = settle_in({made, made, made});
  check_settles(all);
  for (const bool first : {true, false}) {
    const Digest question = sha256(first ? "one" : "another");
    CHECK(all.ends[1]->settle(question, first, deadline_in(5)) == first);
    for (const auto& end : all.ends) {
      end->abort({RankFailure::Kind::lost, {}, "it settles all the same"});
      CHECK(end->settle(question, !first, deadline_in(5)) == first);
    }
  }
  // Nothing is left but the answers.
  CHECK(std::distance(fs::directory_iterator(own_place(made)), fs::directory_iterator()) == 2);
  CHECK(mode_of(own_place(made)) == 0700);
}

TEST_CASE("many ranks that ask at once are given one answer", "[ranks][settle]") {
  const TemporaryDirectory folder;
  const SettledRanks all = settle_in(std::vector<fs::path>(6, folder.path()));
  check_settles(all);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> yes{0}, no{0};
    on_each(all.ends.size(), [&](std::size_t r) {
      const auto answer =
          all.ends[r]->settle(sha256(std::to_string(round)), r % 2 == 0, deadline_in(5));
      if (answer) ++(*answer ? yes : no);
    });
    CHECK(yes + no == 6);
    CHECK(yes * no == 0);
  }
}

TEST_CASE("a part settles where the whole does", "[ranks][settle]") {
  const TemporaryDirectory folder;
  SettledRanks all = settle_in({folder.path(), folder.path()});
  std::vector<std::unique_ptr<Communicator>> parts(2);
  on_each(2, [&](std::size_t r) {
    if (all.ends[r]->split(static_cast<int>(r), parts[r], deadline_in(30))) parts[r] = nullptr;
  });
  all.ends.clear();
  REQUIRE(parts[0]);
  REQUIRE(parts[1]);
  CHECK(parts[0]->settles());
  CHECK(parts[0]->settle(sha256("?"), false, deadline_in(5)) == false);
  CHECK(parts[1]->settle(sha256("?"), true, deadline_in(5)) == false);
}

TEST_CASE("what else lies in the folder stays, and so do its permissions", "[ranks][settle]") {
  const TemporaryDirectory folder;
  const int mode = GENERATE(0755, 01777, 02750);
  REQUIRE(::chmod(folder.path().c_str(), static_cast<mode_t>(mode)) == 0);
  std::vector<fs::path> planted;
  for (const std::string& name : {std::string("proposal-final.docx"), std::string("answer-key.txt"),
                                  "answer-" + digits(64), "proposal-" + digits(16)})
    planted.push_back(folder.path() / name);
  for (const fs::path& path : planted) {
    write_text(path, "somebody's");
    make_old(path);
  }
  check_settles(settle_in({folder.path(), folder.path()}));
  for (const fs::path& path : planted) {
    INFO(path);
    CHECK(read_text(path) == "somebody's");
  }
  CHECK(mode_of(folder.path()) == mode);
  CHECK((mode_of(own_place(folder.path())) & 0777) == 0700);
}

TEST_CASE("of Kiln's own place only Kiln's own old files are removed", "[ranks][settle]") {
  const TemporaryDirectory folder;
  const fs::path place = own_place(folder.path());
  REQUIRE(::mkdir(place.c_str(), 0700) == 0);
  const fs::path outside = folder.path() / "outside";
  write_text(outside, "somebody's");
  std::vector<fs::path> old, other;
  for (const std::string& name : {"answer-" + digits(64), "proposal-" + digits(16)})
    old.push_back(place / name);
  for (const std::string& name :
       {"answer-" + digits(63), "answer-" + digits(65), "answer-" + digits(16),
        "answer-" + digits(62) + ".c", "answer-" + digits(62) + "AB", "proposal-" + digits(15),
        "proposal-" + digits(64), "proposal-" + digits(16) + "~", "my-proposal-" + digits(16),
        std::string("answer-key.txt")})
    other.push_back(place / name);
  for (const auto* files : {&old, &other})
    for (const fs::path& path : *files) {
      write_text(path, "1");
      make_old(path);
    }
  const fs::path link = place / ("proposal-" + std::string(16, '1'));
  fs::create_symlink(outside, link);
  make_old(link);
  const fs::path directory = place / ("answer-" + std::string(64, '1'));
  fs::create_directory(directory);
  make_old(directory);
  const fs::path young = place / ("answer-" + std::string(64, '2'));
  write_text(young, "1");

  check_settles(settle_in({folder.path(), folder.path()}));
  other.insert(other.end(), {link, directory, young});
  for (const fs::path& path : other) {
    INFO(path);
    CHECK(fs::exists(path));
  }
  for (const fs::path& path : old) {
    INFO(path);
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(read_text(outside) == "somebody's");
}

TEST_CASE("a place that is not private to this user is refused", "[ranks][settle]") {
  const TemporaryDirectory folder;
  const fs::path place = own_place(folder.path());
  const fs::path elsewhere = folder.path() / "elsewhere";
  fs::create_directory(elsewhere);
  fs::permissions(elsewhere, fs::perms::owner_all);
  std::string why = "not private to this user";
  SECTION("a link") {
    fs::create_directory_symlink(elsewhere, place);
    why = "";
  }
  SECTION("a link to nowhere") {
    fs::create_symlink(folder.path() / "none", place);
    why = "";
  }
  SECTION("a file") {
    write_text(place, "somebody's");
    why = "Not a directory";
  }
  SECTION("open to others") {
    REQUIRE(::mkdir(place.c_str(), 0700) == 0);
    REQUIRE(::chmod(place.c_str(), 0755) == 0);
  }
  const int mode = mode_of(place);
  check_refused(settle_in({folder.path(), folder.path()}), {place.string(), why});
  CHECK(mode_of(place) == mode);
  CHECK(fs::is_empty(elsewhere));
  CHECK_FALSE(fs::exists(folder.path() / "none"));
}

TEST_CASE("another user's place is refused, by root too", "[ranks][settle]") {
  if (::geteuid() != 0) KILN_SKIP("only root may give a directory away");
  const TemporaryDirectory folder;
  const fs::path place = own_place(folder.path());
  REQUIRE(::mkdir(place.c_str(), 0700) == 0);
  REQUIRE(::chown(place.c_str(), 12345, 12345) == 0);
  check_refused(settle_in({folder.path(), folder.path()}),
                {place.string(), "not private to this user"});
  CHECK(mode_of(place) == 0700);
}

TEST_CASE("no folder, no settling", "[ranks][settle]") {
  const TemporaryDirectory folder;
  write_text(folder.path() / "file", "");
  const fs::path none = GENERATE(true, false) ? fs::path("/proc/none") : folder.path() / "file";
  check_refused(settle_in({none, none}), {none.string(), none.string()});
}

TEST_CASE("ranks that see different folders cannot settle", "[ranks][settle]") {
  const TemporaryDirectory here, there;
  check_refused(settle_in({here.path(), there.path()}), {"rank 1 cannot", own_place(there.path())});
  // Also where there is a place of an earlier job.
  check_settles(settle_in({here.path()}));
  check_settles(settle_in({there.path()}));
  check_refused(settle_in({here.path(), there.path(), here.path()}),
                {"rank 1 cannot", "the file that rank 0 wrote is missing", "rank 1 cannot"});
}

TEST_CASE("where hard links are refused ranks do not settle", "[ranks][settle]") {
  const TemporaryDirectory folder;
  const int without = GENERATE(0, 1);
  std::vector<std::string> why(2, "rank " + std::to_string(without) + " cannot");
  why[static_cast<std::size_t>(without)] = "hard link: Operation not supported";
  if (without == 0) why[1] = "";  // what rank 0 should have written is not there
  check_refused(settle_in({folder.path(), folder.path()}, without), why);
  CHECK(fs::is_empty(own_place(folder.path())));
}

TEST_CASE("an end that settles by itself is returned as it is", "[ranks][settle]") {
  const TemporaryDirectory folder;
  auto base = std::move(thread_communicators(1).front());
  const Communicator* const before = base.get();
  const auto after = kiln::settle_in(std::move(base), folder.path(), deadline_in(5));
  CHECK(after.get() == before);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a rank that does not come leaves the others without settling", "[ranks][settle]") {
  const TemporaryDirectory folder;
  auto ends = thread_communicators(2);
  ends[1].reset();
  std::string why;
  const auto end = kiln::settle_in(std::make_unique<Plain>(std::move(ends[0])), folder.path(),
                                   deadline_in(5), &why);
  CHECK_FALSE(end->settles());
  CHECK_THAT(why, Catch::Contains("rank 1"));
  CHECK(fs::is_empty(own_place(folder.path())));
}
