// Ranks over MPI: non-blocking collectives, tested until they are done or time is up. Beside them,
// on a communicator of its own, small messages tell of aborts and answer roll calls.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include <mpi.h>

#include "runtime/transport/groups.hpp"
#include "runtime/transport/mpi_plugin.hpp"

namespace kiln {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTag = 1;
constexpr auto kRollCall = std::chrono::milliseconds(500);

struct Note {
  enum Kind : std::int32_t { aborted, roll_call, here };
  Kind kind = here;
  RankFailure::Kind why = RankFailure::Kind::aborted;
  std::int32_t named = 0;
  std::int32_t ranks[8] = {};
  char text[208] = {};
};
static_assert(sizeof(Note) == 252);

std::string words(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "MPI error";
  return {text, static_cast<std::size_t>(length)};
}

/// MPI in this process, shared by all ends, parts included. If it was started here, the last end
/// shuts it down, unless one has failed: requests are still open then.
class Process {
 public:
  static Process& get() {
    static auto* const process = new Process;  // ends may be destroyed after all statics
    return *process;
  }

  /// Empty, or why there is no MPI.
  std::string start() {
    const std::lock_guard lock(mutex_);
    int there = 0;
    MPI_Finalized(&there);
    if (there)
      return "MPI_Finalize has been called, and a process can start MPI only once: keep a "
             "communicator while MPI is needed, or call MPI_Init before the first is opened";
    MPI_Initialized(&there);
    if (there) return {};
    int level = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
      return "MPI_Init_thread failed";
    started_ = true;
    return {};
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
  }
  void join() {
    const std::lock_guard lock(mutex_);
    ++ends_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (--ends_ == 0 && started_ && !failed_ && !finalized) MPI_Finalize();
  }

 private:
  std::mutex mutex_;
  bool started_ = false, failed_ = false;
  std::size_t ends_ = 0;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(MPI_Comm data, MPI_Comm control) : data_(data), control_(control) {
    Process::get().join();
    MPI_Comm_rank(data_, &rank_);
    MPI_Comm_size(data_, &size_);
    MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
    present_.resize(static_cast<std::size_t>(size_));
  }

  /// A broken end frees nothing: freeing is collective, and requests still use buffers.
  ~MpiCommunicator() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (broken_) {
      Process::get().fail();
    } else if (!finalized) {
      for (Sent& s : sent_)
        for (MPI_Request& r : s.requests) MPI_Wait(&r, MPI_STATUS_IGNORE);
      MPI_Comm_free(&data_);
      MPI_Comm_free(&control_);
    }
    Process::get().leave();
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 Deadline deadline) override {
    auto* buffer = new Buffer{{mine.begin(), mine.end()}, std::vector<std::byte>(all.size())};
    const int count = static_cast<int>(std::min<std::size_t>(mine.size(), INT_MAX));
    return call(
        "MPI_Iallgather", buffer, deadline, mine.size(),
        [&](MPI_Request* request) {
          return MPI_Iallgather(buffer->in.data(), count, MPI_BYTE, buffer->out.data(), count,
                                MPI_BYTE, data_, request);
        },
        [&] { std::copy(buffer->out.begin(), buffer->out.end(), all.begin()); });
  }

  Failure reduce(std::span<float> values, Reduction op, Deadline deadline) override {
    const auto bytes = std::as_bytes(values);
    auto* buffer = new Buffer{{bytes.begin(), bytes.end()}, std::vector<std::byte>(bytes.size())};
    const int count = static_cast<int>(std::min<std::size_t>(values.size(), INT_MAX));
    return call(
        "MPI_Iallreduce", buffer, deadline, values.size(),
        [&](MPI_Request* request) {
          return MPI_Iallreduce(buffer->in.data(), buffer->out.data(), count, MPI_FLOAT,
                                op == Reduction::max ? MPI_MAX : MPI_SUM, data_, request);
        },
        [&] {
          std::memcpy(values.data(), buffer->out.data(), buffer->out.size());
          if (op == Reduction::mean)
            for (float& v : values) v /= static_cast<float>(size_);
        });
  }

