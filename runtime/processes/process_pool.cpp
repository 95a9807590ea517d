#include "runtime/processes/process_pool.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/processes/child_process.hpp"
#include "runtime/processes/frame.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

namespace {

constexpr int kPauseWithoutMemory = 20;  ///< milliseconds

/// While it lives, threads are started with all signals blocked: the program's signals are for the
/// program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

struct ProcessPool::Job {
  std::uint64_t id = 0;
  std::vector<std::byte> request;
  bool again = false;   ///< a process has ended with it; the next one works on nothing else
  int interrupted = 0;  ///< how many have ended through no fault of it
  TimeLimit limit{};
  std::optional<Outcome> outcome{};
};

struct ProcessPool::Process {
  explicit Process(const PoolOptions& options)
      : child(options.executable, -1, options.background) {}

  ChildProcess child;
  FrameReader reader;
  std::vector<std::byte> to_send;
  std::vector<Job*> jobs;
  TimeLimit limit{};  ///< for its hello, or for being idle
  bool greeted = false;
  bool retiring = false;  ///< gets nothing more
  bool ending = false;    ///< neither does it answer

  bool taken_alone() const { return jobs.size() == 1 && jobs.front()->again; }
};

ProcessPool::ProcessPool(PoolOptions options) : options_(std::move(options)) {}

ProcessPool::~ProcessPool() {
  if (process_.is_forked()) {
    // In a fork of the program: the thread does not exist, and the processes belong to the parent.
    forget_thread(keeper_);
    for (auto& process : processes_) static_cast<void>(process.release());
    // Its destructor would wait for the threads that waited in the program.
    static_cast<void>(finished_.release());
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (keeper_.joinable()) {
    wake();
    keeper_.join();
  }
  if (wake_ >= 0) ::close(wake_);
}

std::vector<pid_t> ProcessPool::processes() const {
  if (process_.is_forked()) return {};
  const std::lock_guard lock(mutex_);
  std::vector<pid_t> ids;
  for (const auto& process : processes_) ids.push_back(process->child.id());
  return ids;
}

ProcessPool::Outcome ProcessPool::run(std::vector<std::byte> request) {
  if (process_.is_forked()) return Unusable{"this process is a fork of the one that made the pool"};
  if (request.size() > kMostPayload) return Unusable{"it is too long to be sent"};
  Job job{.request = std::move(request)};
  std::unique_lock lock(mutex_);
  try {
    begin_to_keep();
  } catch (const std::system_error& error) {
    return Unusable{error.what()};
  }
  job.id = next_id_++;
  waiting_.push_back(&job);
  wake();
  finished_->wait(lock, [&] { return job.outcome.has_value(); });
  return *std::move(job.outcome);
}

void ProcessPool::begin_to_keep() {
  if (keeper_.joinable()) return;
  if (wake_ < 0) wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd failed");
  const SignalsBlocked blocked;
  keeper_ = std::thread([this] { keep(); });
}

void ProcessPool::wake() const {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_, &one, sizeof one));  // fails only if it is awake already
}

void ProcessPool::finish(Job& job, Outcome outcome) {
  job.outcome = std::move(outcome);
  finished_->notify_all();
}

void ProcessPool::keep() {
  std::unique_lock lock(mutex_);
  std::vector<pollfd> watched;
  while (!stopping_) try {
      exchange_once(lock, watched);
    } catch (const std::bad_alloc&) {
      drop_all();
      lock.unlock();
      ::poll(nullptr, 0, kPauseWithoutMemory);
      lock.lock();
    }
  for (const auto& process : processes_) process->child.begin_end(ChildProcess::End::now);
  processes_.clear();  // on this thread, which has started them
}

/// Waits once for the processes, without the lock, and takes what they have sent.
void ProcessPool::exchange_once(std::unique_lock<std::mutex>& lock, std::vector<pollfd>& watched) {
  assign();
  watched.assign({{wake_, POLLIN, 0}});
  for (const auto& process : processes_) {
    const short sends = process->to_send.empty() ? 0 : POLLOUT;
    watched.push_back({process->child.channel(), static_cast<short>(POLLIN | sends), 0});
    watched.push_back({process->child.errors(), POLLIN, 0});
    watched.push_back({process->child.end_descriptor(), POLLIN, 0});
  }
  const int timeout = milliseconds_to_next_event();
  lock.unlock();
  ::poll(watched.data(), watched.size(), timeout);
  lock.lock();
  std::uint64_t count;
  static_cast<void>(!::read(wake_, &count, sizeof count));
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = *processes_[i];
    const bool is_over = watched[3 * i + 3].revents != 0;
    if (watched[3 * i + 2].revents) process.child.read_errors();
    if (watched[3 * i + 1].revents || is_over) exchange(process);
    // Another process may have the channel open as well, a fork of the program for example: then the
    // end of this one does not close it.
    if (is_over && !process.ending) lose(process, {}, false);
  }
  expire();
  let_go();
}

