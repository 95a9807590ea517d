// Rank 0 seats each rank that connects, tells waiting ranks which others they wait for, and once
// all are there gives everyone the payload and waits for their word that they have it.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <boost/asio.hpp>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/transport/rendezvous.hpp"

namespace kiln::runtime::ranks {

namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using kiln::detail::format;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kHelloWithin = 5s;  ///< a connection must have said which rank it is
constexpr auto kSilence = 5s;      ///< a waiting client hears of rank 0 more often than this
constexpr auto kReportEvery = 200ms;
constexpr auto kRetryAfter = 50ms;
constexpr auto kLastWord = 400ms;      ///< a client waits for rank 0's verdict after its deadline
constexpr auto kTakenPortWithin = 3s;  ///< an earlier job may be about to leave it
constexpr std::size_t kMostText = 1000;
constexpr std::size_t kMostStrangers = 1024;  ///< connected and not seated

// Both ends are Kiln on machines of one kind: a different byte order is refused as another program.
constexpr std::array<char, 8> kMagic{'K', 'I', 'L', 'N', 'm', 'e', 't', '1'};

struct Hello {
  std::array<char, 8> magic = kMagic;
  std::int32_t rank = 0, size = 0;
  std::uint64_t number = 0;  ///< a process keeps it when it connects again
  std::uint64_t payload_bytes = 0;
  std::array<char, 256> job{};
  std::array<char, 96> process{};
};

enum class Word : std::uint32_t {
  waiting = 1,  ///< the text says for which ranks
  go,           ///< the payload follows
  not_you,      ///< this is another job's rank 0
  too_late,     ///< rank 0's deadline has passed; the text says which ranks did not come
  give_up       ///< the job cannot start as it is; the text says why
};

struct Head {
  std::array<char, 8> magic = kMagic;
  Word word = Word::waiting;
  std::uint32_t bytes = 0;
};

template <std::size_t N>
void put(std::array<char, N>& field, const std::string& text) {
  text.copy(field.data(), N - 1);
}
template <std::size_t N>
std::string get(const std::array<char, N>& field) {
  std::string text(field.data(), std::find(field.begin(), field.end(), '\0'));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

template <class T>
auto raw(T& value) {
  return asio::buffer(&value, sizeof value);
}

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);

/// Closes a socket unless it is told in time that all is well.
class Watch {
 public:
  Watch(tcp::socket& socket, Clock::duration within) : timer_(socket.get_executor(), within) {
    timer_.async_wait([&socket, watching = watching_](error_code) {
      error_code ignored;
      if (*watching) socket.close(ignored);
    });
  }
  ~Watch() { *watching_ = false; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  // A timer that has expired, but whose handler has not run yet, cannot be cancelled any more.
  std::shared_ptr<bool> watching_ = std::make_shared<bool>(true);
  asio::steady_timer timer_;
};

awaitable<bool> say(tcp::socket& socket, Word word, std::span<const std::byte> body) {
  Head head;
  head.word = word;
  head.bytes = static_cast<std::uint32_t>(body.size());
  std::vector<std::byte> frame(sizeof head + body.size());
  std::memcpy(frame.data(), &head, sizeof head);
  std::copy(body.begin(), body.end(), frame.begin() + sizeof head);
  const auto [error, bytes] = co_await asio::async_write(socket, asio::buffer(frame), kResult);
  co_return !error && bytes == frame.size();
}

awaitable<bool> say(tcp::socket& socket, Word word, std::string text) {
  text.resize(std::min(text.size(), kMostText));
  co_return co_await say(socket, word, std::as_bytes(std::span(text)));
}

struct Guest {
  explicit Guest(tcp::socket s) : socket(std::move(s)) {}
  tcp::socket socket;
  Hello hello;
  bool busy = false;  ///< something is being written
  bool has_payload = false;
};

class RankZero {
 public:
  RankZero(asio::io_context& io, const Meeting& meeting, std::span<const std::byte> payload,
           tcp::acceptor acceptor)
      : io_(io), meeting_(meeting), payload_(payload), acceptor_(std::move(acceptor)) {}

  /// @throws what went wrong
  void run() {
    asio::co_spawn(io_, listen(), asio::detached);
    asio::co_spawn(io_, report(), asio::detached);
    io_.run_until(meeting_.deadline);
    const std::vector<int> missing = absent();
    if (reason_.empty() && done_) return;
    const bool twice = !reason_.empty();
    if (!twice) {
      reason_ = missing.empty() ? format("{} did not take rank 0's answer", name_ranks(without()))
                                : describe(missing);
      reason_ += format(" within the deadline; {} of {} ranks met at port {} of {}{}",
                        meeting_.size - static_cast<int>(missing.size()), meeting_.size, port(),
                        this_process(), strangers());
    }
    tell_all(twice ? Word::give_up : Word::too_late);
    if (twice) throw UserError(reason_);
    throw EnvironmentError(reason_);
  }