  Failure broadcast(std::span<std::byte> bytes, int root, Deadline deadline) override {
    auto* buffer = new Buffer{{bytes.begin(), bytes.end()}, {}};
    const int count = static_cast<int>(std::min<std::size_t>(bytes.size(), INT_MAX));
    return call(
        "MPI_Ibcast", buffer, deadline, bytes.size(),
        [&](MPI_Request* request) {
          return MPI_Ibcast(buffer->in.data(), count, MPI_BYTE, root, data_, request);
        },
        [&] { std::copy(buffer->in.begin(), buffer->in.end(), bytes.begin()); });
  }

  /// The others hear of it at once only where this thread may call MPI.
  void abort(const RankFailure& why) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      if (!broken_) broken_ = why;
      if (told_ || !thread_obstacle().empty()) return;
      told_ = true;
      Note note;
      note.kind = Note::aborted;
      if (!why.ranks.empty()) note.why = why.kind;
      std::vector<int> ranks = why.ranks.empty() ? std::vector{rank_} : why.ranks;
      note.named = static_cast<std::int32_t>(std::min<std::size_t>(ranks.size(), 8));
      std::copy_n(ranks.begin(), note.named, note.ranks);
      std::strncpy(note.text, why.text.c_str(), sizeof note.text - 1);
      send_to_all(note);
    } catch (...) {  // no memory: the others' deadlines remain
    }
  }

  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
    // MPI has no split with a deadline: first make sure that all ranks are there.
    std::vector<int> groups(static_cast<std::size_t>(size_));
    if (auto failure = gather(std::as_bytes(std::span(&group, 1)),
                              std::as_writable_bytes(std::span(groups)), deadline))
      return failure;
    if (auto obstacle = runtime::obstacle_of(groups)) return obstacle;
    MPI_Comm data = MPI_COMM_NULL, control = MPI_COMM_NULL;
    int code = MPI_Comm_split(data_, group, rank_, &data);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(data, &control);
    if (code != MPI_SUCCESS) return broken_ = system("MPI_Comm_split", code);
    part = std::make_unique<MpiCommunicator>(data, control);
    return {};
  }

 private:
  struct Buffer {  // outlives a request that is given up and may still use it
    std::vector<std::byte> in, out;
  };
  struct Sent {
    Note note;
    std::vector<MPI_Request> requests;
  };

  /// Why this thread may not call MPI; empty: it may.
  static std::string thread_obstacle() {
    int level = 0, started_it = 0;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&started_it);
    if (level >= MPI_THREAD_SERIALIZED || started_it) return {};
    return "MPI was started for one thread, and this is another one: start it with "
           "MPI_THREAD_MULTIPLE, or ask the ranks on the thread that started it";
  }

  RankFailure system(const char* call, int code) const {
    return {RankFailure::Kind::system, {rank_}, std::string(call) + ": " + words(code)};
  }

  template <class Start, class Done>
  Failure call(const char* name, Buffer* buffer, Deadline deadline, std::size_t count, Start start,
               Done done) {
    std::unique_ptr<Buffer> owner(buffer);
    std::unique_lock lock(mutex_);
    if (!broken_)
      if (std::string obstacle = thread_obstacle(); !obstacle.empty())
        return broken_ = RankFailure{RankFailure::Kind::system, {rank_}, std::move(obstacle)};
    if (!broken_) listen();
    if (broken_) return broken_;
    if (count > INT_MAX)
      return broken_ = RankFailure{RankFailure::Kind::system, {rank_}, "too large for one call"};
    if (Clock::now() >= deadline)  // this process was stopped: the others have given up on it
      return broken_ = RankFailure{RankFailure::Kind::timeout,
                                   {rank_},
                                   std::string("it arrived too late for ") + name};
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = start(&request);
    if (code == MPI_SUCCESS && !wait(name, request, deadline, lock)) {
      done();
      return {};
    }
    (void)owner.release();  // NOLINT: see Buffer
    if (code != MPI_SUCCESS) broken_ = system(name, code);
    return broken_;
  }

  /// Nothing: the request is done. `lock` is open while this thread sleeps, for abort().
  Failure wait(const char* name, MPI_Request& request, Deadline deadline,
               std::unique_lock<std::mutex>& lock) {
    std::optional<Deadline> roll_call;
    for (int turn = 0;; ++turn) {
      int done = 0;
      const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) return broken_ = system(name, code);
      if (done) return {};
      listen();
      if (broken_) return broken_;
      const auto now = Clock::now();
      if (!roll_call && now >= deadline) {
        std::fill(present_.begin(), present_.end(), 0);
        present_[static_cast<std::size_t>(rank_)] = 1;
        Note note;
        note.kind = Note::roll_call;
        send_to_all(note);
        roll_call = now + kRollCall;
      } else if (roll_call && now >= *roll_call) {
        return broken_ = RankFailure{RankFailure::Kind::timeout, absent(),
                                     std::string(name) + " was not joined in time"};
      }
      lock.unlock();
      if (turn > 100)
        std::this_thread::sleep_for(std::chrono::microseconds(turn > 2000 ? 500 : 50));
      lock.lock();
    }
  }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (int r = 0; r < size_; ++r)
      if (!present_[static_cast<std::size_t>(r)]) ranks.push_back(r);
    return ranks;
  }

  void listen() {
    for (;;) {
      int there = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, kTag, control_, &there, &status) != MPI_SUCCESS || !there)
        return;
      Note note;
      if (MPI_Recv(&note, sizeof note, MPI_BYTE, status.MPI_SOURCE, kTag, control_,
                   MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return;
      if (note.kind == Note::aborted) {
        if (broken_) continue;
        note.text[sizeof note.text - 1] = '\0';
        broken_ = RankFailure{note.why, {}, note.text};
        for (int i = 0; i < std::clamp(note.named, 0, 8); ++i)
          broken_->ranks.push_back(note.ranks[i]);
      } else if (note.kind == Note::roll_call) {
        Note answer;
        send(answer, {status.MPI_SOURCE});
      } else {
        present_[static_cast<std::size_t>(status.MPI_SOURCE)] = 1;
      }
    }
  }

  void send_to_all(const Note& note) {
    std::vector<int> others;
    for (int r = 0; r < size_; ++r)
      if (r != rank_) others.push_back(r);
    send(note, others);
  }

  void send(const Note& note, const std::vector<int>& to) {
    sent_.remove_if([](Sent& s) {
      int all = 0;
      return MPI_Testall(static_cast<int>(s.requests.size()), s.requests.data(), &all,
                         MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
             all;
    });
    Sent& s = sent_.emplace_back(Sent{note, std::vector<MPI_Request>(to.size(), MPI_REQUEST_NULL)});
    for (std::size_t i = 0; i < to.size(); ++i)
      MPI_Isend(&s.note, sizeof s.note, MPI_BYTE, to[i], kTag, control_, &s.requests[i]);
  }

  MPI_Comm data_, control_;
  int rank_ = 0, size_ = 1;
  std::mutex mutex_;  ///< of what is below
  Failure broken_;
  bool told_ = false;
  std::vector<char> present_;
  std::list<Sent> sent_;
};

