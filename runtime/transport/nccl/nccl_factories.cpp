// The public ways to a communicator over NCCL.
#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/transport/nccl/nccl_communicator.hpp"
#include "runtime/transport/rendezvous.hpp"

namespace kiln {

namespace {

using namespace runtime;
using namespace runtime::ranks;
using detail::format;

std::shared_ptr<const NcclTable> the_table() {
  NcclProbe probe = open_nccl();
  if (!probe.table) throw EnvironmentError("NCCL: " + probe.reason);
  return std::move(probe.table);
}

/// The ordinal of the device of the current context.
std::optional<int> current_device(const DriverTable& driver) {
  CUcontext current = nullptr;
  driver.check(driver.CtxGetCurrent(&current), "cuCtxGetCurrent");
  if (!current) return {};
  CUdevice wanted = 0, device = 0;
  driver.check(driver.CtxGetDevice(&wanted), "cuCtxGetDevice");
  int count = 0;
  driver.check(driver.DeviceGetCount(&count), "cuDeviceGetCount");
  for (int ordinal = 0; ordinal < count; ++ordinal)
    if (driver.DeviceGet(&device, ordinal) == CUDA_SUCCESS && device == wanted) return ordinal;
  return {};
}

/// The device that a launcher meant: one per local rank, or the only one that this process sees.
int device_of(const RankPlace& place, const DriverTable& driver) {
  int count = 0;
  driver.check(driver.DeviceGetCount(&count), "cuDeviceGetCount");
  if (count == 1) return 0;
  if (place.local_rank < count) return place.local_rank;
  throw UserError(
      format("local rank {} ({}) has no device: this process sees {}; check "
             "CUDA_VISIBLE_DEVICES, or name a device",
             place.local_rank, place.source, count));
}

std::shared_ptr<const CudaContext> context_on(const NcclTable& table, std::optional<int> device) {
  if (!device) device = current_device(*table.driver);
  if (!device)
    throw UserError(
        "NCCL: no CUDA context is current and no device was named: set a context, or name the "
        "device");
  int count = 0;
  table.driver->check(table.driver->DeviceGetCount(&count), "cuDeviceGetCount");
  if (*device < 0 || *device >= count)
    throw UserError(format("device {}: this process sees {} CUDA devices", *device, count));
  return std::make_shared<const CudaContext>(table.driver, *device);
}

/// Collective. @throws the reason of the first rank that cannot go on, if there is one
void all_ready(Communicator& bootstrap, const std::string& why, Deadline deadline) {
  constexpr std::size_t kMost = 512;
  std::vector<char> mine(kMost, 0), all(kMost * static_cast<std::size_t>(bootstrap.size()));
  why.copy(mine.data(), kMost - 1);
  if (auto failure = bootstrap.gather(std::as_bytes(std::span(mine)),
                                      std::as_writable_bytes(std::span(all)), deadline))
    throw EnvironmentError("NCCL: the ranks did not meet: " + failure->describe());
  for (int r = 0; r < bootstrap.size(); ++r) {
    const char* text = all.data() + kMost * static_cast<std::size_t>(r);
    if (*text) throw EnvironmentError(format("NCCL cannot be used on rank {}: {}", r, text));
  }
}

}  // namespace

std::unique_ptr<Communicator> nccl_communicator(void* comm, Stream stream) {
  if (!comm) throw UserError("nccl_communicator: comm is null");
  const auto table = the_table();
  const auto nccl_comm = static_cast<ncclComm_t>(comm);
  std::optional<int> device = current_device(*table->driver);
  if (!device) {
    int of_comm = 0;
    if (table->CommCuDevice(nccl_comm, &of_comm) != ncclSuccess)
      throw EnvironmentError("NCCL: the communicator does not say which device it uses");
    device = of_comm;
  }
  return adopt_nccl(table, context_on(*table, device), nccl_comm,
                    static_cast<CUstream>(stream.handle));
}

std::unique_ptr<Communicator> nccl_communicator(Communicator& bootstrap, Deadline deadline,
                                                std::optional<int> device) {
  std::shared_ptr<const NcclTable> table;
  std::shared_ptr<const CudaContext> context;
  std::string why;
  try {
    table = the_table();
    context = context_on(*table, device);
  } catch (const std::exception& error) {
    why = error.what();
  }
  all_ready(bootstrap, why, deadline);
  return make_nccl(table, context, bootstrap.rank(), bootstrap.size(),
                   carry_over(bootstrap, deadline), deadline);
}

std::unique_ptr<Communicator> nccl_communicator_from_environment(Deadline deadline,
                                                                 std::optional<int> device) {
  const Lookup environment = process_environment();
  const auto place = rank_place(environment);
  if (!place)
    throw UserError(
        "NCCL: no launcher's variables are set (torchrun's RANK, WORLD_SIZE and "
        "LOCAL_RANK, or a job step of Slurm)");
  const auto table = the_table();
  if (!device) device = current_device(*table->driver);
  if (!device) device = device_of(*place, *table->driver);
  const auto carry = [&](std::span<std::byte> bytes) {
    if (place->size == 1) return;
    meet_over_tcp({place->rank, place->size, job_identity(place, environment), deadline},
                  meeting_point(*place, environment), bytes);
  };
  return make_nccl(table, context_on(*table, device), place->rank, place->size, carry, deadline);
}

std::unique_ptr<Communicator> nccl_communicator(const std::filesystem::path& file, int rank,
                                                int size, Deadline deadline,
                                                std::optional<int> device) {
  if (size < 1 || rank < 0 || rank >= size)
    throw UserError(format("nccl_communicator: rank {} does not exist among {} ranks", rank, size));
  if (file.empty()) throw UserError("nccl_communicator: file is empty");
  const Lookup environment = process_environment();
  const auto table = the_table();
  const auto carry = [&](std::span<std::byte> bytes) {
    meet_over_file({rank, size, job_identity(rank_place(environment), environment), deadline}, file,
                   bytes);
  };
  return make_nccl(table, context_on(*table, device), rank, size, carry, deadline);
}

}  // namespace kiln
