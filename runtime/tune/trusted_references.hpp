// Which implementations on a device may stand in for the host's references.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cache/single_flight.hpp"
#include "kiln/key.hpp"

namespace kiln::runtime {

/// Thread-safe.
class TrustedReferences {
 public:
  /// Why an implementation is not trusted, as `check` says; empty: it is. Each is checked once; of
  /// several threads that ask, one checks and the others wait. `check` may ask for other ones.
  template <class Check>
  std::string verdict(const Digest& implementation, const Check& check) {
    return checks_.run(implementation, [&] {
      {
        const std::lock_guard lock(mutex_);
        const auto known = verdicts_.find(implementation);
        if (known != verdicts_.end()) return known->second;
      }
      std::string why = check();
      const std::lock_guard lock(mutex_);
      return verdicts_.emplace(implementation, std::move(why)).first->second;
    });
  }

 private:
  cache::SingleFlight<Digest, std::string> checks_;
  std::mutex mutex_;
  std::map<Digest, std::string> verdicts_;
};

}  // namespace kiln::runtime
