// Ranks that are threads of this process, each with a host device of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "findings.hpp"
#include "kiln/communicators.hpp"
#include "kiln_test.hpp"
#include "runtime/device/host/host_device.hpp"
#include "runtime/symmetric/core.hpp"

namespace kiln::test {

using Ends = std::vector<std::shared_ptr<Communicator>>;

inline Ends ends_of(int ranks) {
  Ends ends;
  for (auto& end : thread_communicators(ranks)) ends.push_back(std::move(end));
  return ends;
}

/// Calls `body` for each rank on a thread of its own. Returns what each of them threw, or "".
inline std::vector<std::string> on_ranks(const Ends& ends,
                                         const std::function<void(int, Communicator&)>& body) {
  std::vector<std::string> thrown(ends.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        body(static_cast<int>(r), *ends[r]);
      } catch (const std::exception& error) {
        thrown[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// The same, and checks that no rank throws or finds anything wrong.
inline void check_on_ranks(const Ends& ends,
                           const std::function<void(int, Communicator&, Findings&)>& body) {
  Findings findings;
  const auto thrown =
      on_ranks(ends, [&](int rank, Communicator& end) { body(rank, end, findings); });
  for (const std::string& text : thrown) CHECK(text.empty());
  CHECK(findings.wrong().empty());
}

inline std::unique_ptr<detail::SymmetricCore> symmetric(const Ends& ends, int rank,
                                                        const SymmetricOptions& options) {
  return std::make_unique<detail::SymmetricCore>(runtime::make_host_device(),
                                                 ends[static_cast<std::size_t>(rank)], options);
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kiln::test
