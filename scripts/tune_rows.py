#!/usr/bin/env python3
"""The two ends of `kiln tune --problems` in scripts/test-gpu.

  tune_rows.py select KERNEL PROBLEMS   the problems of one kernel, as JSON
  tune_rows.py show RESULTS             one line per problem of what `kiln tune --json` printed
"""
import json
import sys


def select(kernel, path):
    with open(path, encoding="utf-8") as file:
        print(json.dumps([item for item in json.load(file) if item["kernel"] == kernel]))


def show(path):
    with open(path, encoding="utf-8") as file:
        output = json.load(file)
    for result in output.get("results", [output]):
        problem = ",".join(f"{name}={value}" for name, value in result["problem"].items())
        times = [result[which].get("time_ms") for which in ("winner", "default")]
        winner, default = ("none" if time is None else f"{time * 1e3:.4g} us" for time in times)
        launch = "right" if result["launch"]["right"] else "WRONG: " + result["launch"]["why"]
        print(f"  {','.join(result['types'])} {problem}: {winner}, default {default}, {launch}")


if __name__ == "__main__":
    {"select": select, "show": show}[sys.argv[1]](*sys.argv[2:])
