#include "runtime/device/host/cluster_memory.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/host/bulk_copy.hpp"
#include "runtime/device/host/warpgroup_mma.hpp"

namespace kiln::runtime {
namespace {

using codegen::HostBulkCopy;
using codegen::HostBulkKind;
using codegen::HostFrame;
using codegen::HostService;
using detail::HostTensorMap;

/// A 32-bit address is a block's number and a place in its shared memory.
constexpr unsigned kRankShift = 24;

std::uint64_t number_of(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

const HostTensorMap& map_of(const HostBulkCopy& copy) {
  return *static_cast<const HostTensorMap*>(copy.map);
}

bool is_load(const HostBulkCopy& copy) {
  return copy.kind == HostBulkKind::load || copy.kind == HostBulkKind::load_shared;
}

}  // namespace

ClusterMemory::ClusterMemory(const BlockLaunch& launch, BlockScratch& scratch)
    : scratch_(scratch),
      blocks_(static_cast<std::uint32_t>(launch.blocks_together())),
      threads_(static_cast<std::uint32_t>(launch.block.count())),
      shared_bytes_(launch.shared_bytes()),
      threads_of_(std::size_t{blocks_} * threads_) {
  for (std::uint32_t rank = 0; rank < blocks_; ++rank) {
    HostFrame& block = frame(rank);
    shared_.push_back(block.shared);
    block.cluster = this;
    block.service = &ClusterMemory::serve;
    block.cluster_rank = rank;
    block.cluster_index[0] = rank % launch.cluster.x;
    block.cluster_index[1] = rank / launch.cluster.x % launch.cluster.y;
    block.cluster_index[2] = rank / launch.cluster.x / launch.cluster.y;
  }
}

void ClusterMemory::begin() {
  for (Thread& thread : threads_of_) {
    thread.stores = {};
    thread.read = {};
    thread.products = {};
    thread.cluster = Thread::away;
  }
  for (std::uint32_t rank = 0; rank < blocks_; ++rank) {
    frame(rank).fault = nullptr;
    start(rank);  // or the mbarriers of the cluster before this one would still be there
  }
  loads_.clear();
  loads_done_ = 0;
  fault_.clear();
}

void ClusterMemory::start(std::uint32_t rank) {
  // Only other blocks can have written there. All ones are NaNs, and no mbarrier.
  if (blocks_ > 1) std::memset(shared_[rank], 0xff, shared_bytes_);
}

void ClusterMemory::fail(std::uint32_t rank, std::string words) {
  if (!fault_.empty()) return;
  fault_ = std::move(words);
  frame(rank).fault = fault_.c_str();
}

bool ClusterMemory::exited(std::uint32_t rank) const {
  const std::uint32_t* next = scratch_.frame(rank).next;
  return std::all_of(next, next + threads_,
                     [](std::uint32_t id) { return id == codegen::kExited; });
}

std::uint64_t ClusterMemory::serve(HostFrame* frame, std::uint32_t thread, HostService service,
                                   const void* p, std::uint64_t x) {
  auto& self = *static_cast<ClusterMemory*>(frame->cluster);
  const std::uint32_t rank = frame->cluster_rank;
  if (!self.fault_.empty())
    return service == HostService::map_shared       ? number_of(p)
           : service == HostService::shared_pointer ? number_of(frame->shared)
                                                    : 0;
  if (service <= HostService::shared_pointer) return self.serve_memory(rank, service, p, x);
  if (service <= HostService::mbarrier_complete) return self.serve_barrier(rank, service, p, x);
  self.serve_work(rank, thread, service, p, x);
  return 0;
}

// --- addresses

std::optional<ClusterMemory::Place> ClusterMemory::locate(std::uint32_t rank,
                                                          const void* address) const {
  for (std::uint32_t i = 0; i < blocks_; ++i) {
    const std::uint32_t block = (rank + i) % blocks_;
    const std::uint64_t offset = number_of(address) - number_of(shared_[block]);
    if (offset < shared_bytes_) return Place{block, offset};
  }
  return std::nullopt;
}

// After a failure a thread still runs to its next suspension, so it gets an address that it may
// use.
std::uint64_t ClusterMemory::serve_memory(std::uint32_t rank, HostService service, const void* p,
                                          std::uint64_t x) {
  if (service == HostService::shared_pointer) {
    const std::uint64_t block = x >> kRankShift, offset = x & ((1u << kRankShift) - 1);
    if (block < blocks_ && offset < shared_bytes_) return number_of(shared_[block] + offset);
    fail(rank, detail::format("{} is no address of the cluster's shared memory", x));
    return number_of(shared_[rank]);
  }
  const std::optional<Place> place = locate(rank, p);
  if (!place) {
    fail(rank, detail::format("an address that is not in the {} bytes of shared memory of a block "
                              "is taken for one of shared memory",
                              shared_bytes_));
  } else if (service == HostService::shared_address) {
    return std::uint64_t{place->rank} << kRankShift | place->offset;
  } else if (x < blocks_) {
    return number_of(shared_[x] + place->offset);
  } else {
    fail(rank, detail::format("shared memory of block {} of a cluster of {} blocks", x, blocks_));
  }
  return service == HostService::map_shared ? number_of(p) : 0;
}

// --- mbarriers

Mbarrier ClusterMemory::read(const Place& place) const {
  std::uint64_t word = 0;
  std::memcpy(&word, memory(place), sizeof word);
  return Mbarrier(word);
}

void ClusterMemory::write(const Place& place, const Mbarrier& barrier) {
  const std::uint64_t word = barrier.word();
  std::memcpy(memory(place), &word, sizeof word);
  ++events_;
}

std::optional<ClusterMemory::Place> ClusterMemory::barrier(std::uint32_t rank, const void* address,
                                                           const char* what) {
  const std::optional<Place> place = locate(rank, address);
  if (!place || place->offset % 8 != 0 || place->offset + 8 > shared_bytes_) {
    fail(rank, detail::format("{} an mbarrier that is not 8 aligned bytes of shared memory", what));
    return std::nullopt;
  }
  if (place->rank != rank && exited(place->rank)) {
    fail(rank, detail::format("{} an mbarrier of block {} of the cluster, which has exited", what,
                              place->rank));
    return std::nullopt;
  }
  return place;
}

std::uint64_t ClusterMemory::serve_barrier(std::uint32_t rank, HostService service, const void* p,
                                           std::uint64_t x) {
  const char* const what = service == HostService::mbarrier_init     ? "initialises"
                           : service == HostService::mbarrier_inval  ? "invalidates"
                           : service == HostService::mbarrier_arrive ? "arrives at"
                                                                     : "counts bytes at";
  const std::optional<Place> place = barrier(rank, p, what);
  if (!place) return 0;
  const std::string name =
      detail::format("the mbarrier at byte {} of shared memory", place->offset);
  if (service == HostService::mbarrier_init) {
    if (x == 0 || x > Mbarrier::kMostArrivals)
      fail(rank, detail::format("{} is initialised for {} arrivals", name, x));
    write(*place, Mbarrier::initialised(x));
    return 0;
  }
  Mbarrier state = read(*place);
  const std::uint64_t before = state.word();
  if (!state.valid()) {
    fail(rank, detail::format("{} {}, which was not initialised, or was overwritten", what, name));
    return 0;
  }
  if (service == HostService::mbarrier_inval) {
    state = Mbarrier(0);
  } else if (service == HostService::mbarrier_arrive) {
    if (x > state.arrivals_missing()) {
      fail(rank, detail::format("{} has {} of {} arrivals missing when {} more arrive", name,
                                state.arrivals_missing(), state.arrivals_per_phase(), x));
      return before;
    }
    state.arrive(x);
  } else {
    const auto bytes = static_cast<std::int64_t>(x);
    if (x > static_cast<std::uint64_t>(Mbarrier::kMostBytes) ||
        !state.expect(service == HostService::mbarrier_expect ? bytes : -bytes)) {
      fail(rank, detail::format("{} cannot count {} bytes beside {}: at most 2^20 - 1", name, x,
                                state.bytes_missing()));
      return before;
    }
  }
  write(*place, state);
  return before;
}

bool ClusterMemory::passed(std::uint32_t rank, std::uint64_t address, std::uint32_t parity) {
  const std::optional<Place> place =
      barrier(rank, reinterpret_cast<const void*>(address), "waits for");
  if (!place) return false;
  const Mbarrier state = read(*place);
  if (place->rank != rank) {
    fail(rank, "waits for an mbarrier of another block of the cluster");
    return false;
  }
  if (!state.valid()) {
    fail(rank, detail::format("waits for the mbarrier at byte {} of shared memory, which was not "
                              "initialised, or was overwritten",
                              place->offset));
    return false;
  }
  return state.complete(parity);
}

std::string ClusterMemory::describe_barrier(std::uint32_t rank, std::uint64_t address,
                                            std::uint32_t parity) const {
  const std::optional<Place> place = locate(rank, reinterpret_cast<const void*>(address));
  if (!place) return "an mbarrier";
  const Mbarrier state = read(*place);
  const std::int64_t bytes = state.bytes_missing();
  return detail::format(
      "the mbarrier at byte {}, phase of parity {}: {} of {} arrivals missing, {} "
      "bytes {}",
      place->offset, parity & 1, state.arrivals_missing(), state.arrivals_per_phase(),
      bytes < 0 ? -bytes : bytes, bytes < 0 ? "more than were expected" : "missing");
}

// --- the cluster's barrier

bool ClusterMemory::passed_cluster(std::uint32_t rank, std::uint32_t thread) {
  Thread& self = at(rank, thread);
  if (self.cluster == Thread::away)
    fail(rank, "a thread waits at the cluster's barrier where it has not arrived");
  if (self.cluster != Thread::open) return false;
  self.cluster = Thread::away;
  return true;
}

bool ClusterMemory::open_cluster_barrier() {
  bool any = false;
  for (std::uint32_t rank = 0; rank < blocks_; ++rank) {
    const std::uint32_t* next = scratch_.frame(rank).next;
    for (std::uint32_t t = 0; t < threads_; ++t) {
      if (next[t] == codegen::kExited) continue;
      if (at(rank, t).cluster != Thread::arrived) return false;
      any = true;
    }
  }
  if (!any) return false;
  for (Thread& thread : threads_of_)
    if (thread.cluster == Thread::arrived) thread.cluster = Thread::open;
  ++events_;
  return true;
}

// --- copies and products

void ClusterMemory::serve_work(std::uint32_t rank, std::uint32_t thread, HostService service,
                               const void* p, std::uint64_t x) {
  Thread& self = at(rank, thread);
  switch (service) {
    case HostService::cluster_arrive:
      if (self.cluster != Thread::away)
        fail(rank, "a thread arrives at the cluster's barrier a second time without having waited");
      self.cluster = Thread::arrived;
      break;
    case HostService::bulk_copy: {
      const HostBulkCopy& copy = *static_cast<const HostBulkCopy*>(p);
      if (copy.kind == HostBulkKind::prefetch)
        check(rank, copy);
      else
        is_load(copy) ? start_load(rank, copy) : start_store(rank, thread, copy);
      break;
    }
    case HostService::bulk_commit:
      self.stores.commit();
      break;
    case HostService::bulk_wait:
      finish_stores(rank, self, x & ~codegen::kOnlyRead, (x & codegen::kOnlyRead) != 0);
      break;
    case HostService::warpgroup_mma:
      self.products.add(*static_cast<const codegen::HostWarpgroupMma*>(p));
      break;
    case HostService::warpgroup_commit:
      self.products.commit();
      break;
    default:
      fail(rank, "asks for what this version of Kiln does not know");
  }
}

bool ClusterMemory::finish_products(std::uint32_t rank, std::uint32_t thread, std::uint32_t left) {
  constexpr std::uint32_t kWarpgroup = 128;
  const std::uint64_t closed = at(rank, thread).products.closed;
  if (closed <= left) return true;
  const std::uint64_t wanted = closed - left;
  const std::uint32_t first = thread / kWarpgroup * kWarpgroup;
  const std::uint32_t last = std::min(first + kWarpgroup, threads_);
  const std::uint32_t* const next = frame(rank).next;
  for (std::uint32_t t = first; t < last; ++t)
    if (next[t] != codegen::kExited && at(rank, t).products.closed < wanted) return false;
  for (std::uint32_t t = first; t < last; ++t) {
    if (next[t] == codegen::kExited) continue;
    auto& products = at(rank, t).products;
    products.finish(products.closed - wanted, [&](const codegen::HostWarpgroupMma& product) {
      const std::string wrong = multiply(product, t, shared_[rank], shared_bytes_);
      if (!wrong.empty()) fail(rank, "a warpgroup's product: " + wrong);
    });
  }
  return true;
}

std::optional<std::uint64_t> ClusterMemory::check(std::uint32_t rank, const HostBulkCopy& copy) {
  const auto wrong = [&](const std::string& words) {
    fail(rank, words);
    return std::nullopt;
  };
  if (!copy.map) {
    if (copy.bytes % 16 != 0 || copy.bytes == 0 || number_of(copy.shared) % 16 != 0 ||
        number_of(copy.other) % 16 != 0)
      return wrong(
          detail::format("a copy of {} bytes: its size and both addresses are to be "
                         "multiples of 16, and it is not empty",
                         copy.bytes));
    return copy.bytes;
  }
  if (const std::string words = unusable(map_of(copy)); !words.empty())
    return wrong("a tensor map " + words);
  const std::uint32_t rank_of_map = map_of(copy).rank;
  if (copy.coordinates != 0 && copy.coordinates != rank_of_map)
    return wrong(detail::format("a box at {} coordinates, but its tensor map has {} dimensions",
                                copy.coordinates, rank_of_map));
  return box_bytes(map_of(copy));
}

void ClusterMemory::start_load(std::uint32_t rank, const HostBulkCopy& copy) {
  const std::optional<std::uint64_t> bytes = check(rank, copy);
  if (!bytes) return;
  const std::optional<Place> to = locate(rank, copy.shared);
  if (!to || to->offset + *bytes > shared_bytes_)
    return fail(rank, detail::format("a copy of {} bytes to {} of a block that has {} bytes of "
                                     "shared memory",
                                     *bytes,
                                     to ? detail::format("byte {}", to->offset)
                                        : std::string("an address outside of the shared memory"),
                                     shared_bytes_));
  if (copy.map && to->offset % 128 != 0)
    return fail(rank, detail::format("a box is copied to byte {} of shared memory, not a multiple "
                                     "of 128",
                                     to->offset));
  if (copy.map)
    if (const std::string words = misplaced(map_of(copy), copy.at, false); !words.empty())
      return fail(rank, "a box " + words);
  if (copy.kind == HostBulkKind::load_shared && !locate(rank, copy.other))
    return fail(rank, "a copy within the cluster is not from shared memory");
  if (copy.multicast >> blocks_)
    return fail(rank, detail::format("a copy to blocks {} (as bits) of a cluster of {}",
                                     copy.multicast, blocks_));
  const std::optional<Place> place = barrier(rank, copy.barrier, "copies with");
  if (!place) return;
  loads_.push_back({copy, rank, *to, *place});
}

bool ClusterMemory::advance_copy() {
  if (loads_done_ == loads_.size()) return false;
  const Load load = loads_[loads_done_++];
  if (loads_done_ == loads_.size()) {
    loads_.clear();
    loads_done_ = 0;
  }
  if (!load.copy.multicast) do_load(load, load.to.rank);
  for (std::uint32_t rank = 0; rank < blocks_; ++rank)
    if (load.copy.multicast >> rank & 1) do_load(load, rank);
  return true;
}

void ClusterMemory::do_load(const Load& load, std::uint32_t to_rank) {
  if (exited(to_rank))
    return fail(load.rank,
                detail::format("block {} of the cluster exited while a copy to byte {} of "
                               "its shared memory was under way",
                               to_rank, load.to.offset));
  std::uint64_t bytes = load.copy.bytes;
  if (load.copy.map) {
    bytes = box_bytes(map_of(load.copy));
    load_box(map_of(load.copy), load.copy.at, shared_[to_rank], load.to.offset);
  } else {
    std::memcpy(shared_[to_rank] + load.to.offset, load.copy.other, bytes);
  }
  const Place at = load.copy.multicast ? Place{to_rank, load.barrier.offset} : load.barrier;
  serve_barrier(load.rank, HostService::mbarrier_complete, memory(at), bytes);
}

void ClusterMemory::start_store(std::uint32_t rank, std::uint32_t thread,
                                const HostBulkCopy& copy) {
  const std::optional<std::uint64_t> bytes = check(rank, copy);
  if (!bytes) return;
  const std::optional<Place> from = locate(rank, copy.shared);
  if (!from || from->rank != rank || from->offset + *bytes > shared_bytes_)
    return fail(rank, detail::format("a copy of {} bytes from {} of a block that has {} bytes of "
                                     "shared memory",
                                     *bytes,
                                     from ? detail::format("byte {}", from->offset)
                                          : std::string("an address outside of the shared memory"),
                                     shared_bytes_));
  if (copy.map && from->offset % 128 != 0)
    return fail(rank,
                detail::format("a box is copied from byte {} of shared memory, not a multiple "
                               "of 128",
                               from->offset));
  if (copy.map)
    if (const std::string words = misplaced(map_of(copy), copy.at, true); !words.empty())
      return fail(rank, "a box " + words);
  at(rank, thread).stores.add(copy);
}

void ClusterMemory::finish_stores(std::uint32_t rank, Thread& thread, std::uint64_t left,
                                  bool only_read) {
  thread.stores.finish(
      left, [&](const HostBulkCopy& copy) { thread.read.add(read_store(rank, copy)); },
      [&] { thread.read.commit(); });
  const std::uint64_t behind = thread.stores.sizes.size();
  thread.read.finish(only_read ? kMostRead : left - behind,
                     [&](const Read& store) { do_store(rank, store); });
}

ClusterMemory::Read ClusterMemory::read_store(std::uint32_t rank, const HostBulkCopy& copy) const {
  constexpr std::uint64_t kSwizzled = 1024;  // the longest run of bytes that a swizzle permutes
  const std::uint64_t from = number_of(copy.shared) - number_of(shared_[rank]);
  const std::uint64_t place = copy.map ? from % kSwizzled : 0;
  Read read{copy, place,
            std::vector<std::byte>(place + (copy.map ? box_bytes(map_of(copy)) : copy.bytes))};
  std::memcpy(read.bytes.data() + place, shared_[rank] + from, read.bytes.size() - place);
  return read;
}

void ClusterMemory::do_store(std::uint32_t rank, const Read& store) {
  const HostBulkCopy& copy = store.copy;
  const bool known =
      copy.map ? store_box(map_of(copy), copy.at, store.bytes.data(), store.place, copy.kind)
               : store_bytes(copy.other, store.bytes.data(), copy.bytes,
                             static_cast<detail::HostElement>(copy.type), copy.kind);
  if (!known) fail(rank, "a copy combines elements of a type for which that does not exist");
}

std::string ClusterMemory::left_over() {
  for (std::size_t i = 0; i < threads_of_.size(); ++i) {
    Thread& thread = threads_of_[i];
    const auto rank = static_cast<std::uint32_t>(i / threads_);
    thread.read.finish(0, [&](const Read& store) { do_store(rank, store); });
    if (!fault_.empty()) return fault_;
    if (!thread.stores.work.empty())
      return detail::format(
          "thread {} of block {} of the cluster exited before {} of its copies from "
          "shared memory were waited for",
          i % threads_, i / threads_, thread.stores.work.size());
  }
  if (loads_done_ != loads_.size())
    return detail::format(
        "all threads exited while a copy to byte {} of the shared memory of block "
        "{} of the cluster was under way",
        loads_[loads_done_].to.offset, loads_[loads_done_].to.rank);
  return {};
}

}  // namespace kiln::runtime
