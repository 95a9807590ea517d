#!/usr/bin/env python3
"""Prints tunings of one kernel as tests/unit/templates/gemm_h200.json has them, one line per problem.

  kiln tune gemm --types bf16 --problem m=...,n=...,k=... --export t4:1.json   # for each problem
  recorded_tunings.py DEVICE 1.json 2.json ... > gemm_h200.json

A candidate is its config's values, in the order of "parameters", and the microseconds of a launch.
"""
import json
import statistics
import sys


def main(device, *paths):
    lines, kernel, parameters = [], None, None
    for path in paths:
        with open(path, encoding="utf-8") as file:
            tuning = json.load(file)
        about = tuning["metadata"]
        kernel = kernel or (about["kernel"], about["types"])
        if kernel != (about["kernel"], about["types"]):
            sys.exit(f"{path}: another kernel")
        candidates = []
        for result in tuning["results"]:
            if result["invalidity"] != "correct":
                continue
            config = result["configuration"]
            parameters = parameters or list(config)
            milliseconds = statistics.median(result["times"]["runtimes"])
            candidates.append([config[name] for name in parameters] + [float(f"{milliseconds * 1e3:.5g}")])
        lines.append(json.dumps({"problem": list(about["problem"].values()), "candidates": candidates},
                                separators=(",", ":")))
    head = {"device": device, "kernel": kernel[0], "types": kernel[1], "parameters": parameters}
    print(json.dumps(head)[:-1] + ', "tunings": [\n' + ",\n".join(lines) + "\n]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