/// A copy of everyone's communicator; nothing when some did not come in time.
bool copy_world(MPI_Comm& copy, Deadline deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Comm_idup(MPI_COMM_WORLD, &copy, &request) != MPI_SUCCESS) return false;
  for (int done = 0;;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

}  // namespace kiln

extern "C" {

__attribute__((visibility("default"))) int kiln_mpi_plugin_version() {
  return kKilnMpiPluginVersion;
}

__attribute__((visibility("default"))) kiln::Communicator* kiln_mpi_open(
    const kiln::Deadline& deadline, std::string& error) try {
  kiln::Process& process = kiln::Process::get();
  error = process.start();
  if (!error.empty()) return nullptr;
  // A copy that is no longer waited for may still complete, so the handles are not freed.
  auto* copies = new MPI_Comm[2]{MPI_COMM_NULL, MPI_COMM_NULL};
  for (int i = 0; i < 2; ++i)
    if (!kiln::copy_world(copies[i], deadline)) {
      process.fail();
      error = "not every rank arrived in time to copy MPI_COMM_WORLD";
      return nullptr;
    }
  auto* communicator = new kiln::MpiCommunicator(copies[0], copies[1]);
  delete[] copies;
  return communicator;
} catch (const std::exception& e) {
  error = e.what();
  return nullptr;
}
}
