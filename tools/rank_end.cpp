#include "tools/rank_end.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::tools {

namespace {

/// What each rank says before anything is asked of it.
struct Opening {
  char settling = 0;
  std::array<char, 511> trouble{};

  std::string_view text() const {
    return {trouble.data(), static_cast<std::size_t>(
                                std::find(trouble.begin(), trouble.end(), '\0') - trouble.begin())};
  }
};

}  // namespace

Communicator::Failure RankEnd::seen(Failure failure) {
  used_ = true;
  broken_ = broken_ || failure;
  return failure;
}

Communicator::Failure RankEnd::gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                      Deadline d) {
  return seen(base_->gather(mine, all, d));
}

Communicator::Failure RankEnd::reduce(std::span<float> values, Reduction op, Deadline d) {
  return seen(base_->reduce(values, op, d));
}

Communicator::Failure RankEnd::broadcast(std::span<std::byte> bytes, int root, Deadline d) {
  return seen(base_->broadcast(bytes, root, d));
}

void RankEnd::abort(const RankFailure& why) noexcept {
  used_ = broken_ = true;
  base_->abort(why);
}

std::optional<bool> RankEnd::settle(const Digest& question, bool proposal, Deadline d) {
  return base_->settle(question, proposal, d);
}

Communicator::Failure RankEnd::split(int group, std::unique_ptr<Communicator>& part, Deadline d) {
  return seen(base_->split(group, part, d));
}

std::optional<RankFailure> RankEnd::begin(const std::string& trouble,
                                          const std::filesystem::path& folder, double seconds) {
  auto cannot = ranks_that_cannot(trouble, !folder.empty(), deadline_in(seconds));
  if (!cannot && !broken_ && !folder.empty()) {
    const Deadline deadline = deadline_in(seconds);
    std::string why;
    base_ = settle_in(std::move(base_), folder, deadline, &why);
    // An exchange tells whether the folder or the transport failed.
    if (!settles())
      why = kiln::detail::format("--settle-in: {}",
                                 why.empty() ? "ranks cannot settle in " + folder.string() : why);
    cannot = ranks_that_cannot(why, true, deadline);
  }
  used_ = broken_;
  return cannot;
}

bool RankEnd::all_well(bool well, double seconds) {
  const char mine = well ? 1 : 0;
  std::vector<char> all(static_cast<std::size_t>(size()));
  return !broken_ &&
         !gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                 deadline_in(seconds)) &&
         std::find(all.begin(), all.end(), 0) == all.end();
}

std::optional<RankFailure> RankEnd::ranks_that_cannot(const std::string& trouble, bool settling,
                                                      Deadline d) {
  Opening mine;
  mine.settling = settling ? 1 : 0;
  trouble.copy(mine.trouble.data(), mine.trouble.size());
  std::vector<Opening> all(static_cast<std::size_t>(size()));
  if (gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), d))
    return {};
  RankFailure failure{RankFailure::Kind::aborted, {}, ""};
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].text().empty() || (!failure.text.empty() && failure.text != all[r].text())) continue;
    failure.text = all[r].text();
    failure.ranks.push_back(static_cast<int>(r));
  }
  if (!failure.ranks.empty()) return failure;
  const auto odd = std::find_if(all.begin(), all.end(),
                                [&](const Opening& o) { return o.settling != all[0].settling; });
  if (odd == all.end()) return {};
  return RankFailure{RankFailure::Kind::mismatch,
                     {static_cast<int>(odd - all.begin())},
                     "--settle-in is for all ranks or for none"};
}

}  // namespace kiln::tools
