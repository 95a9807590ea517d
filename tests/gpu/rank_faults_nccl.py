#!/usr/bin/env python3
"""Ranks over real NCCL: collectives on one GPU and on two, and ranks that die or stop on the way.

  rank_faults_nccl.py RANK_JOB_NCCL [NAME...]     the cases whose names contain a NAME

One process a rank. What needs two GPUs is skipped with one, and two ranks on one GPU need NCCL
2.30. KILN_NCCL_SECONDS (85) ends it all in time: what is left then is not run, and said. The last
line is "nccl rank faults tried N, divergent plans 0, hangs 0". Exit: 77 without a GPU or NCCL.
"""
import concurrent.futures
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

AT_ONCE = 3  # cases, which mostly wait
LIMIT = 40  # seconds: more than any job's deadlines together
# Name, needs, boot, what all ranks do, and what the ranks' results begin with (the faulty one's last).
COLLECTIVES = "ok collectives right"
CASES = [
    ("one rank, by a file", "one", "file", "do=collectives", COLLECTIVES),
    ("one rank, over threads", "one", "threads", "do=collectives", COLLECTIVES),
    ("one rank agrees", "one", "file", "do=agree", "plan"),
    ("one rank, an engine's communicator", "one", "engine", "do=collectives", COLLECTIVES),
    ("one rank, an engine's blocking communicator", "one", "blocking-engine", "do=collectives",
     COLLECTIVES),
    ("by a file", "two", "file", "do=collectives", COLLECTIVES),
    ("by torchrun's environment", "two", "env", "do=collectives", COLLECTIVES),
    ("an engine's communicator", "two", "engine", "do=collectives", COLLECTIVES),
    ("an engine's blocking communicator", "two", "blocking-engine", "do=collectives", COLLECTIVES),
    ("ranks agree", "two", "file", "do=agree", "plan"),
    ("killed in a collective", "two", "file", "do=loop fault=kill faulty=1", "failed"),
    ("rank 0 killed in a collective", "two", "env", "do=loop fault=kill faulty=0", "failed"),
    ("stopped in a collective, goes on later", "two", "file", "do=loop fault=stop faulty=1",
     "failed"),
    ("killed before NCCL begins", "two", "file", "do=loop fault=kill faulty=1 at=init seconds=4",
     "failed"),
    ("killed before voting", "two", "file", "do=agree fault=kill faulty=1 at=1", "defaults"),
    ("killed while tuning", "two", "file", "do=agree fault=kill faulty=1 at=tune", "defaults"),
    ("stopped while tuning, goes on later", "two", "file", "do=agree fault=stop faulty=1 at=tune",
     "defaults"),
]


def environment():
    """With NCCL on the loader's path where it came as a Python package, and without multicast."""
    env = dict(os.environ)
    env.setdefault("NCCL_NVLS_ENABLE", "0")  # its failures can outlive the process
    env.setdefault("NCCL_DEBUG", "WARN")
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        spec = None
    folders = [os.path.join(p, "lib") for p in (spec.submodule_search_locations or [])] if spec else []
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "KILN_RENDEZVOUS_HOST",
                 "KILN_RENDEZVOUS_PORT"):
        env.pop(name, None)
    path = env.get("LD_LIBRARY_PATH")
    env["LD_LIBRARY_PATH"] = ":".join(([path] if path else []) + folders)
    return env


taken_ports, port_lock = set(), threading.Lock()


def free_port():
    """A port that no other case of this run has been given."""
    while True:
        with socket.socket() as s, port_lock:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
            if port not in taken_ports:
                taken_ports.add(port)
                return port


def start(program, folder, env, case, size, devices):
    _, _, boot, options, _ = case
    master, meet = free_port(), free_port()
    ranks = []
    for rank in range(size):
        own = dict(env)
        arguments = [f"boot={boot}", f"rank={rank}", f"size={size}", f"device={devices[rank]}",
                     *options.split()]
        if boot == "env":
            own.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master), KILN_RENDEZVOUS_PORT=str(meet))
            if len(set(devices)) < size:  # ranks of one GPU each see it alone
                own["CUDA_VISIBLE_DEVICES"] = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        log = open(folder / f"{rank}.log", "wb")
        ranks.append(subprocess.Popen([program, str(folder), *arguments], env=own, stdout=log, stderr=log,
                                      stdin=subprocess.DEVNULL))
    return ranks


