#include "runtime/transport/environment.hpp"

#include <charconv>
#include <cstdlib>

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

constexpr int kMostRanks = 1 << 20;

struct Launcher {
  const char* name;
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Launcher kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Launcher kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher kSlurm{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                          "SLURM_STEP_TASKS_PER_NODE"};

const char* set(const Lookup& environment, const char* name) {
  const char* value = environment(name);
  return value && *value ? value : nullptr;
}

long number(const char* name, std::string_view text, long least, long most) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    throw UserError(
        format("{}={}: must be a number from {} to {}", name, text.substr(0, 64), least, most));
  return value;
}

/// The number that a text begins with: `4(x2),3` is Slurm's for hosts with four ranks, and one with
/// three. 0: none, or more than there are ranks.
int leading_number(const char* text, int most) {
  int value = 0;
  if (text) std::from_chars(text, text + std::char_traits<char>::length(text), value);
  return value < 0 || value > most ? 0 : value;
}

std::optional<RankPlace> place_by(const Launcher& launcher, const Lookup& environment) {
  const char* rank = set(environment, launcher.rank);
  const char* size = set(environment, launcher.size);
  const char* local = set(environment, launcher.local_rank);
  if (!rank && !size && !local) return {};
  for (const auto& [value, name] :
       {std::pair{rank, launcher.rank}, {size, launcher.size}, {local, launcher.local_rank}})
    if (!value)
      throw UserError(
          format("{} is not set, but another variable of {} is: set {}, {} and {}, or "
                 "none of them",
                 name, launcher.name, launcher.rank, launcher.size, launcher.local_rank));
  RankPlace place;
  place.source = launcher.name;
  place.size = static_cast<int>(number(launcher.size, size, 1, kMostRanks));
  place.rank = static_cast<int>(number(launcher.rank, rank, 0, kMostRanks));
  place.local_rank = static_cast<int>(number(launcher.local_rank, local, 0, kMostRanks));
  if (place.rank >= place.size)
    throw UserError(
        format("{}={} is not below {}={}", launcher.rank, place.rank, launcher.size, place.size));
  if (place.local_rank > place.rank)
    throw UserError(format("{}={} is above {}={}", launcher.local_rank, place.local_rank,
                           launcher.rank, place.rank));
  place.local_size = leading_number(set(environment, launcher.local_size), place.size);
  return place;
}

/// Only within a step is there a process per task; a batch script and a shell of an allocation have
/// some of the variables, too.
bool in_slurm_step(const Lookup& environment) {
  return set(environment, "SLURM_PROCID") &&
         (set(environment, "SLURM_STEP_ID") || set(environment, "SLURM_STEPID"));
}

const char* first_set(const Lookup& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = set(environment, name)) return value;
  return nullptr;
}

const char* slurm_job(const Lookup& e) { return first_set(e, {"SLURM_JOB_ID", "SLURM_JOBID"}); }
const char* slurm_step(const Lookup& e) { return first_set(e, {"SLURM_STEP_ID", "SLURM_STEPID"}); }

MeetingPoint meet_by_torchrun(const Lookup& environment) {
  const char* host = set(environment, "MASTER_ADDR");
  const char* port = set(environment, "MASTER_PORT");
  if (!host || !port)
    throw UserError(format("{} is not set, but RANK is: it says where the ranks meet",
                           host ? "MASTER_PORT" : "MASTER_ADDR"));
  const long master = number("MASTER_PORT", port, 1, 65535);
  const long ours = master + 1717 > 65535 ? master - 1717 : master + 1717;
  return {host, static_cast<std::uint16_t>(ours),
          format("MASTER_PORT={} {} 1717", master, ours > master ? "+" : "-")};
}

MeetingPoint meet_by_slurm(const Lookup& environment) {
  const char* nodes =
      first_set(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const char* job = slurm_job(environment);
  if (!nodes || !job)
    throw UserError(format("{} is not set, but SLURM_PROCID is: it says where the ranks meet",
                           nodes ? "SLURM_JOB_ID" : "SLURM_STEP_NODELIST"));
  const long id = number("SLURM_JOB_ID", job, 0, 1L << 40);
  const long step = number("SLURM_STEP_ID", slurm_step(environment), 0, 1L << 40);
  return {first_host(nodes), static_cast<std::uint16_t>(12000 + (id * 37 + step) % 20000),
          format("it follows from SLURM_JOB_ID={} and SLURM_STEP_ID={}", id, step)};
}

}  // namespace

Lookup process_environment() {
  return [](const char* name) { return std::getenv(name); };
}

std::optional<RankPlace> rank_place(const Lookup& environment, bool mpi) {
  if (!mpi)
    if (auto place = place_by(kTorchrun, environment)) return place;
  if (auto place = place_by(kOpenMpi, environment)) return place;
  if (in_slurm_step(environment)) return place_by(kSlurm, environment);
  return {};
}

MeetingPoint meeting_point(const RankPlace& place, const Lookup& environment) {
  const char* host = set(environment, "KILN_RENDEZVOUS_HOST");
  const char* port = set(environment, "KILN_RENDEZVOUS_PORT");
  MeetingPoint point;
  if (host && port) {
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
  if (host) point.host = host;
  if (port) {
    point.port = static_cast<std::uint16_t>(number("KILN_RENDEZVOUS_PORT", port, 1, 65535));
    point.chosen = "KILN_RENDEZVOUS_PORT";
  }
  return point;
}

std::string job_identity(const std::optional<RankPlace>& place, const Lookup& environment) {
  if (!place) return "a job without a launcher";
  std::string text = format("{}, {} ranks", place->source, place->size);
  const auto add = [&](const char* name, const char* value) {
    if (value) text += format(", {}={}", name, value);
  };
  if (place->source == kTorchrun.name) {
    for (const char* name : {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"})
      add(name, set(environment, name));
  } else if (place->source == kSlurm.name) {
    add("job", slurm_job(environment));
    add("step", slurm_step(environment));
    add("restart", set(environment, "SLURM_RESTART_COUNT"));
  } else {
    add("job", set(environment, "PMIX_NAMESPACE"));
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
  if (host.empty()) refuse("begins with no host");
  return host;
}

}  // namespace kiln::runtime::ranks
