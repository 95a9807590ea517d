// Ranks meet, over TCP on loopback and by files, beside everything that may be in their way. Each
// wait has a deadline of its own, so none of these can hang.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include <boost/asio.hpp>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/transport/rendezvous.hpp"
#include "temporary_directory.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::runtime::ranks;

namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using asio::ip::tcp;

constexpr double kLong = 30;

using Folder = kiln::test::TemporaryDirectory;

/// What a rank is given, or what it is told.
struct Met {
  std::string payload;
  std::string users, environments;  ///< the error, by its kind
};

/// A way to meet: where, and how a rank does it.
using Meet = std::function<void(const Meeting&, std::span<std::byte>)>;

Met attend(const Meet& meet, int rank, int size, double seconds, std::string job = "job") {
  Met met;
  std::string payload = rank == 0 ? "the payload of 0" : std::string(16, '?');
  try {
    meet({rank, size, std::move(job), deadline_in(seconds)},
         std::as_writable_bytes(std::span(payload)));
    met.payload = payload;
  } catch (const UserError& error) {
    met.users = error.what();
  } catch (const EnvironmentError& error) {
    met.environments = error.what();
  }
  return met;
}

/// All ranks of a job at once; those below `begin` are left out.
std::vector<Met> all(const Meet& meet, int size, double seconds, std::vector<int> ranks) {
  std::vector<Met> met(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (const int r : ranks)
    threads.emplace_back(
        [&, r] { met[static_cast<std::size_t>(r)] = attend(meet, r, size, seconds); });
  for (auto& t : threads) t.join();
  return met;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::uint16_t free_port() {
  asio::io_context io;
  return tcp::acceptor(io, {asio::ip::address_v4::loopback(), 0}).local_endpoint().port();
}

Meet over_tcp(std::uint16_t port) {
  return [port](const Meeting& meeting, std::span<std::byte> payload) {
    meet_over_tcp(meeting, {"127.0.0.1", port, "for a test"}, payload);
  };
}
Meet over_file(const fs::path& path) {
  return [path](const Meeting& meeting, std::span<std::byte> payload) {
    meet_over_file(meeting, path, payload);
  };
}

/// One way or the other, and a folder for it.
struct Place {
  explicit Place(bool tcp)
      : meet(tcp ? over_tcp(free_port()) : over_file(folder.path() / "meet")) {}
  Folder folder;
  Meet meet;
};

/// A connection that says `text` and stays.
struct Stranger {
  Stranger(std::uint16_t port, const std::string& text) : socket(io) {
    for (int i = 0; i < 2000; ++i) {
      boost::system::error_code error;
      socket.close(error);
      socket.connect({asio::ip::address_v4::loopback(), port}, error);
      if (!error) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(text), ignored);
  }
  asio::io_context io;
  tcp::socket socket;
};

}  // namespace

TEST_CASE("ranks meet, in any order, and leave nothing behind", "[ranks]") {
  const bool tcp = GENERATE(true, false);
  CAPTURE(tcp);
  Place place(tcp);
  for (const int size : {1, 2, 5, 9}) {
    std::vector<int> ranks;
    for (int r = size - 1; r >= 0; --r) ranks.push_back(r);
    for (const Met& met : all(place.meet, size, kLong, ranks)) {
      CHECK(met.payload == "the payload of 0");
      CHECK(met.users + met.environments == "");
    }
    CHECK(fs::is_empty(place.folder.path()));
  }
}

TEST_CASE("a late rank is waited for", "[ranks]") {
  const bool tcp = GENERATE(true, false);
  const int late = GENERATE(0, 1);
  CAPTURE(tcp, late);
  Place place(tcp);
  Met last;
  std::thread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    last = attend(place.meet, late, 3, kLong);
  });
  const auto met = all(place.meet, 3, kLong, {late == 0 ? 1 : 0, 2});
  thread.join();
  CHECK(last.payload == "the payload of 0");
  CHECK(met[2].payload == "the payload of 0");
}

TEST_CASE("a rank that does not come is named on every rank", "[ranks]") {
  const bool tcp = GENERATE(true, false);
  CAPTURE(tcp);
  Place place(tcp);
  const auto met = all(place.meet, 5, 1.5, {0, 1, 4});
  for (const int r : {0, 1, 4}) {
    CAPTURE(r, met[r].environments);
    CHECK(says(met[r].environments, "ranks 2, 3 did not arrive"));
  }
}

TEST_CASE("a rank 0 that does not come is named", "[ranks]") {
  const bool tcp = GENERATE(true, false);
  CAPTURE(tcp);
  Place place(tcp);
  const auto met = all(place.meet, 2, 0.4, {1});
  CHECK(says(met[1].environments, "rank 0 has not arrived"));
  CHECK(fs::is_empty(place.folder.path()));
}

