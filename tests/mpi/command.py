#!/usr/bin/env python3
"""`kiln tune --ranks mpi` as a user runs it: command.py MPIRUN KILN.

Started by mpirun as `command.py --as-rank FOLDER COMMAND...` it is one rank: FOLDER has what the rank printed,
its exit code and, meanwhile, its process id; an argument `N:TEXT` is for rank N alone."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time


def as_rank(folder, arguments):
    rank = os.environ["OMPI_COMM_WORLD_RANK"]
    split = [re.match(r"(\d):(.*)", a) for a in arguments]
    own = [m[2] if m else a for a, m in zip(arguments, split) if not m or m[1] == rank]
    signal.signal(signal.SIGTERM, lambda *_: None)  # mpirun's, when another rank ends with an error
    with open(folder / f"out.{rank}", "w") as out, open(folder / f"err.{rank}", "w") as err:
        child = subprocess.Popen(own, stdout=out, stderr=err,
                                 env=dict(os.environ, KILN_CACHE_DIR=str(folder / f"store-{rank}")))
        (folder / f"pid.{rank}").write_text(str(child.pid))
        code = child.wait()
    (folder / f"code.{rank}").write_text(str(code))
    return code


if sys.argv[1] == "--as-rank":
    sys.exit(as_rank(pathlib.Path(sys.argv[2]), sys.argv[3:]))

MPIRUN, KILN = sys.argv[1:3]
LIMIT = 60  # seconds for one job; all of them take a few
PROBLEM = ("gemm", "--types", "bf16", "--problem", "m=16,n=64,k=64")
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1")


def tune(folder, ranks, *arguments, per_rank=None):
    """What each rank reports, in its log; the command's exit code and output."""
    logs = folder / "logs"
    command = [MPIRUN, "-n", str(ranks), KILN, "--cache-dir", str(folder / "store"), "tune",
               "--device", "host", "--ranks", "mpi", "--rank-logs", str(logs), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT)
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


class Job:
    """Two ranks, each with a store of its own."""

    def __init__(self, folder, *arguments, device="host", environment=None):
        folder.mkdir(exist_ok=True)
        self.folder, self.start = folder, time.monotonic()
        for file in folder.glob("*.[01]"):
            file.unlink()
        command = [MPIRUN, "-n", "2", sys.executable, __file__, "--as-rank", str(folder), KILN, "tune", *PROBLEM,
                   "--device", device, "--ranks", "mpi", *arguments]
        self.process = subprocess.Popen(command, env=dict(ENVIRONMENT, **(environment or {})),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self):
        """Each rank's exit code, and what it printed."""
        try:
            self.process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # it ends the ranks
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
            check(False, f"hangs: {self.process.args}")
        finally:
            self.seconds = time.monotonic() - self.start
        self.codes = [int(self.read("code", r) or -1) for r in (0, 1)]
        self.out = [self.read("out", r) for r in (0, 1)]
        self.errors = [self.read("err", r) for r in (0, 1)]
        return self

    def read(self, name, rank):
        file = self.folder / f"{name}.{rank}"
        return file.read_text() if file.exists() else ""

    def check(self, condition, text):
        check(condition, f"{text}: after {self.seconds:.1f} s {self.codes}, {self.errors}, {self.out}")

    def until(self, happened):
        while not happened():
            if self.process.poll() is not None or time.monotonic() - self.start > LIMIT:
                self.process.terminate()
                check(False, "it did not come to the moment that was waited for")
            time.sleep(0.01)

    def takes_signals(self, rank):
        """Whether the command is up, and SIGINT will be heard."""
        try:
            status = pathlib.Path("/proc", self.read("pid", rank), "status").read_text()
        except (OSError, ValueError):
            return False
        blocked = re.search(r"SigBlk:\s*(\w+)", status)
        return blocked is not None and int(blocked[1], 16) >> (signal.SIGINT - 1) & 1 == 1

    def interrupt(self, rank):
        os.kill(int(self.read("pid", rank)), signal.SIGINT)


