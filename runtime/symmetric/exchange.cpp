#include "runtime/symmetric/exchange.hpp"

#include <fstream>
#include <functional>
#include <string>

#include <unistd.h>

#include "runtime/support/random.hpp"

namespace kiln::runtime {

ProcessIdentity ProcessIdentity::mine() {
  static const std::uint64_t machine = [] {
    std::string boot;  // the same in all containers of a machine, and no other machine's
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return static_cast<std::uint64_t>(std::hash<std::string>{}(boot));
  }();
  static const std::uint64_t process = unpredictable_bits();
  return {machine, process, static_cast<std::uint64_t>(::getpid())};
}

}  // namespace kiln::runtime
