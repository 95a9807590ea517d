// Which process this is, so that another on the same machine can tell whether it still lives.
#pragma once

#include <cstdint>
#include <string>

#include <sys/types.h>

namespace kiln::cache {

struct ProcessIdentity {
  std::string host;           ///< for people
  std::string boot;           ///< of the running kernel; empty: unknown
  std::string pid_namespace;  ///< within which `pid` means something; empty: unknown
  pid_t pid = 0;
  std::uint64_t start = 0;  ///< tells apart processes that had the same pid; 0: unknown

  static ProcessIdentity of_this_process();
};

/// Whether `other` is known to have ended. False for a process that lives or is stopped, and for
/// one of another machine or container, of which nothing can be known.
bool is_dead(const ProcessIdentity& other, const ProcessIdentity& self);

}  // namespace kiln::cache
