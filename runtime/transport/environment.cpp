#include "runtime/transport/environment.hpp"

#include <charconv>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln {

std::optional<RankPlace> rank_place_from_environment(bool mpi) {
  return runtime::ranks::rank_place(runtime::ranks::process_environment(), mpi);
}

}  // namespace kiln

namespace kiln::runtime::ranks {

namespace {

using kiln::detail::format;
using kiln::detail::Variable;

constexpr int kMostRanks = 1 << 20;

struct Launcher {
  const char* name;
  Variable rank, size, local_rank, local_size;
};
constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Launcher kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher kSlurm{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                          "SLURM_STEP_TASKS_PER_NODE"};

long number(Variable variable, std::string_view text, long least, long most) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    throw UserError(format("{}={}: must be a number from {} to {}", variable.name(),
                           text.substr(0, 64), least, most));
  return value;
}

/// The number that a text begins with: `4(x2),3` is Slurm's for hosts with four ranks, and one with
/// three. 0: none, or more than there are ranks.
int leading_number(std::string_view text, int most) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value < 0 || value > most ? 0 : value;
}

std::optional<RankPlace> place_by(const Launcher& launcher, const Lookup& environment) {
  const std::string_view rank = environment(launcher.rank);
  const std::string_view size = environment(launcher.size);
  const std::string_view local = environment(launcher.local_rank);
  if (rank.empty() && size.empty() && local.empty()) return {};
  for (const auto& [value, variable] :
       {std::pair{rank, launcher.rank}, {size, launcher.size}, {local, launcher.local_rank}})
    if (value.empty())
      throw UserError(
          format("{} is not set, but another variable of {} is: set {}, {} and {}, or "
                 "none of them",
                 variable.name(), launcher.name, launcher.rank.name(), launcher.size.name(),
                 launcher.local_rank.name()));
  RankPlace place;
  place.source = launcher.name;
  place.size = static_cast<int>(number(launcher.size, size, 1, kMostRanks));
  place.rank = static_cast<int>(number(launcher.rank, rank, 0, kMostRanks));
  place.local_rank = static_cast<int>(number(launcher.local_rank, local, 0, kMostRanks));
  if (place.rank >= place.size)
    throw UserError(format("{}={} is not below {}={}", launcher.rank.name(), place.rank,
                           launcher.size.name(), place.size));
  if (place.local_rank > place.rank)
    throw UserError(format("{}={} is above {}={}", launcher.local_rank.name(), place.local_rank,
                           launcher.rank.name(), place.rank));
  place.local_size = leading_number(environment(launcher.local_size), place.size);
  return place;
}

/// The value of the first that is set; empty if none is.
std::string_view first_set(const Lookup& environment, std::initializer_list<Variable> variables) {
  for (const Variable variable : variables)
    if (const std::string_view value = environment(variable); !value.empty()) return value;
  return {};
}

std::string_view slurm_job(const Lookup& environment) {
  return first_set(environment, {"SLURM_JOB_ID", "SLURM_JOBID"});
}
std::string_view slurm_step(const Lookup& environment) {
  return first_set(environment, {"SLURM_STEP_ID", "SLURM_STEPID"});
}

/// Only a step has a process per task. A batch script and the shell of an allocation have some of
/// the variables, too.
bool in_slurm_step(const Lookup& environment) {
  return !environment("SLURM_PROCID").empty() && !slurm_step(environment).empty();
}

MeetingPoint meet_by_torchrun(const Lookup& environment) {
  const std::string_view host = environment("MASTER_ADDR");
  const std::string_view port = environment("MASTER_PORT");
  if (host.empty() || port.empty())
    throw UserError(format("{} is not set, but RANK is: it says where the ranks meet",
                           host.empty() ? "MASTER_ADDR" : "MASTER_PORT"));
  const long master = number("MASTER_PORT", port, 1, 65535);
  const long ours = master + 1717 > 65535 ? master - 1717 : master + 1717;
  return {std::string(host), static_cast<std::uint16_t>(ours),
          format("MASTER_PORT={} {} 1717", master, ours > master ? "+" : "-")};
}

