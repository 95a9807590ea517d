// The grammar of the files; each line ends with \n, numbers but ranks and sizes are hexadecimal:
//   FILE.r:  kiln-rank-1 JOB SIZE RANK NUMBER SEEN / PROCESS / end CHECK
//   FILE:    kiln-meeting-1 JOB SIZE NUMBER STATE PAYLOAD / one NUMBER SEEN per rank / WHY / end
//   CHECK
// JOB is a hash. SEEN is the number of the other side that was read last, or 0.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include <fcntl.h>

#include "cache/atomic_file.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/transport/rendezvous.hpp"

namespace kiln::runtime::ranks {

namespace {

namespace fs = std::filesystem;
using kiln::detail::format;
using Clock = std::chrono::steady_clock;

constexpr auto kGoodbyes = std::chrono::seconds(5);

std::uint64_t hash(std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (const unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}

struct RankFile {
  std::uint64_t job = 0;
  int size = 0, rank = 0;
  std::uint64_t number = 0, seen = 0;
  std::string process;
};

enum class State { waiting, complete, failed };

struct Announcement {
  std::uint64_t job = 0;
  int size = 0;
  std::uint64_t number = 0;
  State state = State::waiting;
  std::string payload;  ///< in hexadecimal
  struct Seat {
    std::uint64_t number = 0;
    bool seen = false;  ///< that rank has read this job's announcement
  };
  std::vector<Seat> seats;
  std::string why;
};

std::string sealed(const std::string& text) { return text + format("end {:016x}\n", hash(text)); }

std::string to_text(const RankFile& f) {
  return sealed(format("kiln-rank-1 {:x} {} {} {:x} {:x}\n{}\n", f.job, f.size, f.rank, f.number,
                       f.seen, f.process));
}

std::string to_text(const Announcement& a) {
  std::string text = format("kiln-meeting-1 {:x} {} {:x} {} {}\n", a.job, a.size, a.number,
                            static_cast<int>(a.state), a.payload);
  for (const auto& seat : a.seats) text += format("{:x} {}\n", seat.number, seat.seen ? 1 : 0);
  return sealed(text + a.why + "\n");
}

/// Nothing: there is no such file, or it is not whole.
std::optional<std::string> unsealed(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};  // a FIFO would be waited for
  std::ifstream file(path, std::ios::binary);
  constexpr std::size_t kMost = 64 << 20;
  std::string text;
  if (fs::file_size(path, error) > kMost || error) return {};
  text.assign(std::istreambuf_iterator<char>(file), {});
  const std::size_t end = text.rfind("end ");
  if (end == std::string::npos || text != sealed(text.substr(0, end))) return {};
  return text.substr(0, end);
}

std::optional<RankFile> read_rank(const fs::path& path) {
  const auto text = unsealed(path);
  if (!text) return {};
  std::istringstream in(*text);
  std::string magic;
  RankFile f;
  in >> magic >> std::hex >> f.job >> std::dec >> f.size >> f.rank >> std::hex >> f.number >>
      f.seen >> std::ws;
  std::getline(in, f.process);
  if (!in || magic != "kiln-rank-1") return {};
  return f;
}

std::optional<Announcement> read_announcement(const fs::path& path) {
  const auto text = unsealed(path);
  if (!text) return {};
  std::istringstream in(*text);
  std::string magic;
  int state = 0;
  Announcement a;
  in >> magic >> std::hex >> a.job >> std::dec >> a.size >> std::hex >> a.number >> std::dec >>
      state >> a.payload;
  if (!in || magic != "kiln-meeting-1" || a.size < 1 || a.size > 1 << 20 || state < 0 || state > 2)
    return {};
  a.state = static_cast<State>(state);
  a.seats.resize(static_cast<std::size_t>(a.size));
  for (auto& seat : a.seats) in >> std::hex >> seat.number >> seat.seen;
  if (!in) return {};
  in >> std::ws;
  std::getline(in, a.why);  // may be empty
  return a;
}

std::string to_hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += format("{:02x}", static_cast<unsigned>(b));
  return text;
}

bool from_hexadecimal(const std::string& text, std::span<std::byte> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  return true;
}

class FileMeeting {
 public:
  FileMeeting(const Meeting& meeting, const fs::path& file)
      : meeting_(meeting),
        file_(fs::absolute(file)),
        job_(hash(meeting.job)),
        number_(draw_number()),
        directory_(::open(file_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!directory_) refuse(cache::call_failure("open", file_.parent_path(), errno));
  }

  void announce(std::span<const std::byte> payload) {
    Announcement a;
    a.job = job_, a.size = meeting_.size, a.number = number_;
    a.payload = to_hexadecimal(payload);
    a.seats.resize(static_cast<std::size_t>(meeting_.size));
    a.seats[0] = {number_, true};
    publish(file_, to_text(a));
    for (Pause pause; a.state == State::waiting; pause()) {
      if (const auto now = read_announcement(file_); now && now->number != number_)
        fail(a,
             format("two processes announce themselves in {} as rank 0: {} and another",
                    file_.string(), this_process()),
             true);
      if (look_at_ranks(a)) {
        if (missing(a).empty()) a.state = State::complete;
        publish(file_, to_text(a));
      }
      if (a.state == State::waiting && Clock::now() >= meeting_.deadline)
        fail(a,
             format("{} did not arrive at {} within the deadline{}", name_ranks(missing(a)),
                    file_.string(), odd_),
             false);
    }
    const auto until = std::min(meeting_.deadline, Clock::now() + kGoodbyes);
    for (Pause pause; Clock::now() < until && !all_left(); pause()) {
    }
    remove(file_);
  }

