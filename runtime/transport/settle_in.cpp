// One answer per question, as a file that comes into being once. Hard links are atomic, on NFS too;
// one whose success is reported as EEXIST there is read back like another rank's.
#include <cerrno>
#include <cstring>
#include <ctime>
#include <future>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/support/random.hpp"

namespace kiln {

namespace {

namespace fs = std::filesystem;
using detail::format;

constexpr std::string_view kAnswer = "answer-", kProposal = "proposal-";
constexpr std::size_t kAnswerDigits = 2 * sizeof(Digest), kProposalDigits = 16;
/// No rank still asks for the answers of jobs that began this long ago.
constexpr std::time_t kOldSeconds = 48 * 3600;

/// Whether `name` is one that a Place gives to its files.
bool is_own(std::string_view name) {
  const auto is = [&](std::string_view prefix, std::size_t digits) {
    return name.size() == prefix.size() + digits && name.starts_with(prefix) &&
           name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
  };
  return is(kAnswer, kAnswerDigits) || is(kProposal, kProposalDigits);
}

/// Kiln's own folder, below the one that is named. All access goes through its descriptor, so that
/// it stays the folder that was checked, whatever becomes of its name.
class Place {
 public:
  /// @throws EnvironmentError saying why the place cannot be used.
  Place(const fs::path& folder, bool make) : path_(folder / format("kiln-settle-{}", ::geteuid())) {
    std::error_code error;
    if (make) fs::create_directories(folder, error);
    if (error) fail(error.value());
    if (make && ::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) fail(errno);
    fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd_ < 0) fail(errno);
    struct stat status{};
    const bool told = ::fstat(fd_, &status) == 0;
    if (told && status.st_uid == ::geteuid() && (status.st_mode & 0777) == 0700) return;
    ::close(fd_);
    fail("it is not private to this user (mode 0700)");
  }
  ~Place() { ::close(fd_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  /// Losing to another proposal is not a failure. @throws EnvironmentError when a proposal cannot
  /// be made at all.
  void propose(const Digest& question, bool proposal) const {
    const std::string mine = format("{}{:016x}", kProposal, runtime::unpredictable_bits());
    const std::string answer = answer_name(question);
    const int file = ::openat(fd_, mine.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) fail(errno);
    const char c = proposal ? '1' : '0';
    int error = ::write(file, &c, 1) == 1 && ::fsync(file) == 0 ? 0 : errno;
    if (::close(file) != 0 && error == 0) error = errno;
    const bool written = error == 0;
    if (written && ::linkat(fd_, mine.c_str(), fd_, answer.c_str(), 0) != 0 && errno != EEXIST)
      error = errno;
    ::unlinkat(fd_, mine.c_str(), 0);
    if (error != 0) fail(written ? format("hard link: {}", std::strerror(error)) : text_of(error));
  }

  std::optional<bool> answer(const Digest& question) const {
    const int file =
        ::openat(fd_, answer_name(question).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return {};
    char c = 0;
    const bool got = ::read(file, &c, 1) == 1;
    ::close(file);
    if (!got || (c != '0' && c != '1')) return {};
    return c == '1';
  }

  void forget(const Digest& question) const { ::unlinkat(fd_, answer_name(question).c_str(), 0); }

  void remove_old() const {
    const int again = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* const list = again < 0 ? nullptr : ::fdopendir(again);
    if (!list) {
      if (again >= 0) ::close(again);
      return;
    }
    const std::time_t now = std::time(nullptr);
    while (const dirent* entry = ::readdir(list)) {
      struct stat status{};
      if (is_own(entry->d_name) &&
          ::fstatat(fd_, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISREG(status.st_mode) && now - status.st_mtime > kOldSeconds)
        ::unlinkat(fd_, entry->d_name, 0);
    }
    ::closedir(list);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw EnvironmentError(format("ranks cannot settle in {}: {}", path_.string(), what));
  }

 private:
  static std::string text_of(int error) { return std::strerror(error); }
  [[noreturn]] void fail(int error) const { fail(text_of(error)); }
  static std::string answer_name(const Digest& question) {
    return std::string(kAnswer) + to_hex(question);
  }

  const fs::path path_;
  int fd_ = -1;
};

class SettlingCommunicator : public Communicator {
 public:
  SettlingCommunicator(std::unique_ptr<Communicator> base, std::shared_ptr<const Place> place)
      : base_(std::move(base)), place_(std::move(place)) {}

  int rank() const noexcept override { return base_->rank(); }
  int size() const noexcept override { return base_->size(); }
  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline d) override {
    return base_->gather(mine, all, d);
  }
  Failure reduce(std::span<float> values, Reduction op, Deadline d) override {
    return base_->reduce(values, op, d);
  }
  Failure broadcast(std::span<std::byte> bytes, int root, Deadline d) override {
    return base_->broadcast(bytes, root, d);
  }
  void abort(const RankFailure& why) noexcept override { base_->abort(why); }

  bool settles() const noexcept override { return true; }
  /// On a thread of its own: a file server that hangs does so beyond any deadline.
  std::optional<bool> settle(const Digest& question, bool proposal, Deadline deadline) override {
    std::packaged_task<std::optional<bool>()> ask([place = place_, question, proposal] {
      try {
        place->propose(question, proposal);
      } catch (const std::exception&) {  // what counts is what is then there
      }
      return place->answer(question);
    });
    std::future<std::optional<bool>> answer = ask.get_future();
    std::thread(std::move(ask)).detach();
    if (answer.wait_until(deadline) != std::future_status::ready) return {};
    return answer.get();
  }

  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
    std::unique_ptr<Communicator> plain;
    if (auto failure = base_->split(group, plain, deadline)) return failure;
    part = std::make_unique<SettlingCommunicator>(std::move(plain), place_);
    return {};
  }

 private:
  std::unique_ptr<Communicator> base_;
  const std::shared_ptr<const Place> place_;
};

}  // namespace

std::unique_ptr<Communicator> settle_in(std::unique_ptr<Communicator> base, const fs::path& folder,
                                        Deadline deadline, std::string* why) {
  if (why) why->clear();
  if (base->settles()) return base;
  const int rank = base->rank();
  std::shared_ptr<const Place> place;
  std::uint64_t trial = 0;
  std::string problem;
  const auto question = [&](int of) { return sha256(format("trial {} of rank {}", trial, of)); };
  const auto settles = [&](int of) {
    place->propose(question(of), true);
    if (place->answer(question(of)) != true) place->fail("the file that was written is missing");
  };
  const auto attempt = [&](const auto& step) {
    try {
      if (problem.empty()) step();
    } catch (const std::exception& error) {
      problem = error.what();
    }
  };
  // Every rank makes the same calls, whatever it finds. Rank 0 settles a question; the others look
  // whether they see the answer, and settle one of their own.
  if (rank == 0)
    attempt([&] {
      trial = runtime::unpredictable_bits();
      place = std::make_shared<Place>(folder, true);
      settles(0);
    });
  auto failure = base->broadcast(std::as_writable_bytes(std::span(&trial, 1)), 0, deadline);
  if (!failure) {
    if (rank != 0)
      attempt([&] {
        place = std::make_shared<Place>(folder, false);
        if (place->answer(question(0)) != true)
          place->fail("the file that rank 0 wrote is missing");
        settles(rank);
        place->forget(question(rank));
      });
    float cannot = problem.empty() ? 0 : static_cast<float>(rank + 1);
    failure = base->reduce(std::span(&cannot, 1), Reduction::max, deadline);
    if (!failure && cannot != 0 && problem.empty())
      problem = format("ranks cannot settle in {}: rank {} cannot", folder.string(), cannot - 1);
  }
  if (rank == 0 && place) {
    place->forget(question(0));
    place->remove_old();
  }
  if (failure) problem = failure->describe();
  if (why) *why = problem;
  if (!problem.empty()) return base;
  return std::make_unique<SettlingCommunicator>(std::move(base), std::move(place));
}

}  // namespace kiln
