// How ranks that know only a place to meet get a few bytes from rank 0, such as NCCL's unique id.
// Each function returns on all ranks, or names the ranks that did not come.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "kiln/communicator.hpp"
#include "runtime/transport/environment.hpp"

namespace kiln::runtime::ranks {

struct Meeting {
  int rank = 0, size = 1;
  std::string job;  ///< see job_identity
  Deadline deadline;
};

/// The longest payload, in bytes.
constexpr std::size_t kLongestPayload = 1024;

/// Over TCP: rank 0 listens at `point` (on the loopback interface alone if the host is localhost),
/// and the others try to connect until the deadline. A connection that is not from a rank of this
/// job is turned away.
/// @throws EnvironmentError, naming the ranks that did not come; UserError when two processes are
/// one rank
void meet_over_tcp(const Meeting& meeting, const MeetingPoint& point, std::span<std::byte> payload);

/// By files: rank r writes `file`.r with a fresh random number, and rank 0 answers each number in
/// `file`. So a rank accepts only a file that was written after it came. The same holds for rank 0,
/// since each rank must also repeat rank 0's number. Files are published by rename and read whole
/// or not at all. They are removed at the end, except after a failure: then `file` says why, to
/// ranks that still come.
/// @throws as above
void meet_over_file(const Meeting& meeting, const std::filesystem::path& file,
                    std::span<std::byte> payload);

// For both.
std::uint64_t draw_number();
/// `HOST, process PID`
std::string this_process();
/// `rank 3`, `ranks 1, 2 and 5 more`
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace kiln::runtime::ranks
