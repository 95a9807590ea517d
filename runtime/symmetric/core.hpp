// What stands behind kiln::SymmetricMemory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kiln/symmetric.hpp"
#include "runtime/device/rank_memory.hpp"
#include "runtime/symmetric/exchange.hpp"

namespace kiln::detail {

class SymmetricCore {
 public:
  SymmetricCore(std::shared_ptr<runtime::Device> device, std::shared_ptr<Communicator> ranks,
                const SymmetricOptions& options);
  ~SymmetricCore();

  int rank() const noexcept { return exchange_.rank(); }
  int size() const noexcept { return exchange_.size(); }
  const SymmetricOptions& options() const noexcept { return options_; }
  void* data(int rank) const;
  const Peers* peers() const;
  void within(Deadline deadline, const std::function<void()>& work);
  /// As a guard (SymmetricMemory::guard) calls it.
  void guarded(double seconds, const std::function<void()>& launches);
  void abort() noexcept;
  bool aborted() const;
  std::optional<PeerStall> stalled() const;
  void barrier();
  void reset();
  void close();

 private:
  using Requests = std::vector<runtime::SymmetricRequest>;
  /// What a rank has come for; `given_up`: for a barrier, after a rank has given up.
  enum class Meeting : char { barrier, given_up, reset, close, unmapped };

  void make(const Requests& requests, Deadline deadline);
  void reach(const Requests& requests, const std::vector<runtime::SymmetricOffer>& offers);
  void write_view();
  static const char* name(Meeting meeting);
  /// Returns when all ranks have come for the same. Those in a barrier are waited for: they leave
  /// it, and come again. @throws EnvironmentError naming a rank that is late or has come for
  /// something else
  void gather_for(Meeting meeting, Deadline deadline);
  /// Returns why the other ranks did not do it, too; empty: they did.
  std::string release(Deadline deadline);
  /// From now on no other rank's memory is reached.
  void let_go();
  /// From now on its addresses mean nothing (PeerGroups).
  void forget_addresses() noexcept;
  /// The memory stays open while this is held. @throws UserError when it is closed
  std::unique_lock<std::mutex> while_open() const;
  /// Collective. Whether a rank knows that one has given up.
  bool has_given_up(Deadline deadline);
  void throw_if_aborted() const;
  /// Which rank gave up, and what it waited for. Empty: none has.
  std::string reason() const;
  /// 0, or 1 + the rank that gave up.
  unsigned aborted_by() const;
  PeersControl& control(int rank) const;
  Deadline soon() const { return deadline_in(options_.seconds); }

  const SymmetricOptions options_;
  std::shared_ptr<runtime::Device> device_;
  runtime::RankExchange exchange_;
  const runtime::SymmetricLayout layout_;
  runtime::PeerScope scope_ = runtime::PeerScope::process;
  std::shared_ptr<const runtime::RankMemory> own_;
  std::unique_ptr<runtime::PeerMemory> own_control_;  ///< as kernels see it
  std::vector<runtime::ReachedMemory> reached_;       ///< by rank
  bool closed_ = false;
  std::uint64_t number_ = 0;  ///< in PeerGroups; 0: none
  mutable std::mutex mutex_;  ///< guards the above: any thread may give up while one closes
};

}  // namespace kiln::detail
