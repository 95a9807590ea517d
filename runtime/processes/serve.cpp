#include "runtime/processes/serve.hpp"

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/processes/frame.hpp"

namespace kiln::runtime {

namespace {

constexpr int kChannel = 0;
constexpr int kNotForUse = 64, kBadMessage = 65;  // exit codes
constexpr std::uint64_t kMostThreads = 256;

/// A crash of this process is an ordinary outcome for its parent, so it leaves no core file. The
/// signal ends this process with its parent where the end of the channel does not: a fork of the
/// parent may still have the channel open.
bool tie_to(long parent) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  return ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == parent;
}

std::uint64_t resident_bytes() {
  unsigned long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%*u %lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return std::uint64_t{pages} * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// Sends frames whole.
class Sender {
 public:
  void send(FrameKind kind, std::uint64_t id, std::span<const std::byte> payload) {
    std::vector<std::byte> bytes;
    put_frame(bytes, kind, id, payload);
    const std::lock_guard lock(mutex_);
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t count =
          ::send(kChannel, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count >= 0)
        sent += static_cast<std::size_t>(count);
      else if (errno != EINTR)
        ::_exit(0);  // the parent is gone
    }
  }

 private:
  std::mutex mutex_;
};

class Crew {
 public:
  Crew(const Service& service, Sender& sender) : service_(service), sender_(sender) {}

  void grow_to(std::uint64_t threads) {
    while (threads_.size() < threads) threads_.emplace_back([this] { work(); });
  }
  void submit(Frame request) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(request));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !waiting_.empty(); });
      const Frame request = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      const std::vector<std::byte> answer = service_.answer(request.payload);
      sender_.send(FrameKind::answer, request.id,
                   FieldWriter().integer(resident_bytes()).bytes(answer).finish());
    }
  }

  const Service& service_;
  Sender& sender_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> waiting_;
  std::vector<std::thread> threads_;  // end with the process
};

void take(Frame frame, const Service& service, Sender& sender, Crew& crew) {
  if (frame.kind == FrameKind::request) return crew.submit(std::move(frame));
  if (frame.kind != FrameKind::setup) throw BrokenFrame("a message that only a process sends");
  FieldReader fields(frame.payload);
  const std::uint64_t threads = fields.integer();
  if (threads == 0 || threads > kMostThreads) throw BrokenFrame("an impossible number of threads");
  const auto setup = fields.bytes();
  fields.finish();
  sender.send(FrameKind::hello, frame.id, service.begin(setup));
  crew.grow_to(threads);
}

}  // namespace

int serve(int argument_count, char** arguments, const Service& service) {
  if (argument_count != 2 || !tie_to(std::atol(arguments[1]))) {
    std::fprintf(stderr, "%s is started by programs that use Kiln; it cannot be run by hand\n",
                 argument_count > 0 ? arguments[0] : "this program");
    return kNotForUse;
  }
  Sender sender;
  Crew crew(service, sender);
  try {
    FrameReader reader;
    std::vector<std::byte> buffer(std::size_t{1} << 16);
    for (;;) {
      const ssize_t count = ::recv(kChannel, buffer.data(), buffer.size(), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) ::_exit(0);
      reader.add(std::span(buffer).first(static_cast<std::size_t>(count)));
      while (auto frame = reader.next()) take(*std::move(frame), service, sender, crew);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(kBadMessage);
  }
}

}  // namespace kiln::runtime
