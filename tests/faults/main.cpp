// The fault suite: faults [--seconds S] [--only N]...
// Works below $TMPDIR, else in memory (/dev/shm), where other work on the disk does not slow it
// down. S, else $KILN_FAULT_SECONDS, else 30: how long the evictor works against readers and
// rewriters.
//
// Tries each fault of the list, and says at the end: "faults tried N, wrong results N, lost entries
// N, hangs N". Exit: 0 when all that could be tried went well, else 1.
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

#include "program.hpp"

namespace {

using namespace kiln::faults;

const std::vector<Fault> kFaults{
    {1, "truncated at each byte of the header", truncated},
    {2, "one flipped bit", bit_flipped},
    {3, "writer killed", writer_killed},
    {4, "32 processes on one cold key", many_on_one_cold_key},
    {5, "lock holder killed, stopped", lock_holder_gone},
    {6, "evictor against reader and rewriter", evictor_against_others},
    {7, "ENOSPC, EDQUOT, EIO at each write call", writes_fail},
    {8, "read-only directory, no HOME, unknown uid", no_place},
    {9, "foreign-owned, world-writable directory", place_of_others},
    {10, "symlink, FIFO, directory planted", planted},
    {11, "valid entry under another key's name", under_another_name},
    {12, "each key input changed singly", key_inputs},
    {13, "older and newer format", other_formats},
    {14, "clock set back and forward an hour", clock_moved},
    {15, "bundle truncated, tampered, unsigned, foreign", bad_bundles},
    {16, "two users on one read-only root", shared_root},
    {17, "directory removed while in use", directory_removed},
    {18, "file descriptors exhausted", no_descriptors},
    {19, "look-ups late, stale, or wrong for a while", look_ups},
};

}  // namespace

int main(int count, char** arguments) {
  const char* named = std::getenv("KILN_FAULT_SECONDS");
  double seconds = named == nullptr ? 30 : std::atof(named);
  std::set<int> only;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (i + 1 < count && name == "--seconds")
      seconds = std::atof(arguments[++i]);
    else if (i + 1 < count && name == "--only")
      only.insert(std::atoi(arguments[++i]));
    else
      return 2;
  }
  std::vector<Fault> chosen;
  for (const Fault& fault : kFaults)
    if (only.empty() || only.contains(fault.number)) chosen.push_back(fault);
  for (const char* name : {"KILN_CACHE_DIR", "KILN_CACHE_SIZE", "KILN_ROOTS", "KILN_BUNDLE_KEY"})
    ::unsetenv(name);
  if (std::getenv("TMPDIR") == nullptr && ::access("/dev/shm", R_OK | W_OK | X_OK) == 0)
    ::setenv("TMPDIR", "/dev/shm", 1);
  return try_all(chosen, seconds) ? 0 : 1;
}
