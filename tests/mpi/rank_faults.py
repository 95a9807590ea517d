#!/usr/bin/env python3
"""Runs jobs of a few MPI ranks in which something goes wrong, and checks what the survivors hold.

  rank_faults.py MPIRUN RANK_JOB [NAME...]     only the faults whose name contains one of NAMEs

Of each: every survivor ends in time, all with one plan or all with the defaults, and where a rank is
at fault, the reason names it. The last line adds up.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 40  # seconds for a job; its own deadlines end it long before

# name, ranks, options, what the survivors hold, a part of the reason (R: the rank at fault)
FAULTS = [
    ("nothing wrong", 4, "", "plan", ""),
    ("shard", 4, "strategy=shard", "plan", ""),
    ("leader", 3, "strategy=leader", "plan", ""),
    ("lockstep", 3, "lockstep=1", "plan", ""),
    ("one rank alone", 1, "", "plan", ""),
    ("disjoint caches", 4, "cache=disjoint", "plan", ""),
    ("stale cache on one rank", 3, "cache=all fault=stale rank=1", "plan", ""),
    ("corrupt cache on one rank", 3, "cache=all fault=corrupt rank=2", "plan", ""),
    ("one rank out of disk", 3, "fault=full rank=0", "plan", ""),
    ("another candidate list", 3, "fault=odd-list rank=1", "defaults", "rank 1 differs: another candidate list"),
    ("another build", 3, "fault=odd-build rank=2", "defaults", "rank 2 differs: another build"),
    ("another architecture", 3, "fault=odd-arch rank=0", "defaults", "rank 0 differs: another target"),
    ("a candidate fails on one rank", 3, "fault=fail rank=1", "plan choices 6 6", ""),
    ("the same in lockstep", 3, "fault=fail rank=1 lockstep=1", "plan choices 6 6", ""),
    ("one rank refuses its options", 3, "fault=refuse rank=1", "defaults", "rank 1 gave up: tuning together"),
    ("killed during digest", 4, "fault=kill rank=1 at=0", "defaults", "rank 1"),
    ("killed during vote", 4, "fault=kill rank=2 at=1", "defaults", "rank 2"),
    ("killed while tuning", 4, "fault=kill rank=3 at=tune", "defaults", "rank 3"),
    ("killed during reduction", 4, "fault=kill rank=1 at=2", "defaults", "rank 1"),
    ("killed before comparing", 4, "fault=kill rank=1 at=4", "defaults", "rank 1"),
    ("killed before confirming", 4, "fault=kill rank=2 at=5", "defaults", "rank 2"),
    ("killed while saving", 4, "fault=kill rank=0 at=save", "plan", ""),
    ("stopped while tuning, goes on later", 3, "fault=stop rank=1 at=tune", "defaults", "rank 1"),
    ("stopped before voting, goes on later", 3, "fault=stop rank=2 at=1", "defaults", "rank 2"),
    ("stopped before confirming, goes on later", 3, "fault=stop rank=1 at=5", "defaults", "rank 1"),
    ("ten times slower", 3, "fault=slow rank=2", "plan", ""),
    ("ten times slower, sharded", 3, "fault=slow rank=2 strategy=shard", "plan", ""),
    ("eight ranks, one killed", 8, "fault=kill rank=5 at=2 strategy=shard", "defaults", "rank 5"),
]


def let_go_on(folder, rank, since):
    """Continues a stopped rank once the others have ended; they must not need it."""
    pid_file = folder / f"{rank}.pid"
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return
    if state == "T" and since > 0.5:
        os.kill(pid, signal.SIGCONT)


def run(mpirun, program, folder, ranks, options):
    """Survivors' results by rank, and whether the job had to be killed."""
    wanted = dict(o.split("=") for o in options)
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "--enable-recovery", "--mca", "btl_vader_single_copy_mechanism",
               "none", "-n", str(ranks), program, str(folder), *options]
    with open(folder / "log", "wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        begin, others_ended, hung = time.monotonic(), None, False
        while job.poll() is None:
            time.sleep(0.05)
            ended = len(list(folder.glob("*.txt")))
            if ended >= ranks - 1 and others_ended is None:
                others_ended = time.monotonic()
            if wanted.get("fault") == "stop" and others_ended is not None:
                let_go_on(folder, wanted["rank"], time.monotonic() - others_ended)
            # Whoever has written its result has ended; what MPI does after a death is its own matter.
            survivors = ranks - (wanted.get("fault") == "kill")
            if ended >= survivors and time.monotonic() - others_ended > 3:
                break
            if time.monotonic() - begin > LIMIT:
                hung = True
                break
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGTERM)
            try:
                job.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    for pid_file in folder.glob("*.pid"):  # ranks are in groups of their own
        try:
            pid = int(pid_file.read_text())
            if program.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return {int(p.stem): p.read_text().splitlines() for p in folder.glob("*.txt")}, hung


def check(fault, results, ranks, options):
    """What is wrong with a job's end: a list of texts."""
    _, _, _, outcome, reason = fault
    wanted = dict(o.split("=") for o in options)
    odd = int(wanted.get("rank", -1))
    dead = odd if wanted.get("fault") == "kill" else -1
    problems = [f"rank {r} has no result" for r in range(ranks) if r != dead and r not in results]
    kind, _, rest = outcome.partition(" ")
    for rank, lines in sorted(results.items()):
        if rank == odd and wanted.get("fault") == "refuse":
            continue
        if not lines[0].startswith(kind):
            problems.append(f"rank {rank}: {lines[0]}, wanted {outcome}")
        elif rest and rest not in lines[0]:
            problems.append(f"rank {rank}: {lines[0]}, wanted {rest}")
        # Who was stopped finds the others gone.
        elif reason not in lines[0] and not (rank == odd and wanted.get("fault") == "stop"):
            problems.append(f"rank {rank}: {lines[0]}, which does not say: {reason}")
    saves = [r for r, lines in results.items() if "saved yes" in lines]
    if kind == "defaults" and saves:
        problems.append(f"ranks {saves} saved what was not agreed")
    if len(saves) > 1:
        problems.append(f"ranks {saves} all saved")
    return problems


def main(mpirun, program, *names):
    tried = divergent = hangs = failed = 0
    for fault in FAULTS:
        name, ranks, text = fault[:3]
        if names and not any(n in name for n in names):
            continue
        for settle in ("0", "1"):
            options = [*text.split(), f"settle={settle}"]
            with tempfile.TemporaryDirectory(prefix="kiln-ranks-") as path:
                folder = pathlib.Path(path)
                begin = time.monotonic()
                results, hung = run(mpirun, program, folder, ranks, options)
                problems = check(fault, results, ranks, options)
                held = {" ".join(lines[0].split()[:2]) if lines[0].startswith("plan") else "defaults"
                        for lines in results.values() if not lines[0].startswith("refused")}
                tried += 1
                divergent += len(held) > 1
                hangs += hung
                failed += bool(problems)
                print(f"{'FAILED' if problems else 'ok':7}{name}{', settling' if settle == '1' else ''}: "
                      f"{time.monotonic() - begin:.1f} s", flush=True)
                for problem in problems:
                    print("       ", problem)
                if problems:
                    print((folder / "log").read_text(errors="replace")[-2000:])
    print(f"rank faults tried {tried}, divergent plans {divergent}, hangs {hangs}")
    return 1 if failed or divergent or hangs or not tried else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
