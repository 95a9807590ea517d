// Operations of ranks that begin again and again with the same arguments, so that their launches
// can be captured: what a round multiplies is copied to one place before. And epochs that begin
// near their end.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "experts_test.hpp"
#include "runtime/device/device.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::test {

inline runtime::Device& device_of(const Runtime& runtime) {
  return *detail::Access::engine(runtime)->device();
}

/// One operation on one rank. Rounds repeat after PeerData's factors.
template <class T>
class RepeatedOperation {
 public:
  using Start = std::function<void(Stream, T* c, const T* a)>;
  using IsRight = std::function<bool(const std::vector<T>& c, int round)>;
  static constexpr int kRounds = PeerData<T>::kFactors;

  /// `rounds`: A of each. `start` owns what else it needs. `load` makes the kernel ready.
  RepeatedOperation(const Runtime& runtime, const std::vector<std::vector<T>>& rounds,
                    std::size_t outputs, Start start, IsRight is_right, std::function<void()> load)
      : device_(device_of(runtime)),
        a_(runtime.array<T>(rounds.front().size())),
        c_(runtime.array<T>(outputs)),
        start_(std::move(start)),
        is_right_(std::move(is_right)),
        load_(std::move(load)) {
    for (const std::vector<T>& a : rounds) rounds_.push_back(runtime.array(a));
  }

  /// Compiles and loads its kernel; launches nothing.
  void load() const { load_(); }
  void feed(Stream stream, int round) const {
    device_.copy_on_device(a_.data(), rounds_[std::size_t(round % kRounds)].data(),
                           a_.size() * sizeof(T), stream);
  }
  void start(Stream stream) const { start_(stream, c_.data(), a_.data()); }
  void feed_and_start(Stream stream, int round) const {
    feed(stream, round);
    start(stream);
  }
  /// @pre the stream has ended
  std::vector<T> result() const { return c_.download(); }
  bool is_right(int round) const { return is_right_(result(), round); }

 private:
  runtime::Device& device_;
  std::vector<Array<T>> rounds_;
  Array<T> a_, c_;
  Start start_;
  IsRight is_right_;
  std::function<void()> load_;
};

