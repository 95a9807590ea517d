// Ranks that are threads of one process: one mutex, one condition, one round per call.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/transport/groups.hpp"

namespace kiln {

namespace {

enum class Call { gather, reduce, broadcast };

/// What a call must have in common on all ranks.
struct Shape {
  Call call = Call::gather;
  std::size_t bytes = 0;
  int detail = 0;  ///< root or operation
  bool operator==(const Shape&) const = default;
};

struct Round {
  Shape shape;
  std::vector<std::vector<std::byte>> parts;
  std::vector<char> joined;
  int count = 0, left = 0;
  std::vector<std::byte> result;
  bool done = false;
  std::optional<RankFailure> mismatch;  ///< the first
};

/// Answers that all ranks have had, and that are remembered nevertheless.
constexpr std::size_t kMostAnswered = 64;

/// The answer that the first rank gave.
struct Settled {
  bool answer;
  std::vector<char> asked;  ///< by these ranks
};

/// What the ends of one group share.
struct Hub {
  explicit Hub(int ranks) : size(ranks), gone(static_cast<std::size_t>(ranks)), next(gone.size()) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds;
  std::vector<char> gone;              ///< ends destroyed
  std::vector<std::uint64_t> next;     ///< each rank's next round
  std::optional<RankFailure> failure;  ///< the first abort
  std::map<Digest, Settled> settled;
  /// Questions that all ranks have had answered, oldest first.
  std::deque<Digest> answered;
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<Hub>> parts;  ///< of split
};

void sum_up(Round& round, int size) {
  if (round.shape.call == Call::gather) {
    for (const auto& part : round.parts)
      round.result.insert(round.result.end(), part.begin(), part.end());
    return;
  }
  const std::size_t count = round.shape.bytes / sizeof(float);
  std::vector<float> total(count), more(count);
  for (std::size_t r = 0; r < round.parts.size(); ++r) {
    std::memcpy(more.data(), round.parts[r].data(), round.shape.bytes);
    for (std::size_t i = 0; i < count; ++i)
      total[i] = r == 0 ? more[i]
                 : round.shape.detail == static_cast<int>(Reduction::max)
                     ? std::max(total[i], more[i])
                     : total[i] + more[i];
  }
  if (round.shape.detail == static_cast<int>(Reduction::mean))
    for (float& t : total) t /= static_cast<float>(size);
  const auto bytes = std::as_bytes(std::span(total));
  round.result.assign(bytes.begin(), bytes.end());
}

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  ~ThreadCommunicator() override {
    {
      std::lock_guard lock(hub_->mutex);
      hub_->gone[static_cast<std::size_t>(rank_)] = 1;
    }
    hub_->changed.notify_all();
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_->size; }

  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 Deadline deadline) override {
    return call({Call::gather, mine.size(), 0}, mine, all, deadline);
  }

  Failure reduce(std::span<float> values, Reduction op, Deadline deadline) override {
    const auto bytes = std::as_writable_bytes(values);
    return call({Call::reduce, bytes.size(), static_cast<int>(op)}, bytes, bytes, deadline);
  }

  Failure broadcast(std::span<std::byte> bytes, int root, Deadline deadline) override {
    return call({Call::broadcast, bytes.size(), root}, bytes, bytes, deadline);
  }

  void abort(const RankFailure& why) noexcept override {
    {
      std::lock_guard lock(hub_->mutex);
      if (!hub_->failure) {
        hub_->failure = why;
        if (why.ranks.empty()) {
          hub_->failure->kind = RankFailure::Kind::aborted;
          hub_->failure->ranks = {rank_};
        }
      }
    }
    hub_->changed.notify_all();
  }