 private:
  unsigned port() const {
    error_code ignored;
    return acceptor_.local_endpoint(ignored).port();
  }

  std::string strangers() const {
    std::string text;
    if (turned_away_ > 0) text = format("; {} other connections were turned away", turned_away_);
    if (!other_job_.empty()) text += "; one was of " + other_job_;
    return text;
  }

  std::string describe(const std::vector<int>& missing) const {
    std::vector<int> never, left;
    for (const int r : missing) (came_.contains(r) ? left : never).push_back(r);
    std::string text = never.empty() ? "" : format("{} did not arrive", name_ranks(never));
    if (!left.empty())
      text += format("{}{} arrived and left", never.empty() ? "" : ", ", name_ranks(left));
    return text;
  }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (int r = 1; r < meeting_.size; ++r)
      if (!seats_.contains(r)) ranks.push_back(r);
    return ranks;
  }
  std::vector<int> without() const {
    std::vector<int> ranks;
    for (const auto& [rank, guest] : seats_)
      if (!guest->has_payload) ranks.push_back(rank);
    return ranks;
  }

  awaitable<void> listen() {
    for (;;) {
      auto [error, socket] = co_await acceptor_.async_accept(kResult);
      if (error == asio::error::operation_aborted) co_return;
      if (error || strangers_ >= kMostStrangers) {  // out of descriptors, say: some will leave
        socket.close(error);
        asio::steady_timer pause(io_, kRetryAfter);
        co_await pause.async_wait(kResult);
        continue;
      }
      asio::co_spawn(io_, welcome(std::make_shared<Guest>(std::move(socket))), asio::detached);
    }
  }

  awaitable<void> welcome(std::shared_ptr<Guest> guest) {
    ++strangers_;
    bool seated = false;
    {
      const Watch watch(guest->socket, kHelloWithin);
      Hello& hello = guest->hello;
      const auto [error, bytes] = co_await asio::async_read(guest->socket, raw(hello), kResult);
      if (!error && hello.magic == kMagic) seated = co_await seat(guest);
    }
    --strangers_;
    if (!seated) {
      ++turned_away_;
      co_return;
    }
    // Its next message says that it has the payload. If it leaves instead, it will not get it.
    char word = 0;
    const auto [error, bytes] = co_await asio::async_read(guest->socket, raw(word), kResult);
    const auto at = seats_.find(guest->hello.rank);
    if (at == seats_.end() || at->second != guest) co_return;
    if (error && !guest->has_payload) {
      seats_.erase(at);
      complete_ = false;
      co_return;
    }
    guest->has_payload = true;
    done_ = absent().empty() && without().empty();
    if (done_) io_.stop();
  }

  awaitable<bool> seat(std::shared_ptr<Guest> guest) {
    const Hello& hello = guest->hello;
    const std::string job = get(hello.job), process = get(hello.process);
    Hello mine;
    put(mine.job, meeting_.job);
    if (hello.job != mine.job) {
      other_job_ = job;
      co_await say(guest->socket, Word::not_you, meeting_.job);
      co_return false;
    }
    if (hello.rank == 0) {
      give_up(format("two processes say that they are rank 0: {} and {}", this_process(), process));
    } else if (hello.size != meeting_.size || hello.payload_bytes != payload_.size()) {
      give_up(format(
          "rank {} ({}) expects {} ranks and {} bytes, rank 0 {} and {}: start all ranks "
          "alike and with the same build of Kiln",
          hello.rank, process, hello.size, hello.payload_bytes, meeting_.size, payload_.size()));
    } else if (hello.rank < 0 || hello.rank >= meeting_.size) {
      co_return false;
    } else {
      const auto at = seats_.find(hello.rank);
      if (at != seats_.end() && at->second->hello.number != hello.number)
        give_up(format("two processes say that they are rank {}: {} and {}", hello.rank,
                       get(at->second->hello.process), process));
      else
        seats_[hello.rank] = guest, came_.insert(hello.rank);
    }
    if (!reason_.empty()) {
      co_await say(guest->socket, Word::give_up, reason_);
      co_return false;
    }
    if (absent().empty()) {
      complete_ = true;
      for (auto& [rank, other] : seats_) asio::co_spawn(io_, give(other), asio::detached);
    }
    co_return true;
  }