template <class T>
bool same_bytes(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

/// Without a config: as a program launches it.
using MaybeConfig = const templates::PeerGemm*;

namespace detail_of_repeated {

template <class T>
std::vector<std::vector<T>> rounds_of(const std::function<std::vector<T>(int round)>& of) {
  std::vector<std::vector<T>> rounds;
  for (int round = 0; round < PeerData<T>::kFactors; ++round) rounds.push_back(of(round));
  return rounds;
}

template <class Operation>
auto chosen(const Operation& operation, MaybeConfig config) {
  return config ? operation.handle().with_config(*config) : operation.handle();
}

template <class Handle, class Problem>
std::function<void()> loads(const Handle& handle, const Problem& problem) {
  return [handle, problem] { static_cast<void>(handle.workspace_size(problem)); };
}

}  // namespace detail_of_repeated

/// `data` and `memory` must outlive what these return. `data` has the rows of one rank.
template <class T>
RepeatedOperation<T> repeated_gather(const Runtime& runtime, const SymmetricMemory& memory,
                                     const PeerData<T>& data, int m, int n, int k,
                                     MaybeConfig config = nullptr) {
  const auto b = std::make_shared<Array<T>>(runtime.array(data.b()));
  const templates::AllGatherGemm<T> operation(runtime, memory);
  const auto kernel = detail_of_repeated::chosen(operation, config);
  return {runtime,
          detail_of_repeated::rounds_of<T>(
              [&](int round) { return data.a(PeerData<T>::factor(memory.rank(), round)); }),
          data.gathered_elements(memory.size()),
          [kernel, b, &memory, m, n, k](Stream stream, T* c, const T* a) {
            kernel(stream, c, a, static_cast<const T*>(b->data()),
                   static_cast<const T*>(memory.data()), a, memory.peers(), m, n, k, memory.size());
          },
          [&data, &memory](const std::vector<T>& c, int round) {
            return data.gathered(c, memory.size(), round);
          },
          detail_of_repeated::loads(kernel, templates::PeerGemmProblem{m, n, k, memory.size()})};
}

/// `data` has the rows of all ranks.
template <class T>
RepeatedOperation<T> repeated_scatter(const Runtime& runtime, const SymmetricMemory& memory,
                                      const PeerData<T>& data, int m, int n, int k,
                                      MaybeConfig config = nullptr) {
  const auto b = std::make_shared<Array<T>>(runtime.array(data.b()));
  const templates::ReduceScatterGemm<T> operation(runtime, memory);
  const auto kernel = detail_of_repeated::chosen(operation, config);
  return {runtime,
          detail_of_repeated::rounds_of<T>(
              [&](int round) { return data.a(PeerData<T>::factor(memory.rank(), round)); }),
          data.scattered_elements(memory.size()),
          [kernel, b, &memory, m, n, k](Stream stream, T* c, const T* a) {
            kernel(stream, c, a, static_cast<const T*>(b->data()), static_cast<T*>(memory.data()),
                   memory.peers(), m, n, k, memory.size());
          },
          [&data, &memory](const std::vector<T>& c, int round) {
            return data.scattered(c, memory.rank(), memory.size(), round);
          },
          detail_of_repeated::loads(kernel, templates::PeerGemmProblem{m, n, k, memory.size()})};
}

template <class T>
RepeatedOperation<T> repeated_experts_gather(const Runtime& runtime, const SymmetricMemory& memory,
                                             const ExpertsData<T>& data,
                                             MaybeConfig config = nullptr) {
  const templates::ExpertsProblem p = data.problem();
  const auto b = std::make_shared<Array<T>>(runtime.array(data.b()));
  const auto tokens = std::make_shared<Array<int>>(runtime.array(data.tokens()));
  const auto ends = std::make_shared<Array<int>>(runtime.array(data.ends()));
  const templates::ExpertsGather<T> operation(runtime, memory);
  const auto kernel = detail_of_repeated::chosen(operation, config);
  return {runtime,
          detail_of_repeated::rounds_of<T>(
              [&](int round) { return data.tokens_of(memory.rank(), round); }),
          std::size_t(p.rows()) * std::size_t(p.n),
          [kernel, b, tokens, ends, &memory, p](Stream stream, T* c, const T* a) {
            kernel(stream, c, a, static_cast<const T*>(b->data()),
                   static_cast<const T*>(memory.data()), static_cast<const int*>(tokens->data()),
                   static_cast<const int*>(ends->data()), memory.peers(), p.m, p.n, p.k, p.groups,
                   p.top, p.ranks);
          },
          [&data](const std::vector<T>& c, int round) { return data.gathered(c, round); },
          detail_of_repeated::loads(kernel, p)};
}

template <class T>
RepeatedOperation<T> repeated_experts_combine(const Runtime& runtime, const SymmetricMemory& memory,
                                              const ExpertsData<T>& data,
                                              MaybeConfig config = nullptr) {
  const templates::ExpertsProblem p = data.problem();
  const auto b = std::make_shared<Array<T>>(runtime.array(data.b()));
  const auto ends = std::make_shared<Array<int>>(runtime.array(data.ends()));
  const auto places = std::make_shared<Array<int>>(runtime.array(data.places()));
  const auto weights = std::make_shared<Array<float>>(runtime.array(data.weights()));
  const templates::ExpertsCombine<T> operation(runtime, memory);
  const auto kernel = detail_of_repeated::chosen(operation, config);
  return {runtime,
          detail_of_repeated::rounds_of<T>(
              [&](int round) { return data.rows_of(memory.rank(), round); }),
          std::size_t(p.m) * std::size_t(p.n),
          [kernel, b, ends, places, weights, &memory, p](Stream stream, T* c, const T* a) {
            kernel(stream, c, a, static_cast<const T*>(b->data()),
                   static_cast<const int*>(ends->data()), static_cast<const int*>(places->data()),
                   static_cast<const float*>(weights->data()), memory.peers(), p.m, p.n, p.k,
                   p.groups, p.top, p.ranks);
          },
          [&data, &memory](const std::vector<T>& c, int round) {
            return data.combined(c, memory.rank(), round);
          },
          detail_of_repeated::loads(kernel, p)};
}

/// This rank's view, on the host.
inline Peers peers_of(const Runtime& runtime, const SymmetricMemory& memory) {
  Peers view{};
  device_of(runtime).copy_to_host(&view, memory.peers(), sizeof view);
  return view;
}

/// Collective. Sets the memory as if `done` operations had been done in it, modulo 2^32.
/// @pre none is running
inline void begin_behind(const Runtime& runtime, const SymmetricMemory& memory, unsigned done) {
  runtime::Device& device = device_of(runtime);
  const Peers view = peers_of(runtime, memory);
  Peers::Peer own{};
  device.copy_to_host(&own, view.peer + view.rank, sizeof own);
  const std::vector<unsigned> flags(std::size_t(view.size) * view.flags, done);
  device.copy_to_device(own.flags, flags.data(), flags.size() * sizeof(unsigned));
  device.copy_to_device(view.counters + std::size_t(view.rank) * view.flags, &done, sizeof done);
  memory.barrier();
}

/// How many operations this rank has ended in this memory, modulo 2^32. @pre none is running
inline unsigned operations_done(const Runtime& runtime, const SymmetricMemory& memory) {
  const Peers view = peers_of(runtime, memory);
  unsigned done = 0;
  device_of(runtime).copy_to_host(&done, view.counters + std::size_t(view.rank) * view.flags,
                                  sizeof done);
  return done;
}

}  // namespace kiln::test
