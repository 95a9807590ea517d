// Lock files: what other programs have written there decides only whether a process waits.
#include <filesystem>
#include <fstream>
#include <string>

#include "cache/disk_level.hpp"
#include "cache/work_lock.hpp"
#include "fuzz.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
namespace fs = std::filesystem;

namespace {

/// A cache directory for the life of the process.
class Place : public test::TemporaryDirectory {
 public:
  Place() {
    fs::create_directories(path() / "v1" / "locks");
    for (const fs::path& part : {path() / "v1", path() / "v1" / "locks"})
      fs::permissions(part, fs::perms::owner_all);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Place place;
  static cache::DiskLevel disk(place.path(), std::make_shared<cache::FileSystem>());
  const std::string hex(64, 'a');
  const fs::path lock_path = place.path() / "v1" / "locks" / (hex + ".lock");
  {
    std::ofstream file(lock_path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  }
  fs::permissions(lock_path, fs::perms::owner_read | fs::perms::owner_write);
  cache::LockTimes times;
  times.deadline = std::chrono::milliseconds(0);
  {
    cache::WorkLock lock;
    const auto outcome = lock.acquire(disk, hex, times, [] { return false; });
    fuzz::require(
        outcome == cache::WorkLock::Outcome::unusable || outcome == cache::WorkLock::Outcome::held,
        "it waited for nobody, or nobody was done");
  }
  fs::remove(lock_path);
  return 0;
}
