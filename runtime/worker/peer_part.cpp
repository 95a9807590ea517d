#include "runtime/worker/peer_part.hpp"

#include <utility>

#include "kiln/error.hpp"
#include "runtime/device/host/shared_memory.hpp"

namespace kiln::runtime {

PeerPart::PeerPart(const std::shared_ptr<Device>& device, const PeerShape& shape)
    : device_(device), shape_(shape), layout_(shape.ranks, shape.flags, shape.bytes) {
  if (!device_->peer_access())
    throw EnvironmentError("other processes cannot reach the memory of device " +
                           device_->info().id);
  own_ = std::make_shared<const RankMemory>(device_, layout_.bytes, PeerScope::machine);
  own_control_ = device_->peer_access()->map_host(own_->control->data(), sizeof(RankControl));
}

PeerOffer PeerPart::offer() const { return {own_->data->handle(), own_->control->handle()}; }

void PeerPart::reach(std::span<const PeerOffer> ranks) {
  std::vector<ReachedMemory> reached;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ReachedMemory& memory = reached.emplace_back();
    if (static_cast<int>(r) == shape_.rank) {
      memory.shared = own_;
    } else {
      memory.data = device_->peer_access()->open(ranks[r].data, layout_.bytes);
      memory.control = open_shared_memory(ranks[r].control, sizeof(RankControl));
    }
  }
  reached_ = std::move(reached);
  write_view(*own_, &static_cast<RankControl*>(own_control_->data())->kernels, layout_, shape_.rank,
             shape_.flags, reached_);
}

void PeerPart::reset() {
  own_->data->withdraw(), own_->control->withdraw();
  clear_flags(*own_, layout_);
  clear(*static_cast<RankControl*>(own_->control->data()));
}

const void* PeerPart::address(const PeerPlace& place) const {
  if (place.rank == PeerPlace::kView) return own_->data->data();
  return reached_.at(static_cast<std::size_t>(place.rank)).data_address() + layout_.data_at +
         place.offset;
}

}  // namespace kiln::runtime