  bool settles() const noexcept override { return true; }
  std::optional<bool> settle(const Digest& question, bool proposal, Deadline) override {
    std::lock_guard lock(hub_->mutex);
    Settled& settled =
        hub_->settled.try_emplace(question, Settled{proposal, hub_->gone}).first->second;
    const bool answer = settled.answer;
    char& asked = settled.asked[static_cast<std::size_t>(rank_)];
    if (std::exchange(asked, 1) != 0) return answer;
    if (!std::ranges::all_of(settled.asked, [](char one) { return one != 0; })) return answer;
    hub_->answered.push_back(question);
    if (hub_->answered.size() > kMostAnswered) {
      hub_->settled.erase(hub_->answered.front());
      hub_->answered.pop_front();
    }
    return answer;
  }

  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
    std::vector<int> groups(static_cast<std::size_t>(size()));
    const auto mine = std::as_bytes(std::span(&group, 1));
    if (auto failure = gather(mine, std::as_writable_bytes(std::span(groups)), deadline))
      return failure;
    if (auto problem = runtime::problem_of(groups)) return problem;
    const auto before = std::count(groups.begin(), groups.begin() + rank_, group);
    const auto members = std::count(groups.begin(), groups.end(), group);
    std::lock_guard lock(hub_->mutex);
    auto& hub = hub_->parts[{hub_->next[static_cast<std::size_t>(rank_)], group}];
    if (!hub) hub = std::make_shared<Hub>(static_cast<int>(members));
    part = std::make_unique<ThreadCommunicator>(hub, static_cast<int>(before));
    return {};
  }

 private:
  Failure call(const Shape& shape, std::span<const std::byte> mine, std::span<std::byte> out,
               Deadline deadline) {
    std::unique_lock lock(hub_->mutex);
    if (broken_) return broken_;
    if (hub_->failure) return broken_ = hub_->failure;
    if (std::chrono::steady_clock::now() >= deadline)
      return broken_ = RankFailure{RankFailure::Kind::timeout, {rank_}, "it arrived too late"};
    const auto me = static_cast<std::size_t>(rank_);
    const std::uint64_t number = hub_->next[me]++;
    std::shared_ptr<Round>& slot = hub_->rounds[number];
    if (!slot) {
      slot = std::make_shared<Round>();
      slot->shape = shape;
      slot->parts.resize(hub_->gone.size());
      slot->joined.resize(hub_->gone.size());
    }
    const std::shared_ptr<Round> round = slot;
    if (round->shape != shape) {
      if (!round->mismatch)
        round->mismatch = {RankFailure::Kind::mismatch,
                           {rank_},
                           "it calls another operation than the ranks before it"};
      hub_->changed.notify_all();
      if (++round->left == hub_->size) hub_->rounds.erase(number);
      return broken_ = round->mismatch;
    }
    round->parts[me].assign(mine.begin(), mine.end());
    round->joined[me] = 1;
    ++round->count;
    if (shape.call == Call::broadcast) {
      if (rank_ == shape.detail) round->result = round->parts[me], round->done = true;
    } else if (round->count == hub_->size) {
      sum_up(*round, hub_->size);
      round->done = true;
    }
    if (round->done) hub_->changed.notify_all();
    const bool ended = hub_->changed.wait_until(lock, deadline, [&] {
      return round->done || hub_->failure || round->mismatch || lost(*round);
    });
    if (++round->left == hub_->size) hub_->rounds.erase(number);
    // A result that is there counts, whatever happened meanwhile.
    if (round->done) {
      std::copy(round->result.begin(), round->result.end(), out.begin());
      return {};
    }
    if (hub_->failure) return broken_ = hub_->failure;
    if (round->mismatch) return broken_ = round->mismatch;
    const std::vector<int> late = missing(*round, ended);
    return broken_ = ended
                         ? RankFailure{RankFailure::Kind::lost, late, "its thread has left"}
                         : RankFailure{RankFailure::Kind::timeout, late, "did not arrive in time"};
  }

  /// The ranks that are needed but have not joined; `for_good`: those of them that have left.
  std::vector<int> missing(const Round& round, bool for_good) const {
    std::vector<int> ranks;
    for (int r = 0; r < hub_->size; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const bool needed = round.shape.call != Call::broadcast || r == round.shape.detail;
      if (needed && !round.joined[i] && (!for_good || hub_->gone[i])) ranks.push_back(r);
    }
    return ranks;
  }
  bool lost(const Round& round) const { return !missing(round, true).empty(); }

  std::shared_ptr<Hub> hub_;
  const int rank_;
  Failure broken_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_communicators(int size) {
  if (size < 1)
    throw UserError(detail::format("thread_communicators: {} is not a number of ranks", size));
  auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<Communicator>> ends;
  for (int r = 0; r < size; ++r) ends.push_back(std::make_unique<ThreadCommunicator>(hub, r));
  return ends;
}

}  // namespace kiln
