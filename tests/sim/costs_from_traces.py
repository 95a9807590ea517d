#!/usr/bin/env python3
"""Turns traces of `kiln tune --trace FILE` into what `rank_simulation --model` reads, on stdout.

  costs_from_traces.py THREADS OVERLAP TRACE...    OVERLAP: 1 where compiling goes on while timing (GPU)

A line `kernel,threads,overlap,setup,wall` per trace: seconds that its tuning took beside candidates
(data, the reference, the finals), and in all. Then per candidate `compile,run`: its own compile time;
loading, verifying and timing happen in groups and are shared out evenly.
"""
import json
import sys


def main(threads, overlap, *traces):
    for path in traces:
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        seconds = {}
        for event in events:
            if "dur" in event:
                seconds.setdefault(event["name"], []).append(event["dur"] / 1e6)

        def total(*names):
            return sum(sum(seconds.get(name, [])) for name in names)

        compiles = seconds.get("compile", [])
        if not compiles:
            sys.exit(f"{path}: nothing was compiled")
        run = total("load", "verify", "time") / len(compiles)
        kernel = next(event["cat"] for event in events if event.get("name") == "compile")
        wall = max(event["ts"] + event["dur"] for event in events if "dur" in event) / 1e6
        print(f"{kernel},{threads},{overlap},{total('data', 'finals'):.3f},{wall:.3f}")
        for compile_seconds in compiles:
            print(f"{compile_seconds:.4f},{run:.4f}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
