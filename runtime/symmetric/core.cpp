#include "runtime/symmetric/core.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/host/shared_memory.hpp"
#include "runtime/device/peer_stalls.hpp"
#include "runtime/support/rank_meeting.hpp"

namespace kiln::detail {

using runtime::Device;
using runtime::PeerScope;
using runtime::ProcessIdentity;
using runtime::RankControl;
using runtime::ReachedMemory;
using runtime::ShortText;
using runtime::SymmetricOffer;
using runtime::SymmetricRequest;

namespace {

/// So that flags have 32-bit numbers, and sums of sizes do not overflow.
constexpr std::uint64_t kMostFlags = std::uint64_t{1} << 24;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;

/// Acts at a deadline, unless it is gone before.
class Watch {
 public:
  Watch(Deadline deadline, std::function<void()> act)
      : thread_([this, deadline, act = std::move(act)] {
          std::unique_lock lock(mutex_);
          if (!changed_.wait_until(lock, deadline, [this] { return over_; })) act();
        }) {}
  ~Watch() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

SymmetricRequest request_of(const SymmetricOptions& options, Device& device) {
  SymmetricRequest request;
  request.bytes = options.bytes;
  request.flags = options.flags;
  const char* kind = device.info().limits.on_host() ? "host" : "cuda";
  std::strncpy(request.device.data(), kind, request.device.size() - 1);
  request.process = ProcessIdentity::mine();
  if (!(options.seconds > 0))
    request.mistake = ShortText("SymmetricOptions::seconds is not above 0");
  else if (!device.peer_access())
    request.mistake =
        ShortText("other ranks cannot reach the memory of device " + device.info().id);
  return request;
}

/// What makes the requests useless, with the ranks and values; empty: nothing.
std::string mistake_of(const std::vector<SymmetricRequest>& requests) {
  const auto differ = [&](auto get, const char* what) -> std::string {
    for (std::size_t r = 1; r < requests.size(); ++r)
      if (get(requests[r]) != get(requests[0]))
        return format("rank {} has {} {}, but rank 0 has {}", r, get(requests[r]), what,
                      get(requests[0]));
    return {};
  };
  for (std::size_t r = 0; r < requests.size(); ++r)
    if (!requests[r].mistake.empty()) return format("rank {}: {}", r, requests[r].mistake.get());
  if (auto text = differ([](const auto& q) { return std::string(q.device.data()); },
                         "as its kind of device");
      !text.empty())
    return text;
  if (auto text = differ([](const auto& q) { return q.bytes; }, "bytes"); !text.empty())
    return text;
  if (auto text = differ([](const auto& q) { return q.flags; }, "flags"); !text.empty())
    return text;
  for (std::size_t r = 1; r < requests.size(); ++r)
    if (requests[r].process.machine != requests[0].process.machine)
      return format("ranks 0 and {} run on different machines", r);
  const SymmetricRequest& first = requests.front();
  if (first.bytes == 0) return "SymmetricOptions::bytes is 0";
  if (first.flags == 0) return "SymmetricOptions::flags is 0";
  if (first.bytes > kMostBytes) return format("{} bytes are too many", first.bytes);
  if (first.flags * requests.size() > kMostFlags)
    return format("{} flags for each of {} ranks are too many", first.flags, requests.size());
  return {};
}

template <class Messages, class Get>
void throw_failures(const Messages& messages, const Get& get) {
  for (std::size_t r = 0; r < messages.size(); ++r)
    if (const ShortText& text = get(messages[r]); !text.empty())
      throw EnvironmentError(format("symmetric memory: rank {} failed: {}", r, text.get()));
}

const SymmetricOptions& small_enough(const SymmetricOptions& options) {
  static const SymmetricOptions nothing;  // all ranks refuse it, once they have heard of it
  return options.bytes > kMostBytes || options.flags > kMostFlags ? nothing : options;
}

Communicator& existing(const std::shared_ptr<Communicator>& ranks) {
  if (!ranks) throw UserError("symmetric memory: the communicator is null");
  return *ranks;
}

}  // namespace

SymmetricCore::SymmetricCore(std::shared_ptr<Device> device, std::shared_ptr<Communicator> ranks,
                             const SymmetricOptions& options)
    : options_(options),
      device_(std::move(device)),
      exchange_(ranks, "symmetric memory"),
      layout_(existing(ranks).size(), small_enough(options).flags, small_enough(options).bytes) {
  const auto turn = exchange_.turn();
  const Deadline deadline = deadline_in(options.seconds > 0 ? options.seconds : 30);
  const Requests requests = exchange_.all(request_of(options, *device_), deadline);
  if (const std::string mistake = mistake_of(requests); !mistake.empty())
    throw UserError("symmetric memory: " + mistake);
  for (const SymmetricRequest& request : requests)
    if (request.process != requests.front().process) scope_ = PeerScope::machine;
  try {
    make(requests, deadline);
  } catch (...) {
    release(deadline);
    throw;
  }
}

void SymmetricCore::make(const Requests& requests, Deadline deadline) {
  SymmetricOffer offer;
  offer.failure = ShortText(runtime::failure_of([&] {
    own_ = std::make_shared<const runtime::RankMemory>(device_, layout_.bytes, scope_);
    own_control_ = device_->peer_access()->map_host(own_->control->data(), sizeof(RankControl));
    offer.id = runtime::publish(own_);
    if (scope_ == PeerScope::machine)
      offer.data = own_->data->handle(), offer.control = own_->control->handle();
  }));
  const std::vector<SymmetricOffer> offers = exchange_.all(offer, deadline);
  throw_failures(offers, [](const SymmetricOffer& o) { return o.failure; });

  const ShortText opened(runtime::failure_of([&] {
    reach(requests, offers);
    write_view();
  }));
  const auto all_opened = exchange_.all(opened, deadline);
  own_->data->withdraw(), own_->control->withdraw();
  throw_failures(all_opened, [](const ShortText& text) { return text; });
}

void SymmetricCore::reach(const Requests& requests, const std::vector<SymmetricOffer>& offers) {
  runtime::PeerAccess& access = *device_->peer_access();
  for (std::size_t r = 0; r < offers.size(); ++r) {
    ReachedMemory memory;
    if (requests[r].process == ProcessIdentity::mine()) {
      memory.shared = runtime::find_published(offers[r].id);
      if (!memory.shared) throw EnvironmentError(format("rank {} has ended", r));
      access.reach(*memory.shared->device->peer_access());
    } else {
      memory.data = access.open(offers[r].data, layout_.bytes);
      memory.control = runtime::open_shared_memory(offers[r].control, sizeof(RankControl));
    }
    reached_.push_back(std::move(memory));
  }
}

void SymmetricCore::write_view() {
  runtime::write_view(*own_, &static_cast<RankControl*>(own_control_->data())->kernels, layout_,
                      rank(), options_.flags, reached_);
  runtime::PeerGroup group{
      {rank(), size(), options_.flags, options_.bytes}, own_->data->data(), {}};
  for (const ReachedMemory& memory : reached_)
    group.data.push_back(memory.data_address() + layout_.data_at);
  number_ = device_->peer_access()->groups().add(std::move(group));
}

SymmetricCore::~SymmetricCore() {
  if (closed_) return;
  forget_addresses();
  abort();
  if (own_ && scope_ == PeerScope::machine) own_->data->keep_forever();
}

std::unique_lock<std::mutex> SymmetricCore::while_open() const {
  std::unique_lock lock(mutex_);
  if (closed_) throw UserError("symmetric memory is used after close()");
  return lock;
}

PeersControl& SymmetricCore::control(int rank) const {
  return reached_[static_cast<std::size_t>(rank)].control_address()->kernels;
}

void* SymmetricCore::data(int rank) const {
  const auto lock = while_open();
  if (rank < 0 || rank >= size())
    throw UserError(format("symmetric memory: there is no rank {} among {}", rank, size()));
  return reached_[static_cast<std::size_t>(rank)].data_address() + layout_.data_at;
}

const Peers* SymmetricCore::peers() const {
  const auto lock = while_open();
  return static_cast<const Peers*>(own_->data->data());
}

void SymmetricCore::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_ || reached_.size() != static_cast<std::size_t>(size())) return;
  for (int i = 0; i < size(); ++i) runtime::give_up_at(control((rank() + i) % size()), rank());
}

