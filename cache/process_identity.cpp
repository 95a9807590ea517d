#include "cache/process_identity.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>

#include <unistd.h>

namespace kiln::cache {
namespace {

struct ProcessState {
  char state = 0;  // 0: unknown
  int threads = 0;
  std::uint64_t start = 0;
};

ProcessState state_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // an iterator would throw when the process goes while it is read
  // The program's name is in brackets and may hold anything, brackets too.
  const auto name_end = text.rfind(')');
  ProcessState result;
  if (name_end == text.npos) return result;
  std::istringstream rest(text.substr(name_end + 1));
  rest >> result.state;
  constexpr int kState = 3, kThreads = 20, kStart = 22;  // fields of proc(5), from 1
  std::string skipped;
  for (int field = kState + 1; field < kThreads; ++field) rest >> skipped;
  rest >> result.threads;
  for (int field = kThreads + 1; field < kStart; ++field) rest >> skipped;
  rest >> result.start;
  return rest ? result : ProcessState{};
}

}  // namespace

ProcessIdentity ProcessIdentity::of_this_process() {
  ProcessIdentity self;
  std::array<char, 256> buffer{};
  if (::gethostname(buffer.data(), buffer.size() - 1) == 0) self.host = buffer.data();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> self.boot;
  buffer = {};
  if (::readlink("/proc/self/ns/pid", buffer.data(), buffer.size() - 1) > 0)
    self.pid_namespace = buffer.data();
  self.pid = ::getpid();
  self.start = state_of("self").start;
  return self;
}

bool is_dead(const ProcessIdentity& other, const ProcessIdentity& self) {
  if (other.boot.empty() || other.boot != self.boot || other.pid_namespace.empty() ||
      other.pid_namespace != self.pid_namespace || other.pid <= 0)
    return false;
  if (::kill(other.pid, 0) != 0 && errno == ESRCH) return true;
  const ProcessState now = state_of(std::to_string(other.pid));
  if (now.state == 0) return false;
  if (other.start != 0 && now.start != other.start) return true;
  // It has ended, but its parent has not waited for it. Threads may go on after the first one
  // ended.
  return (now.state == 'Z' || now.state == 'X') && now.threads <= 1;
}

}  // namespace kiln::cache
