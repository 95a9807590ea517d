#!/usr/bin/env python3
"""Runs jobs of a few MPI ranks in which something goes wrong, and checks what the survivors hold.

  rank_faults.py MPIRUN RANK_JOB [NAME...]     only the faults whose name contains one of NAMEs

Of each: every survivor ends in time, all with one plan or all with the defaults, uses what it holds,
and says in one message which rank is at fault, and why. The last line adds up. Exit 77: this build
cannot run kernels on the host.
"""
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE = 35  # seconds of an agreement, from the limits that rank_job sets
LIMIT = 60  # seconds for a job; its own deadlines end it long before
AT_ONCE = 3  # jobs: most wait for deadlines, few for processors
NO_PLACE = 77

PLAN, DEFAULTS = "plan", "defaults"


class Fault:
    """`says`: what each survivor's one message must say; `own`: what the rank at fault must; `again`: what
    the ranks of a next job on the same store must, to which nothing happens."""

    def __init__(self, name, ranks, options, outcome, says="", own="", settle=(0,), again=""):
        self.name, self.ranks, self.outcome = name, ranks, outcome
        self.options = dict(o.split("=") for o in options.split())
        self.says, self.own, self.settle = says, own, settle
        self.kind = self.options.get("fault", "")
        self.rank = int(self.options.get("rank", -1))
        self.dead = self.rank if self.kind == "kill" else -1
        self.jobs, self.again = int(self.options.pop("jobs", 1)), again


BOTH = (0, 1)  # without a register, and with one
CAME_LATE = "rank {} is late"  # a rank that was stopped finds the others gone


def late(rank):
    return rf"rank {rank} is late: MPI_I\w+ was not joined in time$"


FAULTS = [
    Fault("nothing wrong", 4, "", PLAN, settle=BOTH),
    Fault("nothing wrong, sharded", 4, "strategy=shard", PLAN),
    Fault("nothing wrong, one leads", 3, "strategy=leader", PLAN),
    Fault("nothing wrong, in lockstep", 3, "lockstep=1", PLAN),
    Fault("one rank alone", 1, "", PLAN),
    Fault("eight ranks", 8, "strategy=shard stores=one", PLAN),
    Fault("everything cached", 3, "cache=all", PLAN, own="stored"),
    Fault("disjoint caches", 3, "cache=disjoint", PLAN, "problem 0: no such record on ranks 1, 2, so all take rank 0's"),
    Fault("stale cache on one rank", 3, "cache=all fault=stale rank=1", PLAN,
          "problem 0: no such record on rank 1, so all take rank 0's"),
    Fault("corrupt cache on one rank", 3, "cache=all fault=corrupt rank=2", PLAN,
          "problem 0: no such record on rank 2, so all take rank 0's"),
    Fault("one rank out of disk", 3, "fault=full rank=0", PLAN, own="[Nn]o space left on device"),
    Fault("another candidate list", 3, "fault=odd-list rank=1", DEFAULTS, "rank 1 differs: another candidate list"),
    Fault("another build", 3, "fault=odd-build rank=2", DEFAULTS, "rank 2 differs: another build of Kiln or of the compiler"),
    Fault("another architecture", 3, "fault=odd-arch rank=0", DEFAULTS, "rank 0 differs: another target"),
    Fault("a candidate does not compile on one rank", 3, "fault=fail rank=1", PLAN, own="not on this rank"),
    Fault("the same, sharded", 3, "fault=fail rank=1 strategy=shard", PLAN),
    Fault("the same, in lockstep", 3, "fault=fail rank=1 lockstep=1", PLAN, own="not on this rank"),
    Fault("the leader's choice does not compile on one rank", 3, "fault=fail rank=1 strategy=leader", DEFAULTS,
          "rank 1 failed: cannot build the chosen config of axpy: does not compile", own="not on this rank"),
    Fault("one rank refuses its options", 3, "fault=refuse rank=1", DEFAULTS, "rank 1 gave up: .*`margin`"),
    Fault("killed before the first word", 4, "fault=kill rank=1 at=held", DEFAULTS, late(1)),
    Fault("killed during digest", 4, "fault=kill rank=1 at=digest", DEFAULTS, late(1), settle=BOTH),
    Fault("killed during vote", 4, "fault=kill rank=2 at=vote", DEFAULTS, late(2)),
    Fault("killed during tuning", 4, "fault=kill rank=3 at=tune", DEFAULTS, late(3), settle=BOTH),
    Fault("killed during reduction", 4, "fault=kill rank=1 at=reduce", DEFAULTS, late(1)),
    Fault("killed during comparison", 4, "fault=kill rank=1 at=compare", DEFAULTS, late(1)),
    Fault("killed during confirmation", 4, "fault=kill rank=2 at=confirm", DEFAULTS, late(2), settle=BOTH),
    Fault("killed while settling", 4, "fault=kill rank=2 at=settle", PLAN, settle=(1,)),
    Fault("killed during save", 4, "fault=kill rank=0 at=save stores=one", PLAN, settle=BOTH,
          again="timed 4$"),
    Fault("eight ranks, one killed", 8, "fault=kill rank=5 at=reduce strategy=shard", DEFAULTS, late(5)),
    Fault("stopped during tuning, continued later", 3, "fault=stop rank=1 at=tune", DEFAULTS, late(1),
          own=CAME_LATE.format(1)),
    Fault("stopped during vote, continued later", 3, "fault=stop rank=2 at=vote", DEFAULTS, late(2),
          own=CAME_LATE.format(2), settle=BOTH),
    Fault("stopped during confirmation, continued later", 3, "fault=stop rank=1 at=confirm", DEFAULTS,
          late(1), own=CAME_LATE.format(1), settle=BOTH),
    Fault("ten times slower", 3, "fault=slow rank=2", PLAN),
    Fault("ten times slower, sharded", 3, "fault=slow rank=2 strategy=shard", PLAN),
    Fault("two jobs share one store", 3, "stores=one jobs=2", PLAN, again="timed 0 stored$"),
]