unsigned SymmetricCore::aborted_by() const {
  const auto lock = while_open();
  return runtime::given_up_by(control(rank()));
}

bool SymmetricCore::aborted() const { return aborted_by() != 0; }

std::optional<PeerStall> SymmetricCore::stalled() const {
  const auto lock = while_open();
  const auto stall = runtime::stall_of(control(rank()), options_.flags);
  if (!stall) return {};
  return PeerStall{stall->rank, stall->flag, stall->epoch};
}

std::string SymmetricCore::reason() const {
  if (!aborted()) return {};
  return runtime::why_given_up(
      [this](int r) {
        const auto lock = while_open();
        const PeersControl& one = control(r);
        return PeersControl{runtime::given_up_by(one),
                            __atomic_load_n(&one.stalled, __ATOMIC_RELAXED)};
      },
      rank(), size(), options_.flags);
}

void SymmetricCore::throw_if_aborted() const {
  if (const std::string why = reason(); !why.empty()) throw EnvironmentError(why);
}

void SymmetricCore::guarded(double seconds, const std::function<void()>& launches) {
  reset();
  std::exception_ptr thrown;
  try {
    within(deadline_in(seconds), [&] {
      const runtime::RankMeeting meeting([this] { runtime::meet(reached_, rank()); });
      launches();
    });
  } catch (...) {
    thrown = std::current_exception();
  }
  // What a rank gave up is over for all of them here, and all know of it. Were it still there at
  // the next use, ranks that are late could not tell whether another one has given up only then.
  try {
    if (has_given_up(deadline_in(seconds + options_.seconds))) {
      if (!thrown) thrown = std::make_exception_ptr(EnvironmentError(reason()));
      reset();
    }
  } catch (...) {
    if (!thrown) throw;
  }
  if (thrown) std::rethrow_exception(thrown);
}

