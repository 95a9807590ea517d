#include "tools/ranks.hpp"

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/doctor.hpp"
#include "kiln/error.hpp"
#include "tools/checks.hpp"

namespace kiln::tools {

namespace {

const std::map<std::string, RankStrategy> kStrategies{{"replicate", RankStrategy::replicate},
                                                      {"shard", RankStrategy::shard},
                                                      {"leader", RankStrategy::leader}};
const std::map<std::string, RankReduction> kReductions{{"max", RankReduction::max},
                                                       {"mean", RankReduction::mean}};
const std::map<std::string, OnPartialCache> kPolicies{{"distribute", OnPartialCache::distribute},
                                                      {"retune", OnPartialCache::retune}};

std::unique_ptr<Communicator> open_nccl(const RankRequest& request, const std::string& device,
                                        Deadline deadline) {
  const auto place = rank_place_from_environment();
  if (!place)
    throw UserError(
        "--ranks nccl: no launcher has said which rank this is: start it with torchrun, srun or "
        "mpirun");
  std::optional<int> ordinal;
  if (device.starts_with("cuda:")) ordinal = std::atoi(device.c_str() + 5);
  if (!request.rendezvous.empty())
    return nccl_communicator(request.rendezvous, place->rank, place->size, deadline, ordinal);
  if (place->source != "Open MPI") return nccl_communicator_from_environment(deadline, ordinal);
  const auto bootstrap = mpi_communicator(deadline);
  return nccl_communicator(*bootstrap, deadline, ordinal.value_or(place->local_rank));
}

/// A strategy of earlier versions.
std::string refuse_independent(std::string& strategy) {
  if (strategy != "independent") return {};
  return "there is no strategy 'independent' any more: use no ranks (without --ranks each process "
         "tunes for itself)";
}

std::optional<RankPlace> place_of(const RankRequest& request) {
  return rank_place_from_environment(request.transport == "mpi");
}

}  // namespace

void add_rank_options(CLI::App& command, RankRequest& request) {
  auto* group = command.add_option_group("ranks", "Let all processes of a job choose together");
  auto* ranks =
      group->add_option("--ranks", request.transport, "How the ranks communicate: mpi or nccl")
          ->check(CLI::IsMember({"mpi", "nccl"}));
  const auto add = [&](const char* name, auto& value, const char* text) {
    return group->add_option(name, value, text)->needs(ranks);
  };
  RankOptions& o = request.options;
  // The transformation added last is the first to see the word.
  add("--strategy-ranks", o.strategy, "How the candidates are divided among the ranks")
      ->transform(one_of(kStrategies))
      ->transform(CLI::Validator(refuse_independent, ""));
  add("--reduce-ranks", o.reduction, "How the ranks' times of one candidate are combined")
      ->transform(one_of(kReductions));
  add("--partial-cache", o.on_partial_cache, "What to do where only some ranks have a record")
      ->transform(one_of(kPolicies));
  add("--leader", o.leader, "The rank that times for all (strategy leader)")
      ->check(CLI::NonNegativeNumber);
  add("--finalists", o.finalists, "How many of the best every rank times after sharding");
  add("--arrive-seconds", o.first_seconds, "How long to wait for the last rank to arrive")
      ->check(above_zero());
  add("--step-seconds", o.step_seconds, "Deadline of one exchange")->check(above_zero());
  add("--tune-seconds", o.tune_seconds, "Deadline of each rank's share of the work")
      ->check(above_zero());
  add("--rendezvous", request.rendezvous,
      "A file by which NCCL's ranks find each other (default: torchrun's or Slurm's variables, "
      "else MPI)");
  add("--settle-in", request.settle_in,
      "A folder that all ranks see, where survivors of a failure in the very last exchange agree");
  add("--rank-logs", request.logs, "A folder: each rank writes its JSON to rank-N.json there");
}

std::unique_ptr<RankEnd> open_ranks(const RankRequest& request, const std::string& device) {
  for (const auto& [name, value] : {std::pair{"--arrive-seconds", request.options.first_seconds},
                                    std::pair{"--step-seconds", request.options.step_seconds},
                                    std::pair{"--tune-seconds", request.options.tune_seconds}})
    if (!std::isfinite(value))
      throw UserError(kiln::detail::format("{}: {} is not a time", name, value));
  const Deadline deadline = deadline_in(request.options.first_seconds);
  return std::make_unique<RankEnd>(request.transport == "mpi"
                                       ? mpi_communicator(deadline)
                                       : open_nccl(request, device, deadline));
}

std::string rank_device(const RankRequest& request, const std::string& device) {
  if (request.transport.empty() || (device != "auto" && device != "cuda")) return device;
  const auto place = place_of(request);
  if (!place) return device;
  const std::string own = "cuda:" + std::to_string(place->local_rank);
  for (const DeviceInfo& there : devices())
    if (there.id == own) return own;
  return device;  // the launcher shows each rank its own device alone, or there is none
}

int launched_rank(const RankRequest& request) {
  try {
    const auto place = place_of(request);
    return place ? place->rank : 0;
  } catch (const UserError&) {  // told where the place is needed
    return 0;
  }
}

}  // namespace kiln::tools