class Job:
    """One mpirun. Its ranks are in process groups of their own."""

    def __init__(self, mpirun, program, folder, store, fault, settle):
        self.program, self.folder, self.fault = program, folder, fault
        options = [f"{name}={value}" for name, value in fault.options.items()]
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "--enable-recovery", "--mca",
                   "btl_vader_single_copy_mechanism", "none", "-n", str(fault.ranks), program, str(folder),
                   f"settle={settle}", f"store={store}", *options]
        # A session folder of its own: a job that ends may take away what another has just looked for.
        environment = dict(os.environ, OMPI_MCA_orte_tmpdir_base=str(folder))
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            env=environment, start_new_session=True)
        self.ended_at = None  # when everyone but the rank at fault had ended

    def pids(self):
        for pid_file in self.folder.glob("*.pid"):
            try:
                pid = int(pid_file.read_text())
                if self.program.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield int(pid_file.stem), pid
            except (OSError, ValueError):
                pass

    def step(self):
        """False once nothing more is to come."""
        if self.process.poll() is not None:
            return False
        ended = len(list(self.folder.glob("*.txt")))
        odd = self.fault.kind in ("kill", "stop")
        if ended >= self.fault.ranks - odd and self.ended_at is None:
            self.ended_at = time.monotonic()
        since = time.monotonic() - self.ended_at if self.ended_at is not None else 0
        if self.fault.kind == "stop" and since > 0.3:  # the others must not have needed it
            for rank, pid in self.pids():
                if rank == self.fault.rank and stopped(pid):
                    os.kill(pid, signal.SIGCONT)
        # A rank that has written its result has ended; what MPI does after a death is its own matter.
        return not (ended >= self.fault.ranks - (self.fault.kind == "kill") and since > 2.5)

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        for _, pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def results(self):
        return {int(p.stem): p.read_text().splitlines() for p in self.folder.glob("*.txt")}