MeetingPoint meet_by_slurm(const Lookup& environment) {
  const std::string_view nodes =
      first_set(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const std::string_view job = slurm_job(environment);
  if (nodes.empty() || job.empty())
    throw UserError(format("{} is not set, but SLURM_PROCID is: it says where the ranks meet",
                           nodes.empty() ? "SLURM_STEP_NODELIST" : "SLURM_JOB_ID"));
  const long id = number("SLURM_JOB_ID", job, 0, 1L << 40);
  const long step = number("SLURM_STEP_ID", slurm_step(environment), 0, 1L << 40);
  return {first_host(nodes), static_cast<std::uint16_t>(12000 + (id * 37 + step) % 20000),
          format("it follows from SLURM_JOB_ID={} and SLURM_STEP_ID={}", id, step)};
}

}  // namespace

Lookup process_environment() {
  return [](detail::Variable variable) { return detail::environment(variable); };
}

std::optional<RankPlace> rank_place(const Lookup& environment, bool mpi) {
  if (!mpi)
    if (auto place = place_by(kTorchrun, environment)) return place;
  if (auto place = place_by(kOpenMpi, environment)) return place;
  if (in_slurm_step(environment)) return place_by(kSlurm, environment);
  return {};
}

MeetingPoint meeting_point(const RankPlace& place, const Lookup& environment) {
  const std::string_view host = environment("KILN_RENDEZVOUS_HOST");
  const std::string_view port = environment("KILN_RENDEZVOUS_PORT");
  MeetingPoint point;
  if (!host.empty() && !port.empty()) {
    point = {};
  } else if (place.source == kTorchrun.name) {
    point = meet_by_torchrun(environment);
  } else if (place.source == kSlurm.name) {
    point = meet_by_slurm(environment);
  } else {
    throw UserError(
        format("{} does not say where ranks can meet: set KILN_RENDEZVOUS_HOST to rank "
               "0's host and KILN_RENDEZVOUS_PORT, or bootstrap by mpi_communicator",
               place.source));
  }
  if (!host.empty()) point.host = host;
  if (!port.empty()) {
    point.port = static_cast<std::uint16_t>(number("KILN_RENDEZVOUS_PORT", port, 1, 65535));
    point.chosen = "KILN_RENDEZVOUS_PORT";
  }
  return point;
}

std::string job_identity(const std::optional<RankPlace>& place, const Lookup& environment) {
  if (!place) return "a job without a launcher";
  std::string text = format("{}, {} ranks", place->source, place->size);
  const auto add = [&](const char* name, std::string_view value) {
    if (!value.empty()) text += format(", {}={}", name, value);
  };
  if (place->source == kTorchrun.name) {
    constexpr Variable kOfTheJob[] = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"};
    for (const Variable variable : kOfTheJob) add(variable.name(), environment(variable));
  } else if (place->source == kSlurm.name) {
    add("job", slurm_job(environment));
    add("step", slurm_step(environment));
    add("restart", environment("SLURM_RESTART_COUNT"));
  } else {
    add("job", environment("PMIX_NAMESPACE"));
  }
  return text;
}

std::string first_host(std::string_view nodes) {
  const auto refuse = [&](const char* why) {
    throw UserError(format("Slurm's node list '{}' {}", nodes.substr(0, 200), why));
  };
  std::string host;
  for (std::size_t i = 0; i < nodes.size() && nodes[i] != ','; ++i) {
    if (nodes[i] == ']') refuse("has a ] without a [");
    if (nodes[i] != '[') {
      host += nodes[i];
      continue;
    }
    const std::size_t end = nodes.find(']', i);
    if (end == std::string_view::npos) refuse("has a [ without a ]");
    const std::string_view inside = nodes.substr(i + 1, end - i - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of("-,"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos)
      refuse("has no number behind a [");
    host += first;
    i = end;
  }
  if (host.empty()) refuse("begins without a host");
  return host;
}

}  // namespace kiln::runtime::ranks
