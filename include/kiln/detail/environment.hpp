// Internal: every environment variable that Kiln reads, in one table. Code reads a variable only
// through environment(), which accepts only names of the table. `kiln reference` prints the table,
// and docs/reference.md holds the output. No public header includes this.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

namespace kiln::detail {

struct VariableEntry {
  enum class Of { kiln, system };  ///< whose variable it is; `system`: launchers' too

  const char* name;
  Of of;
  const char* meaning;   ///< with the values it may have; Markdown, as what follows
  const char* fallback;  ///< what holds when it is not set, or empty
  const char* read;      ///< when Kiln reads it
};

inline constexpr VariableEntry kVariables[] = {
    {"KILN_CACHE_DIR", VariableEntry::Of::kiln, "the folder of the writable store",
     "`$XDG_CACHE_HOME/kiln`, else `~/.cache/kiln`", "a store is opened"},
    {"KILN_CACHE_SIZE", VariableEntry::Of::kiln,
     "the largest size of the writable store: bytes, or a number and K, M, G, T (powers of 1024)",
     "`5G`", "a store is opened"},
    {"KILN_CACHE_FILES", VariableEntry::Of::kiln,
     "the largest number of entries of the writable store, a file each: a number, or one with K, "
     "M, G, T (powers of 1024)",
     "`100000`", "a store is opened"},
    {"KILN_CACHE_SHARED", VariableEntry::Of::kiln,
     "`user`: only this user may write to the writable store; `group`: also members of the "
     "folder's group, whose code is then run",
     "`user`", "a store is opened"},
    {"KILN_RESERVE", VariableEntry::Of::kiln,
     "device memory that tunings leave free: bytes, or a number and K, M, G, T (powers of 1024)",
     "0", "a runtime is made"},
    {"KILN_ROOTS", VariableEntry::Of::kiln, "read-only roots, separated by colons", "none",
     "a store is opened"},
    {"KILN_BUNDLE_KEY", VariableEntry::Of::kiln,
     "a PEM file with the public key that must verify the signature of every root",
     "roots need no signature", "a store is opened"},
    {"KILN_NVRTC", VariableEntry::Of::kiln, "the NVRTC library", "searched for in the toolkits",
     "NVRTC is looked for"},
    {"KILN_CUDA_ROOT", VariableEntry::Of::kiln, "a CUDA toolkit, for NVRTC and its headers",
     "`$CUDA_HOME`, `$CUDA_PATH`, `/usr/local/cuda`; in a build tree also the one built with",
     "NVRTC is looked for"},
    {"KILN_LLVM_PLUGIN", VariableEntry::Of::kiln, "`libkiln_llvm.so`, the host compiler",
     "beside `libkiln.so`", "the host compiler is opened"},
    {"KILN_CLANG_RESOURCE_DIR", VariableEntry::Of::kiln,
     "the folder of Clang 19's own headers, for the host compiler",
     "the folder of the LLVM that Kiln was built with, else the usual places",
     "a host kernel is compiled"},
    {"KILN_COMPILE_PROCESSES", VariableEntry::Of::kiln,
     "the number of processes that compile, 0 to 256; with 0 the program compiles in its own "
     "process",
     "one per core; 0 with two cores or fewer", "the first kernel is compiled"},
    {"KILN_MODE", VariableEntry::Of::kiln,
     "what a launch does for a problem without a record: `tune_now`, `background`, `untuned`, "
     "`lookup_only`, `frozen` or `collect` (`kiln::Mode`)",
     "as `KILN_TUNE` says", "a runtime is made"},
    {"KILN_TUNE", VariableEntry::Of::kiln,
     "1: launches tune what has no record; 0: they use records, and the untuned config without one",
     "1", "a runtime is made"},
    {"KILN_WANTED", VariableEntry::Of::kiln,
     "a file: the manifest to which instances that were missing are added when a runtime ends",
     "none", "a runtime is made"},
    {"KILN_ON_UNPREPARED", VariableEntry::Of::kiln,
     "what a launch of a problem that was not prepared gets on a runtime that the program has "
     "sealed without saying so: `serve`, something that is loaded; `warn`, the same and a warning; "
     "`error`, UnpreparedError",
     "`serve`", "a runtime is made"},
    {"KILN_MAX_SECONDS", VariableEntry::Of::kiln,
     "the most seconds that a tuning takes, where the program sets no limit; 0: no limit", "0",
     "a runtime is made"},
    {"KILN_MAX_EVALUATIONS", VariableEntry::Of::kiln,
     "the most candidates that a tuning tries, where the program sets no limit; 0: no limit; the "
     "same on all ranks",
     "0", "a runtime is made"},
    {"KILN_COMPILE_THREADS", VariableEntry::Of::kiln,
     "the number of instances that are compiled at once, 1 to 4096",
     "one per core; with ranks, the host's ranks share the cores", "a runtime is made"},
    {"KILN_LOG_LEVEL", VariableEntry::Of::kiln,
     "the least level of messages: `debug`, `info`, `warning` or `error`; they go to "
     "`KILN_LOG_FILE`, else to standard error, where the program sets no log",
     "no log; with `KILN_LOG_FILE`: `info`", "a runtime is made"},
    {"KILN_LOG_FILE", VariableEntry::Of::kiln,
     "a file to which messages are added, where the program sets no log: `%p` is the process, `%r` "
     "the rank, `%%` a percent sign",
     "standard error", "a runtime is made"},
    {"KILN_TRACE", VariableEntry::Of::kiln,
     "a folder: when a runtime ends, what it did is written there as a Chrome trace", "none",
     "a runtime is made"},
    {"KILN_ISOLATION", VariableEntry::Of::kiln,
     "where candidates run while they are tuned: `off`, in the program's process; `after_fault`, "
     "there until one has faulted, then in a worker; `always`, in a worker",
     "`after_fault`", "a runtime is made"},
    {"KILN_CANDIDATE_SECONDS", VariableEntry::Of::kiln,
     "seconds for one verification or sample, in a worker or a callable; in lockstep: all launches",
     "30, at least 20 times the longest; 300 for the first; in lockstep 20", "a tuning begins"},
    {"KILN_MEASURE", VariableEntry::Of::kiln,
     "how a sample's launches are started while kernels are tuned, where the program does not say: "
     "`graph`, as one graph, or `eager`, one by one, as a program without graphs does",
     "`graph`", "a runtime is made"},
    {"KILN_DETERMINISTIC", VariableEntry::Of::kiln,
     "1: only configs that compute, bit for bit, what the untuned config computes; 0: all", "0",
     "a runtime is made, or a bundle"},
    {"KILN_LLVM_DUMP", VariableEntry::Of::kiln,
     "a folder: the IR after each step of the host compiler, and the time of each step", "none",
     "a host kernel is compiled"},
    {"KILN_ROOT", VariableEntry::Of::kiln, "a tree with Kiln's `include/` and `templates/`",
     "the prefix that the library is installed in; in a build tree the source tree",
     "one of the two is first needed"},
    {"KILN_ALWAYS_RETUNE", VariableEntry::Of::kiln,
     "anything but 0: tuned functions are measured again in each process", "0",
     "a tuned function is made"},
    {"KILN_STRICT_VERSIONS", VariableEntry::Of::kiln,
     "anything but 0: tuned functions are also measured again when any version differs", "0",
     "a tuned function is made"},
    {"KILN_BACKENDS", VariableEntry::Of::kiln,
     "the alternatives that take part in choices, separated by commas; with a minus, all but these",
     "all", "a tuned choice is made"},
    {"KILN_BACKENDS_*", VariableEntry::Of::kiln,
     "the same for one choice, in place of `KILN_BACKENDS`: `KILN_BACKENDS_GEMM` for `gemm`",
     "`KILN_BACKENDS`", "a tuned choice is made"},
    {"KILN_CHOOSE_*", VariableEntry::Of::kiln,
     "the alternative that launches of one choice use, whatever is faster: `KILN_CHOOSE_GEMM` for "
     "`gemm`",
     "the fastest", "a tuned choice is made"},
    {"KILN_CUBLASLT", VariableEntry::Of::kiln, "the cuBLASLt library",
     "`libcublasLt.so.13`, `.12`, else searched for beside the toolkit's NVRTC",
     "a choice first has a use for it"},
    {"KILN_RANK_LOGS", VariableEntry::Of::kiln,
     "a folder for logs of what each rank tried, measured and agreed to, for functions and regions",
     "none", "ranks begin to tune one"},
    {"KILN_RENDEZVOUS_HOST", VariableEntry::Of::kiln, "the host of rank 0, where NCCL's ranks meet",
     "as the launcher says", "an NCCL communicator is made"},
    {"KILN_RENDEZVOUS_PORT", VariableEntry::Of::kiln, "the TCP port there: 1 to 65535",
     "derived from the launcher's variables", "an NCCL communicator is made"},

    {"XDG_CACHE_HOME", VariableEntry::Of::system, "the user's caches; a relative path is ignored",
     "`~/.cache`", "a store is opened"},
    {"HOME", VariableEntry::Of::system, "the user's home; a relative path is ignored",
     "the home directory in the user database", "a store is opened"},
    {"TMPDIR", VariableEntry::Of::system,
     "a folder for host kernels that are being loaded, where memory files are not available",
     "`/tmp`", "a host kernel is loaded"},
    {"CUDA_HOME", VariableEntry::Of::system, "a CUDA toolkit", "`$CUDA_PATH`",
     "NVRTC is looked for"},
    {"CUDA_PATH", VariableEntry::Of::system, "a CUDA toolkit", "`/usr/local/cuda`",
     "NVRTC is looked for"},
    {"RANK", VariableEntry::Of::system, "torchrun: the rank of this process",
     "not started by torchrun", "ranks find each other"},
    {"WORLD_SIZE", VariableEntry::Of::system, "torchrun: the number of ranks",
     "an error if `RANK` is set", "ranks find each other"},
    {"LOCAL_RANK", VariableEntry::Of::system, "torchrun: the rank among those of this host",
     "an error if `RANK` is set", "ranks find each other"},
    {"LOCAL_WORLD_SIZE", VariableEntry::Of::system, "torchrun: the number of ranks of this host",
     "unknown", "ranks find each other"},
    {"MASTER_ADDR", VariableEntry::Of::system, "torchrun: the host of rank 0",
     "an error, unless the meeting place is given", "an NCCL communicator is made"},
    {"MASTER_PORT", VariableEntry::Of::system,
     "torchrun: its own port on that host; Kiln's is 1717 higher, or 1717 lower if that is not a "
     "port",
     "an error, unless the meeting place is given", "an NCCL communicator is made"},
    {"TORCHELASTIC_RUN_ID", VariableEntry::Of::system, "torchrun: which job this is", "unknown",
     "an NCCL communicator is made"},
    {"OMPI_COMM_WORLD_RANK", VariableEntry::Of::system, "Open MPI: the rank of this process",
     "not started by Open MPI", "ranks find each other"},
    {"OMPI_COMM_WORLD_SIZE", VariableEntry::Of::system, "Open MPI: the number of ranks",
     "an error if the rank is set", "ranks find each other"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", VariableEntry::Of::system,
     "Open MPI: the rank among those of this host", "an error if the rank is set",
     "ranks find each other"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", VariableEntry::Of::system,
     "Open MPI: the number of ranks of this host", "unknown", "ranks find each other"},
    {"PMIX_NAMESPACE", VariableEntry::Of::system, "Open MPI: which job this is", "unknown",
     "an NCCL communicator is made"},
    {"SLURM_PROCID", VariableEntry::Of::system, "Slurm: the rank of this process",
     "not started by Slurm", "ranks find each other"},
    {"SLURM_NTASKS", VariableEntry::Of::system, "Slurm: the number of ranks",
     "an error in a job step", "ranks find each other"},
    {"SLURM_LOCALID", VariableEntry::Of::system, "Slurm: the rank among those of this host",
     "an error in a job step", "ranks find each other"},
    {"SLURM_STEP_TASKS_PER_NODE", VariableEntry::Of::system,
     "Slurm: the number of ranks of each host", "unknown", "ranks find each other"},
    {"SLURM_STEP_ID", VariableEntry::Of::system, "Slurm: the job step", "`$SLURM_STEPID`",
     "ranks find each other"},
    {"SLURM_STEPID", VariableEntry::Of::system, "Slurm: the job step, by its older name",
     "not in a job step", "ranks find each other"},
    {"SLURM_JOB_ID", VariableEntry::Of::system, "Slurm: the job", "`$SLURM_JOBID`",
     "an NCCL communicator is made"},
    {"SLURM_JOBID", VariableEntry::Of::system, "Slurm: the job, by its older name",
     "an error, unless the meeting place is given", "an NCCL communicator is made"},
    {"SLURM_STEP_NODELIST", VariableEntry::Of::system,
     "Slurm: the hosts of the job step, that of rank 0 first", "`$SLURM_JOB_NODELIST`",
     "an NCCL communicator is made"},
    {"SLURM_JOB_NODELIST", VariableEntry::Of::system, "Slurm: the hosts of the job",
     "`$SLURM_NODELIST`", "an NCCL communicator is made"},
    {"SLURM_NODELIST", VariableEntry::Of::system, "Slurm: the hosts of the job, by its older name",
     "an error, unless the meeting place is given", "an NCCL communicator is made"},
    {"SLURM_RESTART_COUNT", VariableEntry::Of::system, "Slurm: how often the job was restarted",
     "0 times", "an NCCL communicator is made"},
};

/// The name of a variable of the table: a literal that is not in the table does not compile.
class Variable {
 public:
  consteval Variable(const char* name) : name_(name) {  // NOLINT: literals become variables
    for (const VariableEntry& entry : kVariables)
      if (std::string_view(entry.name) == name) return;
    this_variable_is_not_in_kVariables();
  }
  constexpr const char* name() const { return name_; }

 private:
  static void this_variable_is_not_in_kVariables() {}  // not constexpr, so a call is an error

  const char* name_;
};

/// The variable's value, empty when it is not set. Valid until the environment changes.
inline std::string_view environment(Variable variable) {
  const char* value = std::getenv(variable.name());
  return value ? value : "";
}

/// For an entry whose name ends in `*`: the variable with `rest` in its place.
inline std::string_view environment(Variable family, std::string_view rest) {
  const std::string_view name = family.name();
  const char* value =
      std::getenv(std::string(name.substr(0, name.size() - 1)).append(rest).c_str());
  return value ? value : "";
}

/// Whether a variable is that of an entry, or one of its family.
constexpr bool names(const VariableEntry& entry, std::string_view variable) {
  const std::string_view name = entry.name;
  if (!name.ends_with('*')) return name == variable;
  return variable.size() >= name.size() && variable.starts_with(name.substr(0, name.size() - 1));
}

/// The same for an entry of the table.
inline std::string_view value_of(const VariableEntry& entry) {
  const char* value = std::getenv(entry.name);
  return value ? value : "";
}

/// All variables, for a program that is started. Valid until the environment changes.
inline char** whole_environment() { return ::environ; }

}  // namespace kiln::detail