def stopped(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def outcomes(lines):
    return [line for line in lines if line.startswith(("plan ", "defaults ", "refused "))]


def held(lines):
    """What a rank holds, to compare: digests, or that it uses the defaults."""
    return tuple(" ".join(o.split()[:3]) if o.startswith("plan") else "defaults" for o in outcomes(lines))


def check_rank(fault, rank, lines):
    """What is wrong with one survivor's end."""
    odd = rank == fault.rank
    refused = odd and fault.kind == "refuse"
    warnings = [line for line in lines if line.startswith("warning ")]
    verdicts = [line for line in warnings if "uses default configs" in line]
    text = "\n".join(lines)
    if refused:
        return [] if outcomes(lines)[0].startswith("refused ") else ["it did not refuse"]
    for outcome in outcomes(lines):
        if not outcome.startswith(fault.outcome):
            return [f"{outcome}, wanted {fault.outcome}"]
    problems = []
    wanted = ["effort=8" if o.startswith("defaults") else o.split()[2] for o in outcomes(lines)]
    if [line.split()[1] for line in lines if line.startswith("uses ")] != wanted:
        problems.append(f"it does not use {wanted}")
    if fault.kind == "fail" and "effort=1" in wanted:
        problems.append("it uses what one rank cannot build")
    if "right 0" in lines or "right 1" not in lines:
        problems.append("it computes wrong results")
    says = fault.own if odd and fault.kind in ("stop", "full") else fault.says
    if fault.outcome == DEFAULTS:
        if len(verdicts) != 1:
            problems.append(f"{len(verdicts)} messages say that it uses the defaults")
        elif not re.match(says, verdicts[0].partition("uses default configs: ")[2]):
            problems.append(f"{verdicts[0]!r} does not say {says!r}")
    elif verdicts:
        problems.append(verdicts[0])
    elif len(re.findall(says, text)) != 1 and says and not odd:
        problems.append(f"it does not say once {says!r}")
    if odd and fault.own and not re.search(fault.own, text):
        problems.append(f"the rank at fault does not say {fault.own!r}")
    seconds = next(float(line.split()[1]) for line in lines if line.startswith("seconds "))
    if seconds > DEADLINE and not (odd and fault.kind == "stop"):
        problems.append(f"it took {seconds:.1f} s")
    return problems


def check(fault, results):
    problems = [f"rank {r} has no result" for r in range(fault.ranks) if r != fault.dead and r not in results]
    for rank, lines in sorted(results.items()):
        problems += [f"rank {rank}: {p}" for p in check_rank(fault, rank, lines)]
    return problems


def play(mpirun, program, fault, settle, path, count):
    """Runs jobs on one store, and returns them with whether one hung."""
    begin = time.monotonic()
    folders = [pathlib.Path(tempfile.mkdtemp(prefix="job", dir=path)) for _ in range(count)]
    jobs = [Job(mpirun, program, folder, pathlib.Path(path) / "store", fault, settle) for folder in folders]
    try:
        while any([job.step() for job in jobs]) and time.monotonic() - begin < LIMIT:
            time.sleep(0.05)
        return jobs, time.monotonic() - begin >= LIMIT
    finally:
        for job in jobs:
            job.end()


def run(mpirun, program, fault, settle):
    """Texts of what is wrong, whether ranks hold different things, whether something hung, seconds."""
    begin = time.monotonic()
    problems, divergent, hung = [], False, False
    with tempfile.TemporaryDirectory(prefix="kiln-ranks-") as path:
        played = [(fault, *play(mpirun, program, fault, settle, path, fault.jobs))]
        if fault.again:
            store = "stores=" + fault.options.get("stores", "own")
            calm = Fault("again", fault.ranks, store, PLAN, says=f"(?m)^plan .* {fault.again}")
            played.append((calm, *play(mpirun, program, calm, settle, path, 1)))
        for expected, jobs, stuck in played:
            hung |= stuck
            for job in jobs:
                results = job.results()
                wrong = check(expected, results)
                if wrong:
                    wrong += (job.folder / "log").read_text(errors="replace")[-4000:].splitlines()
                problems += wrong
                divergent |= len({held(lines) for lines in results.values()
                                  if not outcomes(lines)[0].startswith("refused")}) > 1
    return problems, divergent, hung, time.monotonic() - begin


def main(mpirun, program, *names):
    chosen = [(f, s) for f in FAULTS for s in f.settle if not names or any(n in f.name for n in names)]
    totals = {"tried": 0, "divergent": 0, "hangs": 0, "failed": 0}
    lock = threading.Lock()
    if subprocess.run([program], check=False).returncode == NO_PLACE:
        return NO_PLACE

    def one(fault, settle):
        problems, divergent, hung, seconds = run(mpirun, program, fault, settle)
        with lock:
            for name, add in (("tried", 1), ("divergent", divergent), ("hangs", hung), ("failed", bool(problems))):
                totals[name] += add
            print(f"{'FAILED' if problems else 'ok':7}{fault.name}{', settling' if settle else ''}: {seconds:.1f} s",
                  flush=True)
            for problem in problems:
                print("       ", problem)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(one, *c) for c in chosen]:
            done.result()
    print("rank faults tried {tried}, divergent plans {divergent}, hangs {hangs}".format(**totals))
    return 1 if totals["failed"] or totals["divergent"] or totals["hangs"] or not totals["tried"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