bool SymmetricCore::has_given_up(Deadline deadline) {
  const auto turn = exchange_.turn();
  const std::vector<Meeting> all =
      exchange_.all(aborted() ? Meeting::given_up : Meeting::barrier, deadline);
  return std::ranges::find(all, Meeting::given_up) != all.end();
}

void SymmetricCore::within(Deadline deadline, const std::function<void()>& work) {
  throw_if_aborted();
  try {
    const Watch watch(deadline, [this] { abort(); });
    work();
  } catch (const std::exception& error) {
    if (const std::string why = reason(); !why.empty())
      throw EnvironmentError(why + ": " + error.what());
    abort();  // others wait for what this work would have signalled
    throw;
  } catch (...) {
    abort();
    throw;
  }
  throw_if_aborted();
}

const char* SymmetricCore::name(Meeting meeting) {
  switch (meeting) {
    case Meeting::barrier:
    case Meeting::given_up:
      return "barrier()";
    case Meeting::reset:
      return "reset()";
    case Meeting::close:
    case Meeting::unmapped:
      return "close()";
  }
  return "an unknown call";
}

void SymmetricCore::gather_for(Meeting meeting, Deadline deadline) {
  for (bool together = false; !together;) {
    const std::vector<Meeting> all = exchange_.all(meeting, deadline);
    together = true;
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r] == meeting) continue;
      together = false;
      if (all[r] != Meeting::barrier && all[r] != Meeting::given_up)
        throw EnvironmentError(format("symmetric memory: rank {} is in {}, but rank {} is in {}", r,
                                      name(all[r]), rank(), name(meeting)));
    }
  }
}

void SymmetricCore::barrier() {
  const auto turn = exchange_.turn();
  // Also after a rank gave up: else the others would take what this rank joins next for a barrier.
  const Meeting mine = aborted() ? Meeting::given_up : Meeting::barrier;
  const std::vector<Meeting> all = exchange_.all(mine, soon());
  throw_if_aborted();
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r] != Meeting::barrier)
      throw EnvironmentError(format("symmetric memory: rank {} has left this barrier", r));
}

void SymmetricCore::reset() {
  while_open();
  const auto turn = exchange_.turn();
  const Deadline deadline = soon();
  gather_for(Meeting::reset, deadline);
  const std::string failure = runtime::failure_of([&] { runtime::clear_flags(*own_, layout_); });
  runtime::clear(*reached_[static_cast<std::size_t>(rank())].control_address());
  throw_failures(exchange_.all(ShortText(failure), deadline),
                 [](const ShortText& text) { return text; });
}

void SymmetricCore::close() {
  if (closed_) throw UserError("symmetric memory is closed twice");
  const auto turn = exchange_.turn();
  if (const std::string failure = release(soon()); !failure.empty())
    throw EnvironmentError(failure + "; it is closed on this rank");
}

std::string SymmetricCore::release(Deadline deadline) {
  std::string failure = runtime::failure_of([&] { gather_for(Meeting::close, deadline); });
  if (!failure.empty()) abort();  // others may wait for what this rank will never signal
  // No kernel of this rank uses it any more (a @pre); none of others, unless this has failed.
  let_go();
  if (failure.empty())
    failure = runtime::failure_of([&] { gather_for(Meeting::unmapped, deadline); });
  if (!failure.empty() && own_ && scope_ == PeerScope::machine) own_->data->keep_forever();
  own_control_.reset();
  own_.reset();
  return failure;
}

void SymmetricCore::forget_addresses() noexcept {
  if (number_ != 0) device_->peer_access()->groups().remove(number_);
  number_ = 0;
}

void SymmetricCore::let_go() {
  forget_addresses();
  std::vector<ReachedMemory> reached;  // unmapped without the lock, because that is slow
  const std::lock_guard lock(mutex_);
  closed_ = true;
  reached.swap(reached_);
}

}  // namespace kiln::detail
