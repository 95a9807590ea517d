// In the place of nccl/ where Kiln was built without nccl.h.
#include "kiln/communicators.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

[[noreturn]] void refuse() {
  throw EnvironmentError("NCCL: this Kiln was built without nccl.h; build it with -Dnccl=enabled");
}

}  // namespace

std::unique_ptr<Communicator> nccl_communicator(void*, Stream) { refuse(); }

std::unique_ptr<Communicator> nccl_communicator(Communicator&, Deadline, std::optional<int>) {
  refuse();
}

std::unique_ptr<Communicator> nccl_communicator_from_environment(Deadline, std::optional<int>) {
  refuse();
}

std::unique_ptr<Communicator> nccl_communicator(const std::filesystem::path&, int, int, Deadline,
                                                std::optional<int>) {
  refuse();
}

std::optional<std::string> nccl_version() { return {}; }

}  // namespace kiln