def a_rank_that_cannot_begin(folder):
    for option, value, code, what in (("--export", "nope", 1, "--export takes"),
                                      ("--rank-logs", "/dev/null/no", 2, "rank-1.json")):
        job = Job(folder, "--json", f"1:{option}", f"1:{value}").wait()
        job.check(job.codes == [2, code], "exit codes")
        job.check(what in job.errors[1] and "gave up" not in job.errors[1], "its own reason")
        job.check("rank 1 gave up: --" in job.errors[0] and what in job.errors[0], "the others hear of it")
        job.check("rank 1" in json.loads(job.out[0])["error"]["message"] and not job.out[1], "one JSON document")
        job.check(job.seconds < 30, "nobody waits for --arrive-seconds")


def a_folder_to_settle_in_that_is_none(folder):
    job = Job(folder, "--settle-in", "/dev/null/no").wait()
    job.check(job.codes == [2, 2] and "--settle-in: " in job.errors[0] and "/dev/null/no" in job.errors[0], "--settle-in")
    job = Job(folder, "1:--settle-in", f"1:{folder}").wait()
    job.check(job.codes == [2, 2] and "for all ranks or for none" in job.errors[0], "--settle-in of one rank")


def only_rank_0_writes(folder):
    # What torchrun may have left in the environment is nothing to ranks that MPI starts.
    files = [folder / f"{kind}-{rank}" for kind in ("export", "trace") for rank in (0, 1)]
    job = Job(folder, "--json", "--evaluations", "4", "--rank-logs", str(folder / "logs"), "--arrive-seconds", "1e10", "--step-seconds", "1e10",
              "--export", f"0:t4:{files[0]}", f"1:t4:{files[1]}", "--trace", f"0:{files[2]}", f"1:{files[3]}",
              device="auto", environment={"RANK": "3"}).wait()
    job.check(job.codes == [0, 0], "exit codes")
    logs = [json.loads((folder / "logs" / f"rank-{r}.json").read_text()) for r in (0, 1)]
    job.check(json.loads(job.out[0]) == logs[0] and job.out[1] == "", "one JSON document")
    job.check([r["ranks"]["rank"] for r in logs] == [0, 1], "a log for each rank")
    job.check([f.exists() for f in files] == [True, False, True, False], "--export and --trace")


def no_export_of_defaults(folder):
    file = folder / "defaults"
    job = Job(folder, "--evaluations", "0:2", "1:3", "--export", f"t4:{file}").wait()
    job.check(job.codes == [2, 2] and not file.exists(), "exit codes of ranks that differ")
    job.check("was not written" in job.errors[0] and "was not written" not in job.errors[1], "no export is said")


def a_roofline_is_no_matter_of_the_ranks(folder):
    """One rank measures it, the other does not; and is interrupted while the other waits."""
    job = Job(folder, "--json", "1:--roofline", "--evaluations", "4", "--rank-logs", str(folder / "roof"))
    job.until(lambda: job.takes_signals(1) and (folder / "roof" / "rank-0.json").exists())
    job.interrupt(1)
    job.wait()
    job.check(job.codes == [2, 130] and job.seconds < 30, "interrupted before tuning")
    report = json.loads(job.out[0])["ranks"]
    job.check(report["outcome"] == "defaults" and "stopped" in report["why"] and not report["broken"], "why")
    result = json.loads((folder / "roof" / "rank-1.json").read_text())
    job.check(result["end"] == "stopped" and result["ranks"]["rank"] == 1, "the interrupted rank's result")


def main():
    llvm = json.loads(subprocess.check_output([KILN, "doctor", "--json"]))["components"]["llvm"]
    if not llvm["available"]:
        print("skipped:", llvm["problem"])
        return 77
    problem = ("gemm", "--problem", "m=64,n=64,k=128", "--evaluations", "24")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        done, reports = tune(folder, 4, *problem, "--strategy-ranks", "shard", "--settle-in",
                             str(folder / "settle"))
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
        for scenario in (a_rank_that_cannot_begin, a_folder_to_settle_in_that_is_none, only_rank_0_writes,
                         no_export_of_defaults, a_roofline_is_no_matter_of_the_ranks):
            scenario(folder / scenario.__name__)
    print("ok")
    return 0


sys.exit(main())
