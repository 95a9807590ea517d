#!/usr/bin/env python3
"""Ranks on two GPUs over NCCL: what they hold when caches differ or a rank is killed, and how they serve.

  rank_serving_nccl.py RANK_TUNING_JOB GPU_RANK_SERVING [NAME...]     the cases whose names contain a NAME

M1 starts a process a rank: everything cached, nothing, other problems, stale or damaged records, and a rank
that is killed at each step of an agreement. Survivors must hold the same, say why, and end by their
deadlines. M2 to M5 are the second program's, in which ranks are threads. Each ends with one line. Exit:
77 without two GPUs or NCCL.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent / "mpi")]
from rank_faults import DEFAULTS, PLAN, Fault, check, held, outcomes  # noqa: E402
from rank_faults_nccl import environment  # noqa: E402

LIMIT = 60  # seconds for a job; its own deadlines end it long before
AT_ONCE = 6  # jobs, which mostly wait
RANKS = 2
BOTH = (0, 1)  # without a register, and with one
NCCL = ".*nccl"  # it names the call that failed, and no rank

FAULTS = [
    Fault("nothing cached", RANKS, "", PLAN, settle=BOTH),
    Fault("nothing cached, sharded", RANKS, "strategy=shard", PLAN),
    Fault("nothing cached, in lockstep", RANKS, "lockstep=1", PLAN),
    Fault("everything cached", RANKS, "cache=all", PLAN, own="stored"),
    Fault("disjoint problems cached", RANKS, "cache=disjoint", PLAN,
          "problem 0: no such record on rank 1, so all take rank 0's"),
    Fault("stale cache on one rank", RANKS, "cache=all fault=stale rank=1", PLAN,
          "problem 0: no such record on rank 1, so all take rank 0's"),
    Fault("damaged cache on one rank", RANKS, "cache=all fault=corrupt rank=1", PLAN,
          "problem 0: no such record on rank 1, so all take rank 0's"),
    *[Fault(f"killed at {at}", RANKS, f"fault=kill rank={rank} at={at}", DEFAULTS, NCCL, settle=settle)
      for at, rank, settle in (("held", 1, (0,)), ("digest", 0, (0,)), ("vote", 1, (0,)), ("tune", 1, BOTH),
                               ("reduce", 0, (0,)), ("compare", 1, (0,)), ("confirm", 1, BOTH))],
    Fault("killed at tune, sharded", RANKS, "fault=kill rank=1 at=tune strategy=shard", DEFAULTS, NCCL),
    Fault("killed at settle", RANKS, "fault=kill rank=1 at=settle", PLAN, settle=(1,)),
    Fault("killed at save", RANKS, "fault=kill rank=0 at=save stores=one", PLAN, settle=BOTH),
]


def run(program, env, fault, settle):
    """Texts of what is wrong, whether ranks hold different things, whether one hung, seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kiln-serving-") as path:
        folder = pathlib.Path(path)
        options = [f"{name}={value}" for name, value in fault.options.items()]
        ranks = []
        for rank in range(fault.ranks):
            with open(folder / f"{rank}.log", "wb") as log:
                ranks.append(subprocess.Popen([program, path, f"nccl={rank}/{fault.ranks}", f"settle={settle}",
                                               f"store={folder / 'store'}", *options], env=env, stdout=log,
                                              stderr=log, stdin=subprocess.DEVNULL))
        hung = False
        for rank in ranks:
            try:
                rank.wait(max(0.1, begin + LIMIT - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung = True
                rank.kill()
                rank.wait()
        results = {int(p.stem): p.read_text().splitlines() for p in folder.glob("*.txt")}
        problems = check(fault, results) + ["a rank hung"] * hung
        if problems:
            for rank in range(fault.ranks):
                problems += (folder / f"{rank}.log").read_text(errors="replace")[-1500:].splitlines()
        divergent = len({held(lines) for lines in results.values() if outcomes(lines)}) > 1
    return problems, divergent, hung, time.monotonic() - begin


def caches_and_kills(program, env, names):
    """M1. Whether all was well."""
    chosen = [(f, s) for f in FAULTS for s in f.settle if not names or any(n in f.name for n in names)]
    failed = divergent = hangs = 0
    longest = 0.0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [(f, s, pool.submit(run, program, env, f, s)) for f, s in chosen]
        for fault, settle, job in jobs:
            problems, differ, hung, seconds = job.result()
            failed, divergent, hangs = failed + bool(problems), divergent + differ, hangs + hung
            longest = max(longest, seconds)
            print(f"{'FAILED' if problems else 'ok':7}{fault.name}{', settling' if settle else ''}: "
                  f"{seconds:.1f} s", flush=True)
            for problem in problems:
                print("       ", problem)
    if chosen:
        print(f"M1, 2 GPUs, NCCL: caches and kills tried {len(chosen)}, failed {failed}, divergent plans "
              f"{divergent}, hangs {hangs}, the longest {longest:.1f} s", flush=True)
    return not (failed or divergent or hangs)


def main(job, serving, *names):
    env = environment()
    probe = subprocess.run([job, "probe"], env=env, capture_output=True, text=True, timeout=60)
    if probe.returncode != 0:
        print(f"skipped: {probe.stdout.strip()}{probe.stderr.strip()}")
        return 77 if probe.returncode == 77 else 1
    well = caches_and_kills(job, env, names)
    if not names or any(n in ("M2", "M3", "M4", "M5") for n in names):
        served = subprocess.run([serving], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                errors="replace", timeout=float(os.environ.get("KILN_SERVING_SECONDS", "150")))
        print(served.stdout, flush=True)
        well = well and served.returncode == 0
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
