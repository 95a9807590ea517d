#include <csignal>

#include <fcntl.h>

#include "cache/atomic_file.hpp"
#include "kiln_test.hpp"
#include "store_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using cache::AtomicFile;
using cache::UniqueFd;

namespace {

UniqueFd open_directory(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace

TEST_CASE("a file appears whole, at commit, and private", "[cache][atomic_file]") {
  const TemporaryDirectory directory;
  const UniqueFd fd = open_directory(directory.path());
  const Buffer bytes = make_bytes(1000);
  for (const mode_t mask : {0, 0777}) {
    const mode_t old = ::umask(mask);
    {
      FaultyFileSystem system;
      system.short_writes = true;
      AtomicFile file(system, fd.get(), "entry");
      CHECK(file.write(std::span(bytes).first(400)));
      CHECK(file.write(std::span(bytes).subspan(400)));
      CHECK_FALSE(fs::exists(directory.path() / "entry"));
      CHECK(files_below(directory.path()).size() == 1);
      CHECK(file.commit());
    }
    ::umask(old);
    CHECK(files_below(directory.path()).size() == 1);
    CHECK(read_bytes(directory.path() / "entry") == bytes);
    CHECK(mode_of(directory.path() / "entry") == 0600);
    fs::remove(directory.path() / "entry");
  }
}

TEST_CASE("without a commit nothing is left, and the old file stays", "[cache][atomic_file]") {
  const TemporaryDirectory directory;
  const UniqueFd fd = open_directory(directory.path());
  write_bytes(directory.path() / "entry", make_bytes(10));
  cache::FileSystem system;
  {
    AtomicFile file(system, fd.get(), "entry");
    CHECK(file.write(make_bytes(1000)));
  }
  CHECK(files_below(directory.path()).size() == 1);
  CHECK(read_bytes(directory.path() / "entry") == make_bytes(10));
}

TEST_CASE("every failing call is reported and leaves no temporary file", "[cache][atomic_file]") {
  for (const Call failing : {Call::create, Call::write, Call::sync, Call::rename}) {
    for (const int code : {ENOSPC, EDQUOT, EIO, EROFS}) {
      const TemporaryDirectory directory;
      const UniqueFd fd = open_directory(directory.path());
      FaultyFileSystem system;
      system.fault = [&](Call call, int) { return call == failing ? code : 0; };
      {
        AtomicFile file(system, fd.get(), "entry");
        CHECK_FALSE((file.write(make_bytes(10)) && file.commit()));
        CHECK(file.failure().code == code);
        CHECK(file.failure().what.find("entry") != std::string::npos);
        CHECK_FALSE(file.failure().advice.empty());
        CHECK_FALSE(file.write(make_bytes(1)));  // and stays failed
        CHECK_FALSE(file.commit());
      }
      CHECK(files_below(directory.path()).empty());
    }
  }
}

TEST_CASE("interrupted writes go on, and taken names are passed over", "[cache][atomic_file]") {
  const TemporaryDirectory directory;
  const UniqueFd fd = open_directory(directory.path());
  FaultyFileSystem system;
  int interruptions = 3, taken = 2;
  system.fault = [&](Call call, int) {
    if (call == Call::write && interruptions-- > 0) return EINTR;
    return call == Call::create && taken-- > 0 ? EEXIST : 0;
  };
  AtomicFile file(system, fd.get(), "entry");
  CHECK(file.write(make_bytes(10)));
  CHECK(file.commit());
  CHECK(read_bytes(directory.path() / "entry") == make_bytes(10));
}

TEST_CASE("a link, a FIFO and an empty directory give way, their targets stay",
          "[cache][atomic_file]") {
  const TemporaryDirectory directory, elsewhere;
  const UniqueFd fd = open_directory(directory.path());
  const fs::path victim = elsewhere.path() / "victim", entry = directory.path() / "entry";
  write_bytes(victim, make_bytes(5));
  const std::function<void()> plants[] = {
      [&] { fs::create_symlink(victim, entry); },
      [&] { REQUIRE(::mkfifo(entry.c_str(), 0600) == 0); },
      [&] { fs::create_directory(entry); },
  };
  for (const auto& plant : plants) {
    plant();
    cache::FileSystem system;
    AtomicFile file(system, fd.get(), "entry");
    CHECK(file.write(make_bytes(10)));
    CHECK(file.commit());
    CHECK(fs::is_regular_file(fs::symlink_status(entry)));
    CHECK(read_bytes(entry) == make_bytes(10));
    fs::remove(entry);
  }
  CHECK(read_bytes(victim) == make_bytes(5));

  fs::create_directories(entry / "full");
  cache::FileSystem system;
  AtomicFile file(system, fd.get(), "entry");
  CHECK(file.write(make_bytes(10)));
  CHECK_FALSE(file.commit());
  CHECK(fs::exists(entry / "full"));
}

TEST_CASE("temporary names are told from others", "[cache][atomic_file]") {
  CHECK(AtomicFile::is_temporary(".kiln-1-0123456789abcdef.tmp"));
  CHECK_FALSE(AtomicFile::is_temporary(".kiln-.tmp"));
  CHECK_FALSE(AtomicFile::is_temporary("kiln-1-2.tmp"));
  CHECK_FALSE(AtomicFile::is_temporary(".kiln-1-2.tmp2"));
  CHECK_FALSE(AtomicFile::is_temporary(""));
}