/// Where there is no memory: no process can be asked or told apart from another any more, so each
/// is ended, and all requests are given back. Takes no memory itself.
void ProcessPool::drop_all() noexcept {
  const auto give_back = [&](Job* job) {
    if (!job->outcome) job->outcome = Unusable{"no memory"};  // short enough for the string itself
  };
  for (const auto& process : processes_) {
    process->ending = true;
    process->child.begin_end(ChildProcess::End::now);
    std::ranges::for_each(process->jobs, give_back);
    process->jobs.clear();
  }
  std::ranges::for_each(waiting_, give_back);
  waiting_.clear();
  finished_->notify_all();
}

int ProcessPool::milliseconds_to_next_event() const {
  double seconds = 3600;
  for (const auto& process : processes_) {
    if (process->ending) {
      seconds = std::min(seconds, process->child.next_look().left());
      continue;
    }
    seconds = std::min(seconds, process->limit.left());
    for (const Job* job : process->jobs) seconds = std::min(seconds, job->limit.left());
  }
  return static_cast<int>(seconds * 1000) + 1;
}

void ProcessPool::assign() {
  while (!waiting_.empty() && assign(*waiting_.front())) waiting_.pop_front();
}

/// False if no process is free.
bool ProcessPool::assign(Job& job) {
  if (!unusable_.empty()) {
    finish(job, Unusable{unusable_});
    return true;
  }
  Process* best = nullptr;
  for (const auto& process : processes_) {
    if (process->retiring || process->ending || process->taken_alone()) continue;
    if (process->jobs.size() >= (job.again ? 1 : options_.threads)) continue;
    if (!best || process->jobs.size() > best->jobs.size()) best = process.get();
  }
  if (!best) {
    // What is killed may stay for a while, and takes nobody's place.
    const auto places = std::ranges::count_if(
        processes_, [](const auto& process) { return !process->child.killed(); });
    if (places >= std::max<std::ptrdiff_t>(1, options_.processes)) return false;
    std::string problem;
    best = start(problem);
    if (!best) {
      // A lack of processes or memory may pass.
      if (!processes_.empty()) return false;
      if (!has_been_used_) unusable_ = problem;
      finish(job, Unusable{problem});
      return true;
    }
  }
  try {
    best->jobs.reserve(best->jobs.size() + 1);
    put_frame(best->to_send, FrameKind::request, job.id, job.request);
  } catch (const std::exception& error) {  // no memory: nothing of it was put there
    finish(job, Unusable{error.what()});
    return true;
  }
  job.limit = {};
  if (best->greeted) {
    best->limit = {};
    job.limit = TimeLimit(options_.limit, Clock::now());
  }
  best->jobs.push_back(&job);
  return true;
}

ProcessPool::Process* ProcessPool::start(std::string& problem) {
  try {
    auto process = std::make_unique<Process>(options_);
    put_frame(process->to_send, FrameKind::setup, 0,
              FieldWriter().integer(options_.threads).bytes(options_.setup).finish());
    process->limit = TimeLimit(options_.start_limit, Clock::now());
    processes_.push_back(std::move(process));
    return processes_.back().get();
  } catch (const std::exception& error) {
    problem = error.what();
    return nullptr;
  }
}

