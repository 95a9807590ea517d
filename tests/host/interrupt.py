#!/usr/bin/env python3
"""Ends tuning runs on the host at random moments, politely and not, and goes on from what is left.

Usage: KILN [TIMES]; $KILN_INTERRUPTS goes before TIMES. After every end the store must be whole, nothing that was
saved may be lost, and the next run must not try any of it again. Exits 77 (skipped) where the host device cannot compile."""
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

KILN = sys.argv[1]
TIMES = int(os.environ.get("KILN_INTERRUPTS") or (sys.argv[2] if len(sys.argv) > 2 else 50))
TUNE = [KILN, "tune", "rmsnorm", "--problem", "rows=8,hidden=256", "--device", "host", "--json",
        "--strategy", "exhaustive"]


def kiln(*arguments):
    return subprocess.run([KILN, *arguments], capture_output=True, text=True, timeout=280)


def saved(store):
    """The candidates in the record, by config; none without one."""
    candidates = {}
    for path in store.rglob("*.json"):
        record = json.loads(path.read_text())["record"]
        for c in record["candidates"]:
            name = json.dumps(c["config"], sort_keys=True)
            assert name not in candidates, f"twice in the record: {name}"
            candidates[name] = c["status"]
    return candidates


def clear(store):
    for path in store.rglob("*"):
        if path.is_file():
            path.unlink()


def main():
    if not json.loads(kiln("doctor", "--json").stdout)["components"]["llvm"]["available"]:
        print("skipped: no host compiler")
        return 77
    store = pathlib.Path(os.environ["KILN_CACHE_DIR"])
    rng = random.Random(1)
    begin = time.monotonic()
    whole = json.loads(subprocess.run(TUNE, capture_output=True, text=True, check=True).stdout)
    longest = time.monotonic() - begin
    assert whole["complete"] and whole["evaluated"] == len(whole["candidates"]), whole["evaluated"]
    clear(store)

    ended, kept, finished = {signal.SIGINT: 0, signal.SIGKILL: 0}, 0, 0
    before = {}
    for i in range(TIMES):
        how = signal.SIGINT if i % 2 == 0 else signal.SIGKILL
        run = subprocess.Popen(TUNE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(rng.uniform(0.01, 0.3 * longest + 0.1))
        run.send_signal(how)
        out, err = run.communicate(timeout=280)
        after = saved(store)
        assert set(before) <= set(after), f"lost: {set(before) - set(after)}"
        problems = [json.loads(kiln("cache", "verify", "--json").stdout)["damaged"]]
        assert problems == [[]], problems
        if run.returncode in (0, 130) and out:
            result = json.loads(out)
            if result and (result["end"] != "stopped" or result["winner"]["status"] == "measured"):
                fresh = len(set(after) - set(before))
                assert result["from_store"] or result["evaluated"] == fresh, (result["evaluated"], fresh)
        else:
            # SIGKILL, or SIGINT before the command was listening.
            assert run.returncode in (-signal.SIGKILL, -signal.SIGINT), (run.returncode, err)
        ended[how] += run.returncode != 0
        kept += len(after) > len(before)
        before = after
        if run.returncode == 0:  # it was done before the signal came: begin anew
            assert len(after) == len(whole["candidates"])
            finished += 1
            clear(store)
            before = {}

    rest = json.loads(subprocess.run(TUNE, capture_output=True, text=True, check=True).stdout)
    assert rest["complete"]
    assert rest["from_store"] or rest["evaluated"] == len(rest["candidates"]) - len(before), rest["evaluated"]
    assert {json.dumps(c["config"], sort_keys=True) for c in rest["candidates"]} == \
        {json.dumps(c["config"], sort_keys=True) for c in whole["candidates"]}
    assert sum(ended.values()) > TIMES // 3, f"only {ended} of {TIMES} were ended in time"
    print(f"{ended[signal.SIGINT]} interrupted, {ended[signal.SIGKILL]} killed, {finished} done before; "
          f"{kept} ends left more than there was; nothing lost, nothing repeated")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KILN_CACHE_DIR"] = str(pathlib.Path(folder) / "store")
        sys.exit(main())