  void receive(std::span<std::byte> payload) {
    RankFile mine{job_, meeting_.size, meeting_.rank, number_, 0, this_process()};
    const fs::path path = rank_file(meeting_.rank);
    publish(path, to_text(mine));
    std::string state = "rank 0 has not arrived";
    for (Pause pause;; pause()) {
      const auto there = read_rank(path);
      if (there && there->number != number_)
        throw UserError(format("two processes say in {} that they are rank {}: {} and {}",
                               path.string(), meeting_.rank, this_process(), there->process));
      const auto a = read_announcement(file_);
      const bool to_me = a && a->job == job_ && a->size == meeting_.size && answers(*a);
      // Rank 0 does not leave before it knows that all ranks have read what it says.
      const bool left = mine.seen != 0 && !a && !exists(file_);
      if ((to_me && a->state == State::complete && mine.seen == a->number) || left) break;
      if (a && a->state == State::failed && (to_me || a->number == mine.seen)) {
        remove(path);
        throw EnvironmentError(a->why);
      }
      if (to_me && mine.seen != a->number) {
        if (!from_hexadecimal(a->payload, payload))
          throw EnvironmentError(
              format("{} announces {} bytes, not {}: start all ranks with the "
                     "same build of Kiln",
                     file_.string(), a->payload.size() / 2, payload.size()));
        mine.seen = a->number;
        publish(path, to_text(mine));
      }
      if (to_me) {
        state = format("{} did not arrive", name_ranks(missing(*a)));
      } else if (a) {
        state = "the file belongs to an earlier or another job, and rank 0 has not answered";
      }
      if (Clock::now() >= meeting_.deadline) {
        remove(path);
        throw EnvironmentError(format("rank {} of {} waited at {} until the deadline: {}",
                                      meeting_.rank, meeting_.size, file_.string(), state));
      }
    }
    remove(path);
  }

 private:
  struct Pause {
    void operator()() {
      std::this_thread::sleep_for(length);
      length = std::min(length * 2, std::chrono::milliseconds(50));
    }
    std::chrono::milliseconds length{2};
  };

  fs::path rank_file(int rank) const { return file_.string() + "." + std::to_string(rank); }

  bool answers(const Announcement& a) const {
    return a.seats[static_cast<std::size_t>(meeting_.rank)].number == number_;
  }

  static std::vector<int> missing(const Announcement& a) {
    std::vector<int> ranks;
    for (int r = 0; r < a.size; ++r)
      if (!a.seats[static_cast<std::size_t>(r)].seen) ranks.push_back(r);
    return ranks;
  }

  /// Whether anything is new.
  bool look_at_ranks(Announcement& a) {
    bool changed = false;
    odd_.clear();
    for (int r = 1; r < meeting_.size; ++r) {
      const auto f = read_rank(rank_file(r));
      if (!f) continue;
      if (f->job != job_ || f->size != meeting_.size || f->rank != r) {
        odd_ += format("; {} belongs to another job or an earlier one", rank_file(r).string());
        continue;
      }
      Announcement::Seat& seat = a.seats[static_cast<std::size_t>(r)];
      const Announcement::Seat now{f->number, f->seen == number_};
      changed = changed || seat.number != now.number || seat.seen != now.seen;
      seat = now;
    }
    return changed;
  }

  bool all_left() const {
    for (int r = 1; r < meeting_.size; ++r)
      if (exists(rank_file(r))) return false;
    return true;
  }

  [[noreturn]] void fail(Announcement& a, const std::string& why, bool users) {
    a.state = State::failed;
    a.why = why;
    if (!users) publish(file_, to_text(a));  // else it is the other's
    if (users) throw UserError(why);
    throw EnvironmentError(why);
  }

  void publish(const fs::path& path, const std::string& text) {
    cache::AtomicFile file(files_, directory_.get(), path.filename());
    if (!file.write(std::as_bytes(std::span(text))) || !file.commit()) refuse(file.failure());
  }

  [[noreturn]] void refuse(const cache::Failure& failure) const {
    throw EnvironmentError(
        format("ranks cannot meet at {}: {}. {}", file_.string(), failure.what, failure.advice));
  }

  static bool exists(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
  }

  static void remove(const fs::path& path) {
    std::error_code ignored;
    fs::remove(path, ignored);
  }

  const Meeting& meeting_;
  const fs::path file_;
  const std::uint64_t job_, number_;
  cache::FileSystem files_;
  const cache::UniqueFd directory_;
  std::string odd_;
};

}  // namespace

void meet_over_file(const Meeting& meeting, const fs::path& file, std::span<std::byte> payload) {
  if (payload.size() > kLongestPayload)
    throw InternalError("the payload is too long for a rendezvous");
  if (meeting.size == 1) return;
  FileMeeting here(meeting, file);
  if (meeting.rank == 0)
    here.announce(payload);
  else
    here.receive(payload);
}

}  // namespace kiln::runtime::ranks
