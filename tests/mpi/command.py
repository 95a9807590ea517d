#!/usr/bin/env python3
"""`kiln tune --ranks mpi` as a user runs it: command.py MPIRUN KILN."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

MPIRUN, KILN = sys.argv[1:3]
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1")


def tune(folder, ranks, *arguments, per_rank=None):
    """What each rank reports, in its log; the command's exit code and output."""
    logs = folder / "logs"
    command = [MPIRUN, "-n", str(ranks), KILN, "--cache-dir", str(folder / "store"), "tune",
               "--device", "host", "--ranks", "mpi", "--rank-logs", str(logs), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    reports = [json.loads((logs / f"rank-{r}.json").read_text()) for r in range(ranks)] \
        if done.returncode == 0 else []
    return done, reports


def check(condition, text, done=None):
    if not condition:
        print("FAILED:", text)
        if done:
            print(done.stdout[-3000:], done.stderr[-3000:])
        sys.exit(1)


def same(reports, field, get):
    values = [get(r) for r in reports]
    check(all(v == values[0] for v in values), f"{field} differs between ranks: {values}")
    return values[0]


def main():
    if "host" not in subprocess.run([KILN, "doctor"], capture_output=True, text=True).stdout:
        return 77
    problem = ("gemm", "--problem", "m=64,n=64,k=128", "--evaluations", "24")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        done, reports = tune(folder, 4, *problem, "--strategy-ranks", "shard", "--settle-in",
                             str(folder / "settle"))
        if "no compiler" in done.stderr or "LLVM" in done.stderr:
            print(done.stderr)
            return 77
        check(done.returncode == 0, "exit code", done)
        digest = same(reports, "plan_digest", lambda r: r["plan_digest"])
        check(len(digest) == 64, f"not a digest: {digest}")
        same(reports, "winner", lambda r: r["winner"]["config"])
        same(reports, "times", lambda r: [c.get("time_ms") for c in r["candidates"]])
        for rank, report in enumerate(reports):
            check(report["ranks"]["rank"] == rank and report["ranks"]["size"] == 4, "rank")
            check(report["ranks"]["outcome"] == "plan", report["ranks"])
            check(report["wall_s"] > 0, "wall time")
            # A quarter of 24, and at most five finalists.
            check(1 <= report["ranks"]["measured"] <= 24 // 4 + 4 + 5, report["ranks"])
        split = sum(r["ranks"]["measured"] for r in reports)
        check(24 + 4 <= split <= 24 + 4 * 5, f"{split} measurements for 24 candidates")
        # People get one report, not four.
        check(done.stdout.count("winner ") == 1, "one table", done)

        done, again = tune(folder, 3, *problem)
        check(done.returncode == 0, "exit code of the second start", done)
        check(same(again, "plan_digest", lambda r: r["plan_digest"]) == digest,
              "another plan at the second start")
        check(all(r["from_store"] and r["compiled"] == 0 for r in again), "from the store")

        mistake = subprocess.run([KILN, "tune", "gemm", "--strategy-ranks", "shard"],
                                 capture_output=True, text=True)
        check(mistake.returncode == 1 and "--ranks" in mistake.stderr, "--ranks is needed", mistake)
    print("ok")
    return 0


sys.exit(main())
