// One piece of work per key and process: the first caller does it, the others get its outcome.
#pragma once

#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <optional>

namespace kiln::cache {

/// Safe from any number of threads. Keys do not wait for each other. `Key` has a `<`.
template <class Key, class Outcome>
class SingleFlight {
 public:
  /// Runs `work` unless another thread is doing so for this key; in that case waits for that thread
  /// and returns its outcome, or throws what it threw. A later call runs `work` again. `work` must
  /// not ask for its own key.
  template <class Work>
  Outcome run(const Key& key, Work&& work) {
    auto [mine, theirs] = board(key);
    return mine ? fly(key, *mine, work) : theirs.get();
  }

  /// As run(), but returns nothing instead of waiting.
  template <class Work>
  std::optional<Outcome> try_run(const Key& key, Work&& work) {
    auto [mine, theirs] = board(key);
    if (!mine) return std::nullopt;
    return fly(key, *mine, work);
  }

 private:
  struct Boarded {
    std::optional<std::promise<Outcome>> mine;  ///< the caller is to work
    std::shared_future<Outcome> theirs;         ///< another thread is working
  };

  Boarded board(const Key& key) {
    std::lock_guard lock(mutex_);
    if (const auto flight = flights_.find(key); flight != flights_.end())
      return {std::nullopt, flight->second};
    Boarded first_aboard{std::promise<Outcome>(), {}};
    flights_.emplace(key, first_aboard.mine->get_future().share());
    return first_aboard;
  }

  template <class Work>
  Outcome fly(const Key& key, std::promise<Outcome>& mine, Work& work) {
    // A caller that comes after landing must see what the work left behind (the store), not its
    // promise.
    const auto land = [&] {
      std::lock_guard lock(mutex_);
      flights_.erase(key);
    };
    std::optional<Outcome> outcome;
    try {
      outcome.emplace(work());
    } catch (...) {
      land();
      mine.set_exception(std::current_exception());
      throw;
    }
    land();
    mine.set_value(*outcome);
    return *std::move(outcome);
  }

  std::mutex mutex_;
  std::map<Key, std::shared_future<Outcome>> flights_;
};

}  // namespace kiln::cache
