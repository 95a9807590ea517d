#include "runtime/symmetric/exchange.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>

#include <unistd.h>

#include "kiln/error.hpp"

namespace kiln::runtime {

ShortText::ShortText(std::string_view text) noexcept {
  std::copy_n(text.begin(), std::min(text.size(), characters.size() - 1), characters.begin());
}

ProcessIdentity ProcessIdentity::mine() {
  static const std::uint64_t machine = [] {
    std::string boot;  // the same in all containers of a machine, and no other machine's
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return static_cast<std::uint64_t>(std::hash<std::string>{}(boot));
  }();
  static const std::uint64_t process = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return {machine, process, static_cast<std::uint64_t>(::getpid())};
}

void Exchange::gather(std::span<const std::byte> mine, std::span<std::byte> all,
                      Deadline deadline) {
  if (broken_) throw EnvironmentError("symmetric memory: its ranks have lost each other before");
  const Communicator::Failure failure = ranks_->gather(mine, all, deadline);
  if (!failure) return;
  broken_ = true;
  ranks_->abort(*failure);
  throw EnvironmentError("symmetric memory: " + failure->describe());
}

}  // namespace kiln::runtime
