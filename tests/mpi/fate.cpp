#include "fate.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

#include <sys/syscall.h>
#include <unistd.h>

namespace fate {

namespace {

std::atomic<bool> dies{false};
std::string full_folder;  // set before there is anything to race with
std::atomic<bool> full{false};

std::string path_of(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length < 0 ? "" : std::string(path, static_cast<std::size_t>(length));
}

}  // namespace

void strike(Blow blow) {
  if (blow == Blow::kill) ::kill(::getpid(), SIGKILL);
  if (blow == Blow::stop) ::kill(::getpid(), SIGSTOP);  // until someone lets it go on
}

void die_when_saving() { dies = true; }

void fill_disk(const std::string& folder) {
  full_folder = folder;
  full = true;
}

}  // namespace fate

// The library's own calls come here first: the program's symbols go before those of libc.
extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  if (fate::full && fate::path_of(fd).starts_with(fate::full_folder)) {
    errno = ENOSPC;
    return -1;
  }
  return ::syscall(SYS_write, fd, data, size);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  if (fate::dies && fate::path_of(to_folder).find("/records") != std::string::npos)
    fate::strike(fate::Blow::kill);
  return static_cast<int>(::syscall(SYS_renameat, from_folder, from, to_folder, to));
}
}
