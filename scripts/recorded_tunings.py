#!/usr/bin/env python3
"""Tunings of one kernel in the compact form that tests keep them in: one line per problem.

  kiln tune gemm --types bf16 --problem m=...,n=...,k=... --export t4:1.json   # for each problem
  recorded_tunings.py DEVICE 1.json 2.json ... > gemm.json
  recorded_tunings.py --t4 FOLDER gemm.json ...   # back again: one T4 file for each problem

A candidate is its config's values, in the order of "parameters", and the microseconds of a launch; null where it
failed.
"""
import json
import pathlib
import statistics
import sys


def microseconds(result):
    if result["invalidity"] != "correct":
        return None
    runtimes = result.get("times", {}).get("runtimes")
    milliseconds = statistics.median(runtimes) if runtimes else result["measurements"][0]["value"]
    return float(f"{milliseconds * 1e3:.5g}")


def record(device, *paths):
    lines, kernel, parameters, fields = [], None, None, None
    for path in paths:
        with open(path, encoding="utf-8") as file:
            tuning = json.load(file)
        about = tuning["metadata"]
        kernel = kernel or (about["kernel"], about["types"])
        if kernel != (about["kernel"], about["types"]):
            sys.exit(f"{path}: another kernel")
        fields = fields or list(about["problem"])
        candidates = []
        for result in tuning["results"]:
            config = result["configuration"]
            parameters = parameters or list(config)
            candidates.append([config[name] for name in parameters] + [microseconds(result)])
        lines.append(json.dumps({"problem": list(about["problem"].values()), "candidates": candidates},
                                separators=(",", ":")))
    head = {"device": device, "kernel": kernel[0], "types": kernel[1], "fields": fields, "parameters": parameters}
    print(json.dumps(head)[:-1] + ', "tunings": [\n' + ",\n".join(lines) + "\n]}")


def as_t4(folder, *paths):
    """The files that were written, for each of `paths` a list."""
    families = []
    for path in map(pathlib.Path, paths):
        recorded = json.loads(path.read_text(encoding="utf-8"))
        family = []
        for tuning in recorded["tunings"]:
            results = []
            for *config, time in tuning["candidates"]:
                result = {"configuration": dict(zip(recorded["parameters"], config)),
                          "invalidity": "correct" if time else "runtime", "correctness": 1 if time else 0}
                if time:
                    result["measurements"] = [{"name": "time", "value": time / 1e3, "unit": "milliseconds"}]
                results.append(result | {"objectives": ["time"]})
            about = {"timeunit": "milliseconds", "kernel": recorded["kernel"], "types": recorded["types"],
                     "problem": dict(zip(recorded["fields"], tuning["problem"])), "device": recorded["device"]}
            out = pathlib.Path(folder) / f"{path.stem}_{'x'.join(map(str, tuning['problem']))}.t4.json"
            out.write_text(json.dumps({"schema_version": "1.0.0", "metadata": about, "results": results}))
            family.append(out)
        families.append(family)
    return families


if __name__ == "__main__":
    if sys.argv[1] == "--t4":
        as_t4(*sys.argv[2:])
    else:
        record(*sys.argv[1:])