  void give_up(std::string why) {
    if (reason_.empty()) reason_ = std::move(why);
    // The one whose connection led here is told first.
    asio::post(io_, [this] { asio::post(io_, [this] { io_.stop(); }); });
  }

  awaitable<void> give(std::shared_ptr<Guest> guest) {
    while (guest->busy) {
      asio::steady_timer pause(io_, 1ms);
      co_await pause.async_wait(kResult);
    }
    guest->busy = true;
    co_await say(guest->socket, Word::go, payload_);
    guest->busy = false;
  }

  awaitable<void> report() {
    for (;;) {
      asio::steady_timer pause(io_, kReportEvery);
      co_await pause.async_wait(kResult);
      if (complete_) continue;
      const std::string text = describe(absent());
      for (auto& [rank, guest] : seats_)
        if (!guest->busy) asio::co_spawn(io_, report_to(guest, text), asio::detached);
    }
  }
  awaitable<void> report_to(std::shared_ptr<Guest> guest, std::string text) {
    guest->busy = true;
    co_await say(guest->socket, Word::waiting, std::move(text));
    guest->busy = false;
  }

  void tell_all(Word word) {
    io_.restart();
    for (auto& [rank, guest] : seats_)
      asio::co_spawn(io_, say(guest->socket, word, reason_), asio::detached);
    io_.run_for(200ms);
  }

  asio::io_context& io_;
  const Meeting& meeting_;
  const std::span<const std::byte> payload_;
  tcp::acceptor acceptor_;
  std::map<int, std::shared_ptr<Guest>> seats_;
  std::set<int> came_;
  std::size_t strangers_ = 0, turned_away_ = 0;
  std::string other_job_, reason_;
  bool complete_ = false, done_ = false;
};

class OtherRank {
 public:
  OtherRank(asio::io_context& io, const Meeting& meeting, const MeetingPoint& point,
            std::span<std::byte> payload)
      : io_(io), meeting_(meeting), point_(point), payload_(payload), number_(draw_number()) {}

  /// @throws what went wrong
  void run(Clock::time_point until) {
    asio::co_spawn(io_, come(), asio::detached);
    io_.run_until(until);
    if (has_payload_) return;
    if (users_fault_) throw UserError(state_);
    throw EnvironmentError(format("rank {} of {} waited at {}:{} ({}) until the deadline: {}",
                                  meeting_.rank, meeting_.size, point_.host, point_.port,
                                  point_.chosen, state_));
  }

 private:
  awaitable<void> come() {
    while (!has_payload_ && !over_) {
      tcp::socket socket(io_);
      if (co_await connect(socket)) co_await attend(socket);
      if (has_payload_ || over_) break;
      asio::steady_timer pause(io_, kRetryAfter);
      co_await pause.async_wait(kResult);
    }
    io_.stop();
  }

  awaitable<bool> connect(tcp::socket& socket) {
    tcp::resolver resolver(io_);
    const auto [failed, found] =
        co_await resolver.async_resolve(point_.host, std::to_string(point_.port), kResult);
    if (failed) {
      state_ = format("the host's name is not known: {}", failed.message());
      co_return false;
    }
    error_code error;
    for (const auto& entry : found) {
      socket = tcp::socket(io_);
      const Watch watch(socket, kSilence);
      const auto [refused] = co_await socket.async_connect(entry.endpoint(), kResult);
      if (!refused) co_return true;
      error = refused;
    }
    state_ = format("nothing listens there ({}); rank 0 has not arrived", error.message());
    co_return false;
  }

