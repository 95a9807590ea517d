// One answer per question, as a file that comes into being once. Hard links are atomic, on NFS too;
// one whose success is reported as EEXIST there is read back like another rank's.
#include <chrono>
#include <cstring>
#include <random>

#include <fcntl.h>
#include <unistd.h>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"

namespace kiln {

namespace {

namespace fs = std::filesystem;

std::uint64_t random_bits() {
  std::random_device random;
  return static_cast<std::uint64_t>(random()) << 32 | random();
}

class SettlingCommunicator : public Communicator {
 public:
  SettlingCommunicator(std::unique_ptr<Communicator> base, fs::path folder)
      : base_(std::move(base)), folder_(std::move(folder)) {}

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
  std::optional<bool> settle(const Digest& question, bool proposal, Deadline) override {
    try {
      const fs::path answer = folder_ / ("answer-" + to_hex(question));
      const fs::path mine = folder_ / detail::format("proposal-{:016x}", random_bits());
      if (write(mine, proposal ? '1' : '0')) {
        (void)!::link(mine.c_str(), answer.c_str());  // what counts is what is then there
        ::unlink(mine.c_str());
      }
      return read(answer);
    } catch (const std::exception&) {
      return {};
    }
  }

  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
    std::unique_ptr<Communicator> plain;
    if (auto failure = base_->split(group, plain, deadline)) return failure;
    part = std::make_unique<SettlingCommunicator>(std::move(plain), folder_);
    return {};
  }

 private:
  static bool write(const fs::path& path, char c) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return false;
    const bool written = ::write(file, &c, 1) == 1 && ::fsync(file) == 0;
    return (::close(file) == 0) && written;
  }
  static std::optional<bool> read(const fs::path& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return {};
    char c = 0;
    const bool got = ::read(file, &c, 1) == 1;
    ::close(file);
    if (!got || (c != '0' && c != '1')) return {};
    return c == '1';
  }

  std::unique_ptr<Communicator> base_;
  const fs::path folder_;
};

/// Answers that nobody can ask for any more.
void remove_old(const fs::path& folder) {
  std::error_code error;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(48);
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    const bool ours = name.starts_with("answer-") || name.starts_with("proposal-");
    if (ours && entry.is_regular_file(error) && entry.last_write_time(error) < old)
      fs::remove(entry.path(), error);
  }
}

}  // namespace

std::unique_ptr<Communicator> settle_in(std::unique_ptr<Communicator> base, const fs::path& folder,
                                        Deadline deadline) {
  // The same calls on every rank, whatever each finds: rank 0 lays a file down, the others look.
  std::uint64_t name = random_bits();
  float fine = base->settles() ? 0 : 1;
  const auto file = [&] { return folder / detail::format("proposal-{:016x}", name); };
  if (base->rank() == 0) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (!error) fs::permissions(folder, fs::perms::owner_all, error);
    const int f = ::open(file().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (f < 0)
      fine = 0;
    else
      ::close(f);
  }
  if (base->broadcast(std::as_writable_bytes(std::span(&name, 1)), 0, deadline)) return base;
  if (::access(file().c_str(), R_OK | W_OK) != 0) fine = 0;
  float bad = 1 - fine;
  const bool failed = base->reduce(std::span(&bad, 1), Reduction::max, deadline).has_value();
  if (base->rank() == 0) {
    ::unlink(file().c_str());
    remove_old(folder);
  }
  if (failed || bad != 0) return base;
  return std::make_unique<SettlingCommunicator>(std::move(base), folder);
}

}  // namespace kiln
