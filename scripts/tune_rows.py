#!/usr/bin/env python3
"""The two ends of `kiln tune --problems` in scripts/test-gpu.

  tune_rows.py select KERNEL PROBLEMS...   the problems of one kernel, as JSON
  tune_rows.py show RESULTS                one line per problem of what `kiln tune --json` printed
"""
import json
import sys


def select(kernel, *paths):
    problems = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            problems += [item for item in json.load(file) if item["kernel"] == kernel]
    print(json.dumps(problems))


def rates(candidate):
    """What a config reaches, as far as it is known."""
    text = ""
    if candidate.get("tflops", 0) >= 10:
        text += f", {candidate['tflops']:.4g} TFLOP/s"
    if "gb_per_s" in candidate:
        text += f", {candidate['gb_per_s']:.4g} GB/s"
    if "roofline_percent" in candidate:
        text += f", {candidate['roofline_percent']:.1f} % of the roofline ({candidate['bound']})"
    return text


def show(path):
    with open(path, encoding="utf-8") as file:
        output = json.load(file)
    for result in output.get("results", [output]):
        problem = ",".join(f"{name}={value}" for name, value in result["problem"].items())
        times = [result[which].get("time_ms") for which in ("winner", "default")]
        winner, default = ("none" if time is None else f"{time * 1e3:.4g} us" for time in times)
        launch = "right" if result["launch"]["right"] else "WRONG: " + result["launch"]["why"]
        counts = {name: count for name, count in result["counts"].items() if count}
        print(f"  {','.join(result['types'])} {problem}: {winner}, default {default}, {launch}"
              f"{rates(result['winner'])}")
        print(f"    {json.dumps(result['winner']['config'])}, {counts}, {result['wall_s']:.1f} s "
              f"(compile {result['compile_s']:.1f}, verify {result['verify_s']:.1f}, "
              f"time {result['time_s']:.1f}, search {result['search_s']:.1f})")


if __name__ == "__main__":
    {"select": select, "show": show}[sys.argv[1]](*sys.argv[2:])
