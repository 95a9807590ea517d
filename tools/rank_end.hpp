// This process's end of its job, as the command uses it. It keeps track of how the communicator
// fares, and tells the other ranks when this one cannot begin.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "kiln/communicator.hpp"

namespace kiln::tools {

class RankEnd final : public Communicator {
 public:
  explicit RankEnd(std::unique_ptr<Communicator> base) : base_(std::move(base)) {}

  int rank() const noexcept override { return base_->rank(); }
  int size() const noexcept override { return base_->size(); }
  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all, Deadline d) override;
  Failure reduce(std::span<float> values, Reduction op, Deadline d) override;
  Failure broadcast(std::span<std::byte> bytes, int root, Deadline d) override;
  void abort(const RankFailure& why) noexcept override;
  bool settles() const noexcept override { return base_->settles(); }
  std::optional<bool> settle(const Digest& question, bool proposal, Deadline d) override;
  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline d) override;

  /// Once, first, and collective: `trouble` is why this rank cannot begin, empty if it can;
  /// `folder` is where all are to settle, empty: nowhere. The rank that cannot begin, and why;
  /// nothing when all can, or when this end broke, which its next call tells.
  std::optional<RankFailure> begin(const std::string& trouble, const std::filesystem::path& folder,
                                   double seconds);

  /// Collective, called last: whether all ranks did well (`well`: this one did). Waits for them.
  bool all_well(bool well, double seconds);

  /// No call can succeed any more, and the transport cannot be shut down in good order.
  bool broken() const noexcept { return broken_; }
  /// A call since `begin`: the others heard from this rank, or this end is broken.
  bool used() const noexcept { return used_; }

 private:
  Failure seen(Failure failure);
  std::optional<RankFailure> ranks_that_cannot(const std::string& trouble, bool settling,
                                               Deadline d);

  std::unique_ptr<Communicator> base_;
  bool used_ = false, broken_ = false;
};

}  // namespace kiln::tools