  awaitable<void> attend(tcp::socket& socket) {
    Hello hello;
    hello.rank = meeting_.rank, hello.size = meeting_.size, hello.number = number_;
    hello.payload_bytes = payload_.size();
    put(hello.job, meeting_.job);
    put(hello.process, this_process());
    std::size_t heard = 0;
    for (bool first = true;; first = false) {
      const Watch watch(socket, kSilence);
      if (first) {
        const auto [error, bytes] = co_await asio::async_write(socket, raw(hello), kResult);
        if (error) co_return;
      }
      Head head;
      const auto [error, bytes] = co_await asio::async_read(socket, raw(head), kResult);
      if (error && heard == 0)
        state_ = "the program that listens there does not answer as rank 0 would";
      if (error && heard > 0) state_ = format("rank 0 left ({})", error.message());
      if (error) co_return;
      const std::size_t most = std::max(kMostText, payload_.size());
      if (head.magic != kMagic || head.bytes > most) {
        state_ = "another program listens there; set KILN_RENDEZVOUS_PORT to a port that is free";
        co_return;
      }
      std::string body(head.bytes, '\0');
      const auto [torn, read] = co_await asio::async_read(socket, asio::buffer(body), kResult);
      if (torn) co_return;
      ++heard;
      if (head.word == Word::go && body.size() == payload_.size()) {
        std::memcpy(payload_.data(), body.data(), body.size());
        char word = 1;
        const auto [unsaid, sent] = co_await asio::async_write(socket, raw(word), kResult);
        has_payload_ = !unsaid;
        co_return;
      }
      if (head.word == Word::give_up || head.word == Word::too_late) {
        state_ = body;
        users_fault_ = head.word == Word::give_up;
        over_ = true;
        co_return;
      }
      if (head.word == Word::not_you) {
        state_ = format("rank 0 of another job listens there ({}, this is {})", body, meeting_.job);
        co_return;
      }
      state_ = body;
    }
  }

  asio::io_context& io_;
  const Meeting& meeting_;
  const MeetingPoint& point_;
  const std::span<std::byte> payload_;
  const std::uint64_t number_;
  bool has_payload_ = false, over_ = false, users_fault_ = false;
  std::string state_ = "no connection yet";
};

/// Where rank 0 listens. A host's own name may mean loopback on that host and not on others, so
/// only what is loopback everywhere is taken for that.
std::vector<tcp::endpoint> own_addresses(const MeetingPoint& point) {
  if (point.host == "::1") return {{asio::ip::address_v6::loopback(), point.port}};
  if (point.host == "127.0.0.1" || point.host == "localhost")
    return {{asio::ip::address_v4::loopback(), point.port}};
  return {{tcp::v6(), point.port}, {tcp::v4(), point.port}};
}

tcp::acceptor listen_at(asio::io_context& io, const MeetingPoint& point, error_code& error) {
  tcp::acceptor acceptor(io);
  for (const tcp::endpoint& endpoint : own_addresses(point)) {
    error_code ignored;
    acceptor.close(ignored);
    acceptor.open(endpoint.protocol(), error);
    if (error) continue;
    acceptor.set_option(tcp::acceptor::reuse_address(true), ignored);
    if (endpoint.protocol() == tcp::v6())
      acceptor.set_option(asio::ip::v6_only(endpoint.address().is_loopback()), ignored);
    acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (!error || error == asio::error::address_in_use) break;
  }
  return acceptor;
}

/// Throws, when the port is taken by another process that wants to be rank 0 of this job.
void ask_listener(const Meeting& meeting, const MeetingPoint& point, std::span<std::byte> payload) {
  asio::io_context io;
  try {
    OtherRank(io, meeting, point, payload).run(std::min(meeting.deadline, Clock::now() + 500ms));
  } catch (const EnvironmentError&) {
  }
}

tcp::acceptor wait_for_port(asio::io_context& io, const Meeting& meeting, const MeetingPoint& point,
                            std::span<std::byte> payload) {
  const auto until = std::min(meeting.deadline, Clock::now() + kTakenPortWithin);
  for (;;) {
    error_code error;
    tcp::acceptor acceptor = listen_at(io, point, error);
    if (!error) return acceptor;
    std::vector<std::byte> unused(payload.size());
    if (error == asio::error::address_in_use) ask_listener(meeting, point, unused);
    if (error != asio::error::address_in_use || Clock::now() >= until)
      throw EnvironmentError(
          format("rank 0 cannot listen at port {} ({}): {}. Set "
                 "KILN_RENDEZVOUS_PORT, on all ranks, to a port that is free",
                 point.port, point.chosen, error.message()));
  }
}

}  // namespace

void meet_over_tcp(const Meeting& meeting, const MeetingPoint& point,
                   std::span<std::byte> payload) {
  if (payload.size() > kLongestPayload)
    throw InternalError("the payload is too long for a rendezvous");
  if (meeting.size == 1) return;
  try {
    asio::io_context io;
    if (meeting.rank == 0)
      RankZero(io, meeting, payload, wait_for_port(io, meeting, point, payload)).run();
    else
      OtherRank(io, meeting, point, payload).run(meeting.deadline + kLastWord);
  } catch (const boost::system::system_error& error) {
    throw EnvironmentError(
        format("ranks cannot meet at {}:{}: {}", point.host, point.port, error.what()));
  }
}

}  // namespace kiln::runtime::ranks
