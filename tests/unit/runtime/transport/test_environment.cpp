// What launchers' variables mean, and what is refused of them.
#include <map>

#include "kiln/error.hpp"
#include "kiln_test.hpp"
#include "runtime/transport/environment.hpp"

using namespace kiln;
using namespace kiln::runtime::ranks;

namespace {

using Variables = std::map<std::string, std::string>;

Lookup lookup(Variables variables) {
  return [variables = std::move(variables)](detail::Variable variable) -> std::string_view {
    const auto found = variables.find(variable.name());
    return found == variables.end() ? std::string_view{} : found->second;
  };
}

/// What is refused, in words; empty when nothing is.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

bool names(const std::string& text, const std::string& variable) {
  return text.find(variable) != std::string::npos;
}

const Variables kTorch{{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"MASTER_ADDR", "n0"},
                       {"MASTER_PORT", "29500"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},    {"SLURM_NTASKS", "8"},
                       {"SLURM_LOCALID", "1"},   {"SLURM_STEP_ID", "0"},
                       {"SLURM_JOB_ID", "4242"}, {"SLURM_STEP_NODELIST", "gpu[07-09,12]"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                         {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};

}  // namespace

TEST_CASE("each launcher's variables tell a rank's place", "[ranks]") {
  for (const auto& [variables, source] :
       {std::pair{kTorch, "torchrun"}, {kSlurm, "Slurm"}, {kOpenMpi, "Open MPI"}}) {
    const auto place = rank_place(lookup(variables));
    REQUIRE(place);
    CHECK(place->rank == 5);
    CHECK(place->size == 8);
    CHECK(place->local_rank == 1);
    CHECK(place->source == source);
  }
  CHECK_FALSE(rank_place(lookup({})));
  CHECK_FALSE(rank_place(lookup({{"RANK", ""}, {"PATH", "/bin"}})));
}

TEST_CASE("how many ranks a host has is told, or not", "[ranks]") {
  const auto local_size = [](Variables variables, const char* name, const char* value) {
    variables.insert_or_assign(name, value);
    return rank_place(lookup(variables))->local_size;
  };
  CHECK(rank_place(lookup(kTorch))->local_size == 0);
  CHECK(local_size(kTorch, "LOCAL_WORLD_SIZE", "4") == 4);
  CHECK(local_size(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2") == 2);
  CHECK(local_size(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "4(x2),3") == 4);
  for (const char* value : {"", "-4", "9", "many", "99999999999"})
    CHECK(local_size(kTorch, "LOCAL_WORLD_SIZE", value) == 0);
}

TEST_CASE("torchrun under mpirun under Slurm: the innermost launcher counts", "[ranks]") {
  Variables all = kSlurm;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  CHECK(rank_place(lookup(all))->source == "Open MPI");
  all.insert(kTorch.begin(), kTorch.end());
  CHECK(rank_place(lookup(all))->source == "torchrun");
  // In MPI's own job it does not, nor is it looked at.
  all["WORLD_SIZE"] = "many";
  CHECK(rank_place(lookup(all), true)->source == "Open MPI");
  CHECK_FALSE(rank_place(lookup(kTorch), true));
}

TEST_CASE("a batch script or shell of a Slurm allocation is no rank", "[ranks]") {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  CHECK_FALSE(rank_place(lookup(batch)));
  CHECK_FALSE(rank_place(lookup({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}})));
}

TEST_CASE("a variable that is missing is named", "[ranks]") {
  for (const auto& [variables, required] :
       {std::pair{kTorch, std::vector{"RANK", "WORLD_SIZE", "LOCAL_RANK"}},
        {kSlurm, std::vector{"SLURM_NTASKS", "SLURM_LOCALID"}},
        {kOpenMpi, std::vector{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                               "OMPI_COMM_WORLD_LOCAL_RANK"}}})
    for (const char* variable : required) {
      Variables some = variables;
      some.erase(variable);
      CAPTURE(variable);
      CHECK(refusal([&] { rank_place(lookup(some)); }).rfind(variable, 0) == 0);
    }
}

TEST_CASE("a variable that is no number or contradicts another is named", "[ranks]") {
  const auto refused = [](const char* variable, const char* value) {
    Variables odd = kTorch;
    odd.insert_or_assign(variable, value);
    return names(refusal([&] { rank_place(lookup(odd)); }), std::string(variable) + "=");
  };
  for (const char* value : {"-1", "5x", " 5", "0x5", "5.0", "99999999999999999999", "8", "9"})
    CHECK(refused("RANK", value));
  for (const char* value : {"0", "-8", "eight", "5", "2000000000"})
    CHECK(refused("WORLD_SIZE", value));
  for (const char* value : {"-1", "6", "one"}) CHECK(refused("LOCAL_RANK", value));
  CHECK_FALSE(refused("RANK", "7"));
}

TEST_CASE("ranks of torchrun meet beside its own port", "[ranks]") {
  Variables variables = kTorch;
  const auto meet = [&] {
    return meeting_point(*rank_place(lookup(variables)), lookup(variables));
  };
  CHECK(meet().host == "n0");
  CHECK(meet().port == 29500 + 1717);
  CHECK(names(meet().chosen, "MASTER_PORT=29500"));
  variables.insert_or_assign("MASTER_PORT", "65000");
  CHECK(meet().port == 65000 - 1717);
  variables.insert_or_assign("KILN_RENDEZVOUS_PORT", "4000");
  CHECK(meet().port == 4000);
  CHECK(names(meet().chosen, "KILN_RENDEZVOUS_PORT"));
  variables.insert_or_assign("KILN_RENDEZVOUS_HOST", "other");
  CHECK(meet().host == "other");
  for (const char* port : {"0", "65536", "http"}) {
    variables.insert_or_assign("KILN_RENDEZVOUS_PORT", port);
    CHECK(names(refusal(meet), "KILN_RENDEZVOUS_PORT"));
  }
  variables = kTorch;
  variables.insert_or_assign("MASTER_PORT", "70000");
  CHECK(names(refusal(meet), "MASTER_PORT"));
  variables.erase("MASTER_PORT");
  CHECK(names(refusal(meet), "MASTER_PORT"));
  variables = kTorch;
  variables.erase("MASTER_ADDR");
  CHECK(names(refusal(meet), "MASTER_ADDR"));
}

TEST_CASE("ranks of Slurm meet at the first host, at a port of their job's", "[ranks]") {
  Variables variables = kSlurm;
  const auto meet = [&] {
    return meeting_point(*rank_place(lookup(variables)), lookup(variables));
  };
  CHECK(meet().host == "gpu07");
  const int port = meet().port;
  CHECK((port >= 12000 && port < 32000));
  variables.insert_or_assign("SLURM_STEP_ID", "1");
  CHECK(meet().port != port);
  variables.insert_or_assign("SLURM_JOB_ID", "4243");
  CHECK(meet().port != port);
  variables.insert_or_assign("SLURM_JOB_ID", "job");
  CHECK(names(refusal(meet), "SLURM_JOB_ID"));
  variables.erase("SLURM_JOB_ID");
  CHECK(names(refusal(meet), "SLURM_JOB_ID"));
  variables = kSlurm;
  variables.erase("SLURM_STEP_NODELIST");
  CHECK(names(refusal(meet), "SLURM_STEP_NODELIST"));
  variables.insert_or_assign("SLURM_JOB_NODELIST", "a,b");
  CHECK(meet().host == "a");
}

TEST_CASE("Open MPI alone does not say where ranks meet", "[ranks]") {
  Variables variables = kOpenMpi;
  const auto meet = [&] {
    return meeting_point(*rank_place(lookup(variables)), lookup(variables));
  };
  CHECK(names(refusal(meet), "KILN_RENDEZVOUS_HOST"));
  variables.insert_or_assign("KILN_RENDEZVOUS_HOST", "n0"),
      variables.insert_or_assign("KILN_RENDEZVOUS_PORT", "4000");
  CHECK(meet().host == "n0");
}

TEST_CASE("the first host of a node list", "[ranks]") {
  CHECK(first_host("node1") == "node1");
  CHECK(first_host("node1,node2") == "node1");
  CHECK(first_host("node[001-010]") == "node001");
  CHECK(first_host("node[7,1-3],x") == "node7");
  CHECK(first_host("rack[1-2]node[03-4]") == "rack1node03");
  CHECK(first_host("a[01-03,7]b,c") == "a01b");
  CHECK(first_host("n-1.example.org,n-2") == "n-1.example.org");
  for (const char* odd : {"", ",a", "a[", "a[]", "a[b]", "a]", "a[1", "[,]", "a[-1]"}) {
    CAPTURE(odd);
    CHECK(names(refusal([&] { first_host(odd); }), "node list"));
  }
}

TEST_CASE("jobs are told apart, and the ranks of one job are not", "[ranks]") {
  const auto identity = [](const Variables& v) {
    return job_identity(rank_place(lookup(v)), lookup(v));
  };
  Variables other = kTorch;
  other.insert_or_assign("RANK", "0"), other.insert_or_assign("LOCAL_RANK", "0");
  CHECK(identity(kTorch) == identity(other));
  for (const char* variable : {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"}) {
    other = kTorch;
    other.insert_or_assign(variable, "12");
    CHECK(identity(kTorch) != identity(other));
  }
  for (const char* variable : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
    other = kSlurm;
    other.insert_or_assign(variable, "12");
    CHECK(identity(kSlurm) != identity(other));
  }
}