void ProcessPool::exchange(Process& process) try {
  while (!process.to_send.empty()) {
    const ssize_t count = ::send(process.child.channel(), process.to_send.data(),
                                 process.to_send.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;  // full, or closed: then it cannot be read either
    process.to_send.erase(process.to_send.begin(), process.to_send.begin() + count);
  }
  std::byte buffer[std::size_t{1} << 16];
  while (!process.ending) {
    const ssize_t count = ::recv(process.child.channel(), buffer, sizeof buffer, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return lose(process, {}, false);
    process.reader.add(std::span(buffer).first(static_cast<std::size_t>(count)));
    take_answers(process);
  }
} catch (const std::exception& error) {
  lose(process, std::string("sent ") + error.what() + ", and was ended", true);
}

void ProcessPool::take_answers(Process& process) {
  for (std::optional<Frame> frame; !process.ending && (frame = process.reader.next());) {
    FieldReader fields(frame->payload);
    if (frame->kind == FrameKind::hello && !process.greeted) {
      if (const std::string why = options_.refuse ? options_.refuse(frame->payload) : "";
          !why.empty()) {
        give_up(why);
        lose(process, why, true);
        continue;
      }
      process.greeted = has_been_used_ = true;
      process.limit = {};
      for (Job* job : process.jobs) job->limit = TimeLimit(options_.limit, Clock::now());
      continue;
    }
    const auto job = std::find_if(process.jobs.begin(), process.jobs.end(),
                                  [&](const Job* j) { return j->id == frame->id; });
    if (frame->kind != FrameKind::answer || !process.greeted || job == process.jobs.end())
      throw BrokenFrame("what it was not asked for");
    process.retiring = fields.integer() > options_.resident_limit;
    const auto answer = fields.bytes();
    fields.finish();
    finish(**job, Answer(answer.begin(), answer.end()));
    process.jobs.erase(job);
    if (process.jobs.empty())
      process.limit =
          process.retiring ? TimeLimit::already_passed() : TimeLimit(options_.idle, Clock::now());
  }
}

/// Ends the process, without waiting for that. `why`: what it did wrong; empty: its end will say
/// so, and its requests wait for that.
void ProcessPool::lose(Process& process, const std::string& why, bool at_once) {
  process.ending = true;
  process.child.begin_end(at_once ? ChildProcess::End::now : ChildProcess::End::soon);
  if (why.empty()) return;
  process.child.read_errors();
  lose_jobs(process, why, false);
}

/// Takes leave of the processes that have ended by now.
void ProcessPool::let_go() {
  for (const auto& process : processes_)
    if (process->ending && process->child.has_ended())
      lose_jobs(*process, process->child.how_ended(), sent_by_others(process->child.ended_by()));
  std::erase_if(processes_,
                [](const auto& process) { return !process->child.how_ended().empty(); });
}

/// Deals with the requests of a process that does not answer them.
void ProcessPool::lose_jobs(Process& process, const std::string& how, bool blameless) {
  if (process.jobs.empty()) return;
  std::string reason = "the process that worked on it " + how;
  if (const std::string& words = process.child.last_words(); !words.empty())
    reason += "; its last words:\n" + words;
  if (!process.greeted && !has_been_used_)
    give_up(options_.executable.string() + " cannot be used: " + reason);
  // In the order of the requests.
  for (auto job = process.jobs.rbegin(); job != process.jobs.rend(); ++job) {
    if (unusable_.empty())
      lose(**job, blameless || !process.greeted, reason);
    else
      finish(**job, Unusable{unusable_});
  }
  process.jobs.clear();
}

void ProcessPool::lose(Job& job, bool blameless, const std::string& reason) {
  if (blameless && ++job.interrupted >= kAttempts) return finish(job, Interrupted{reason});
  if (!blameless && job.again) return finish(job, Lost{reason});
  job.again = true;
  waiting_.push_front(&job);
}

void ProcessPool::expire() {
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    Process& process = *processes_[i];
    if (process.ending) continue;
    if (process.limit.passed()) {
      lose(process, detail::format("said nothing within {} s and was ended", options_.start_limit),
           !process.greeted);
      continue;
    }
    const auto late = std::stable_partition(process.jobs.begin(), process.jobs.end(),
                                            [](const Job* job) { return !job->limit.passed(); });
    if (late == process.jobs.end()) continue;
    for (auto job = late; job != process.jobs.end(); ++job)
      finish(**job, Lost{detail::format("it took more than {} s, and the process that worked on it "
                                        "was ended",
                                        options_.limit)});
    process.jobs.erase(late, process.jobs.end());
    // The other requests did nothing wrong.
    for (Job* job : process.jobs) waiting_.push_front(job);
    process.jobs.clear();
    lose(process, {}, true);
  }
}

void ProcessPool::give_up(const std::string& reason) {
  if (unusable_.empty()) unusable_ = reason;
}

}  // namespace kiln::runtime
