#include "runtime/worker/worker_process.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

namespace {

/// Seconds between two looks at a worker's memory. A process takes some 200 MB meanwhile at most.
constexpr double kWatchEvery = 0.05;

}  // namespace

WorkerProcess::WorkerProcess(const std::filesystem::path& executable,
                             std::span<const std::byte> setup, int data, const TimeLimit& limit)
    : child_(executable, data) {
  constexpr std::uint64_t kThreads = 1;
  greeting_ = exchange(FrameKind::setup, FieldWriter().integer(kThreads).bytes(setup).finish(),
                       limit, nullptr)
                  .payload;
  at_first_ = child_.resident_bytes();
}

std::vector<std::byte> WorkerProcess::ask(std::span<const std::byte> request,
                                          const TimeLimit& limit, const Late* late) {
  ++asked_;
  const Frame frame = exchange(FrameKind::request, request, limit, late);
  try {
    FieldReader fields(frame.payload);
    fields.integer();  // its memory, which is watched all the time
    const auto answer = fields.bytes();
    fields.finish();
    return {answer.begin(), answer.end()};
  } catch (const BrokenFrame& broken) {
    lose(ChildProcess::End::now, std::string("sent ") + broken.what());
  }
}

Frame WorkerProcess::exchange(FrameKind kind, std::span<const std::byte> payload, TimeLimit limit,
                              const Late* late) {
  std::vector<std::byte> bytes;
  put_frame(bytes, kind, asked_, payload);
  const FrameKind awaited = kind == FrameKind::setup ? FrameKind::hello : FrameKind::answer;
  std::size_t sent = 0;
  bool is_over = false;
  for (;;) {
    while (sent < bytes.size()) {
      const ssize_t count =
          ::send(child_.channel(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) break;  // full, or closed: then it cannot be read either
      sent += static_cast<std::size_t>(count);
    }
    if (auto frame = read()) {
      if (frame->kind == awaited && frame->id == asked_) return *std::move(frame);
      lose(ChildProcess::End::now, "sent what it was not asked for");
    }
    if (is_over) lose(ChildProcess::End::soon);  // what it had sent before has been read
    if (limit.passed() && late) {
      const Late& now = *std::exchange(late, nullptr);
      now.tell();
      limit = TimeLimit(now.seconds, Clock::now());
    }
    if (limit.passed()) {
      const bool stopped = child_.stopped();
      lose(ChildProcess::End::now, stopped ? "was stopped, and ended" : "was ended",
           stopped ? WorkerEnd::How::stopped : WorkerEnd::How::late);
    }
    if (const std::uint64_t now = most_ ? child_.resident_bytes() : 0; now > most_)
      lose(ChildProcess::End::now,
           detail::format("was ended: it had {} MiB of memory, and may have {}", now >> 20,
                          most_ >> 20),
           WorkerEnd::How::too_large);
    const short events = sent < bytes.size() ? POLLIN | POLLOUT : POLLIN;
    // Another process may have the channel open as well, a fork of the program for example: then the
    // worker's end does not close it.
    pollfd watched[] = {{child_.channel(), events, 0},
                        {child_.errors(), POLLIN, 0},
                        {child_.end_descriptor(), POLLIN, 0}};
    const double wait = std::min(limit.left(), kWatchEvery);
    ::poll(watched, std::size(watched), static_cast<int>(wait * 1000) + 1);
    if (watched[1].revents) child_.read_errors();
    is_over = watched[2].revents != 0;
  }
}

/// The next frame, if it is there.
std::optional<Frame> WorkerProcess::read() {
  std::byte buffer[std::size_t{1} << 16];
  try {
    for (;;) {
      if (auto frame = reader_.next()) return frame;
      const ssize_t count = ::recv(child_.channel(), buffer, sizeof buffer, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return {};
      if (count <= 0) break;
      reader_.add(std::span(buffer).first(static_cast<std::size_t>(count)));
    }
  } catch (const BrokenFrame& broken) {
    lose(ChildProcess::End::now, std::string("sent ") + broken.what());
  }
  lose(ChildProcess::End::soon);
}

void WorkerProcess::lose(ChildProcess::End how, const std::string& why, WorkerEnd::How as) {
  const std::string end = child_.end(how);
  if (how == ChildProcess::End::soon && sent_by_others(child_.ended_by()))
    as = WorkerEnd::How::killed;
  std::string words = why.empty() ? end : why;
  if (const std::string& last = child_.last_words(); !last.empty())
    words += "; its last words: " + last.substr(0, last.find_last_not_of(" \n") + 1);
  throw WorkerEnd(as, words);
}

}  // namespace kiln::runtime