def stopped(process):
    try:
        return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def wait(ranks, folder, wanted, limit):
    """Until all have ended; a stopped rank goes on once the others have. Returns the ranks that hung."""
    begin, others_ended = time.monotonic(), None
    faulty = int(wanted.get("faulty", -1))
    while any(r.poll() is None for r in ranks):
        time.sleep(0.02)
        now = time.monotonic()
        others = [r for i, r in enumerate(ranks) if i != faulty]
        if others_ended is None and all(r.poll() is not None for r in others):
            others_ended = now
        if wanted.get("fault") == "stop" and others_ended is not None and now - others_ended > 0.3 and \
                stopped(ranks[faulty]):
            ranks[faulty].send_signal(signal.SIGCONT)
        if now - begin > limit:
            break
    hung = [i for i, r in enumerate(ranks) if r.poll() is None]
    for i in hung:
        ranks[i].kill()
        ranks[i].wait()
    return hung


def judge(case, results, hung, ranks, wanted):
    """What is wrong, as texts."""
    begins = case[4]
    faulty = int(wanted.get("faulty", -1))
    problems = [f"rank {r} hung" for r in hung]
    for rank, process in enumerate(ranks):
        line = results.get(rank)
        if rank == faulty and wanted["fault"] == "kill":
            if process.returncode != -signal.SIGKILL:
                problems.append(f"rank {rank} was to die and ended with {process.returncode}: {line}")
        elif line is None:
            problems.append(f"rank {rank} ended with {process.returncode} and has no result")
        elif not line.startswith(begins):
            problems.append(f"rank {rank}: {line}, wanted: {begins}")
        elif len(line) < len(begins) + 4 and begins != COLLECTIVES:
            problems.append(f"rank {rank} does not say why: {line}")
    return problems


def run(program, end, case, size, devices, variables, prefix):
    """What to say of it, whether plans diverge (None: it was not run), whether a rank hung, whether it is wrong."""
    name = prefix + case[0]
    if end - time.monotonic() < 10:
        return [f"not run: {name}: no time left"], None, False, False
    wanted = dict(o.split("=") for o in case[3].split())
    with tempfile.TemporaryDirectory(prefix="kiln-nccl-") as path:
        folder, begin = pathlib.Path(path), time.monotonic()
        ranks = start(program, folder, variables, case, size, devices)
        hung = wait(ranks, folder, wanted, min(LIMIT, end - begin))
        results = {int(file.stem): file.read_text().splitlines()[0] for file in folder.glob("*.txt")}
        problems = judge(case, results, hung, ranks, wanted)
        held = {line if line.startswith("plan") else "defaults"
                for line in results.values() if line.startswith(("plan", "defaults"))}
        lines = [f"{'FAILED' if problems else 'ok':7}{name}: {time.monotonic() - begin:.1f} s"]
        lines += [f"         rank {rank}: {line[:200]}" for rank, line in sorted(results.items())]
        lines += [f"        {problem}" for problem in problems]
        for rank in range(size if problems else 0):
            lines += [f"--- rank {rank}", (folder / f"{rank}.log").read_text(errors="replace")[-1500:]]
    return lines, len(held) > 1, bool(hung), bool(problems)


def main(program, *names):
    env = environment()
    probe = subprocess.run([program, "probe"], env=env, capture_output=True, text=True, timeout=60)
    if probe.returncode != 0:
        print(f"skipped: {probe.stdout.strip()}{probe.stderr.strip()}")
        return 77 if probe.returncode == 77 else 1
    count, version = probe.stdout.split()
    count, number = int(count), tuple(int(n) for n in version.split(".")[:2])
    print(f"{count} GPUs, NCCL {version}", flush=True)
    shared = {**env, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    runs = [(c, 1, [0], env, "") for c in CASES if c[1] == "one"]
    if count >= 2:
        runs += [(c, 2, [0, 1], env, "two GPUs, ") for c in CASES if c[1] == "two"]
    else:
        print("skipped: two GPUs: there is one")
    if number >= (2, 30):
        runs += [(c, 2, [0, 0], shared, "two ranks on one GPU, ") for c in CASES if c[1] == "two"]
    else:
        print(f"skipped: two ranks on one GPU: NCCL {version} is older than 2.30")

    end = time.monotonic() + float(os.environ.get("KILN_NCCL_SECONDS", "85"))
    runs = [r for r in runs if not names or any(n in r[4] + r[0][0] for n in names)]
    tried = divergent = hangs = failed = left = 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(run, program, end, *r) for r in runs]:
            lines, differ, hung, wrong = done.result()
            print("\n".join(lines), flush=True)
            if differ is None:
                left += 1
                continue
            tried, divergent, hangs, failed = tried + 1, divergent + differ, hangs + hung, failed + wrong
    if left:
        print(f"{left} cases were not run")
    print(f"nccl rank faults tried {tried}, divergent plans {divergent}, hangs {hangs}")
    return 1 if failed or divergent or hangs or not tried else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