TEST_CASE("two processes of one rank are named", "[ranks]") {
  const bool tcp = GENERATE(true, false);
  const int twice = GENERATE(0, 1);
  CAPTURE(tcp, twice);
  Place place(tcp);
  std::atomic<int> named{0};
  std::vector<std::thread> threads;
  // Rank 2 is missing, so that nobody is done before the second comes.
  for (const int rank : {0, 1, twice})
    threads.emplace_back([&, rank] {
      const Met met = attend(place.meet, rank, 3, 4);
      named += met.payload.empty() &&
               says(met.users, tcp ? "two processes say that they are rank " + std::to_string(twice)
                                   : "two processes") &&
               says(met.users, "process " + std::to_string(::getpid()));
    });
  for (auto& t : threads) t.join();
  CHECK(named >= 1);
}

TEST_CASE("a rank that dies while it waits can come again", "[ranks]") {
  const bool tcp = GENERATE(true, false);
  CAPTURE(tcp);
  Place place(tcp);
  const pid_t child = ::fork();
  if (child == 0) {
    attend(place.meet, 1, 3, kLong);
    ::_exit(0);
  }
  std::vector<Met> met;
  std::thread first([&] { met = all(place.meet, 3, kLong, {0}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto rest = all(place.meet, 3, kLong, {1, 2});
  first.join();
  CHECK(met[0].environments + met[0].users == "");
  CHECK(rest[1].payload == "the payload of 0");
  CHECK(rest[2].payload == "the payload of 0");
}

TEST_CASE("ranks of another job are turned away, and it is said whose place it is", "[ranks]") {
  const std::uint16_t port = free_port();
  std::atomic<int> refused{0};
  std::thread other([&] {
    const Met met = attend(over_tcp(port), 1, 2, 1, "another job");
    refused += says(met.environments, "rank 0 of another job") && says(met.environments, "job");
  });
  Met came;
  std::thread late([&] {
    other.join();
    came = attend(over_tcp(port), 1, 2, kLong);
  });
  const Met met = attend(over_tcp(port), 0, 2, kLong);
  late.join();
  CHECK(refused == 1);
  CHECK(met.environments + met.users == "");
  CHECK(came.payload == "the payload of 0");
}

TEST_CASE("ranks that expect different sizes are named", "[ranks]") {
  const std::uint16_t port = free_port();
  Met one;
  std::thread other([&] { one = attend(over_tcp(port), 1, 3, kLong); });
  const Met zero = attend(over_tcp(port), 0, 2, kLong);
  other.join();
  CHECK(says(zero.users, "rank 1"));
  CHECK(says(zero.users, "expects 3 ranks"));
  CHECK(one.users == zero.users);
}

TEST_CASE("scanners and silent connections are in nobody's way", "[ranks]") {
  const std::uint16_t port = free_port();
  std::vector<std::unique_ptr<Stranger>> strangers;
  std::thread noise([&] {
    for (const std::string& text :
         {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(), std::string(5000, '\xff'),
          std::string(480, '\0'), std::string("KILNmet1"), std::string(100000, 'K')})
      strangers.push_back(std::make_unique<Stranger>(port, text));
  });
  Met came;
  std::thread late([&] {
    noise.join();
    came = attend(over_tcp(port), 1, 2, kLong);
  });
  const Met met = attend(over_tcp(port), 0, 2, kLong);
  late.join();
  CHECK(met.environments + met.users == "");
  CHECK(came.payload == "the payload of 0");
}

TEST_CASE("a hello cut short or with a rank out of range seats nobody", "[ranks]") {
  const std::uint16_t port = free_port();
  Met came;
  std::thread late([&] {
    std::string hello(8 + 8 + 16 + 256 + 96, '\0');
    std::memcpy(hello.data(), "KILNmet1", 8);
    const std::int32_t rank = 77, size = 2;
    const std::uint64_t bytes = 16;
    std::memcpy(hello.data() + 8, &rank, 4);
    std::memcpy(hello.data() + 12, &size, 4);
    std::memcpy(hello.data() + 24, &bytes, 8);
    std::memcpy(hello.data() + 32, "job", 3);
    const Stranger whole(port, hello);
    const Stranger cut(port, hello.substr(0, 100));
    came = attend(over_tcp(port), 1, 2, kLong);
  });
  const Met met = attend(over_tcp(port), 0, 2, kLong);
  late.join();
  CHECK(met.environments + met.users == "");
  CHECK(came.payload == "the payload of 0");
}

TEST_CASE("a port that another program holds is named, with what to set", "[ranks]") {
  asio::io_context io;
  tcp::acceptor holder(io, {asio::ip::address_v4::loopback(), 0});
  const auto meet = over_tcp(holder.local_endpoint().port());
  const auto met = all(meet, 2, 1, {0, 1});
  CHECK(says(met[0].environments, std::to_string(holder.local_endpoint().port())));
  CHECK(says(met[0].environments, "KILN_RENDEZVOUS_PORT"));
  CHECK(met[1].payload == "");
}

TEST_CASE("what answers with something else is found out", "[ranks]") {
  asio::io_context io;
  tcp::acceptor holder(io, {asio::ip::address_v4::loopback(), 0});
  std::atomic<bool> over{false};
  holder.non_blocking(true);
  std::thread other([&] {
    std::vector<tcp::socket> sockets;
    while (!over) {
      boost::system::error_code error;
      tcp::socket socket(io);
      holder.accept(socket, error);
      if (error) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        continue;
      }
      asio::write(socket, asio::buffer(std::string(200, 'x')), error);
      sockets.push_back(std::move(socket));
    }
  });
  const Met met = attend(over_tcp(holder.local_endpoint().port()), 1, 2, kiln::test::patient(4));
  over = true;
  other.join();
  CHECK(says(met.environments, "another program listens there"));
}

TEST_CASE("a host that has no address is named", "[ranks]") {
  std::string payload(16, '?');
  std::string said;
  try {
    meet_over_tcp({1, 2, "job", deadline_in(1)}, {"no such host.invalid", 4000, "for a test"},
                  std::as_writable_bytes(std::span(payload)));
  } catch (const EnvironmentError& error) {
    said = error.what();
  }
  CHECK(says(said, "no such host.invalid:4000"));
}

TEST_CASE("files of an earlier job are not believed", "[ranks]") {
  const Folder folder;
  const fs::path file = folder.path() / "meet";
  // The same job, yesterday: what rank 0 left when rank 2 had not come, and what a rank left that
  // was killed.
  const pid_t child = ::fork();
  if (child == 0) {
    attend(over_file(file), 1, 3, kLong);
    ::_exit(0);
  }
  attend(over_file(file), 0, 3, 0.7);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::ofstream(file.string() + ".2") << "kiln-rank-1 garbage\n";
  REQUIRE(fs::exists(file));

  SECTION("ranks that come before rank 0 wait for it") {
    Met one;
    std::thread early([&] { one = attend(over_file(file), 1, 2, kLong); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    CHECK(attend(over_file(file), 0, 2, kLong).payload == "the payload of 0");
    early.join();
    CHECK(one.payload == "the payload of 0");
    CHECK_FALSE(fs::exists(file));
  }
  SECTION("rank 0 does not take yesterday's rank 1 for today's") {
    const Met zero = attend(over_file(file), 0, 3, 0.4);
    CHECK(says(zero.environments, "ranks 1, 2 did not arrive"));
  }
  SECTION("without rank 0, yesterday's word counts for nothing") {
    const Met one = attend(over_file(file), 1, 3, 0.4);
    CHECK(says(one.environments, "an earlier or another job"));
  }
}

TEST_CASE("files of another job or size are said to be that", "[ranks]") {
  const Folder folder;
  const fs::path file = folder.path() / "meet";
  Met other;
  std::thread stray([&] { other = attend(over_file(file), 1, 2, 5, "another job"); });
  const Met zero = attend(over_file(file), 0, 2, 0.8);
  stray.join();
  CHECK(says(zero.environments, "rank 1 did not arrive"));
  CHECK(says(zero.environments, "meet.1 belongs to another job"));
  CHECK(other.payload == "");
}

TEST_CASE("odd files in the way of a meeting do no harm", "[ranks]") {
  const Folder folder;
  const fs::path file = folder.path() / "meet";
  SECTION("cut and changed ones") {
    std::ofstream(file) << "kiln-meeting-1 1 2 3";
    std::ofstream(file.string() + ".1") << std::string(100000, '\0');
  }
  SECTION("FIFOs") {
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    REQUIRE(::mkfifo((file.string() + ".1").c_str(), 0600) == 0);
  }
  SECTION("links to nowhere") {
    fs::create_symlink("/nonexistent/x", file);
    fs::create_symlink("/nonexistent/y", file.string() + ".1");
  }
  const auto met = all(over_file(file), 2, kLong, {1, 0});
  CHECK(met[0].environments + met[0].users == "");
  CHECK(met[1].payload == "the payload of 0");
}

TEST_CASE("a folder that is not there is named", "[ranks]") {
  const Folder folder;
  const Met met = attend(over_file(folder.path() / "none" / "meet"), 1, 2, kLong);
  CHECK(says(met.environments, "none"));
}
