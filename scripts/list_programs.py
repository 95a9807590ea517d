#!/usr/bin/env python3
"""Lists a build folder's GPU tests, examples and all benchmarks, one a line, for scripts/test-gpu.

  list_programs.py BUILD   ->   test|rank-test|benchmark <tab> name <tab> path in BUILD <tab> arguments
                                example <tab> name <tab> path in BUILD <tab> arguments
                                ranks <tab> name <tab> path in BUILD[ another...] <tab> script

`rank-test` is a test whose ranks are threads, one a GPU. `ranks` is a script of the tree that starts
programs; the first one once a rank.
"""
import json
import os
import subprocess
import sys


def introspect(build, what):
    return json.loads(subprocess.check_output(["meson", "introspect", what, build]))


def main(build):
    build = os.path.realpath(build)
    for kind, what in (("test", "--tests"), ("benchmark", "--benchmarks")):
        for program in introspect(build, what):
            suites = [suite.rpartition(":")[2] for suite in program["suite"]]
            path, *arguments = program["cmd"]
            if os.path.basename(path) == "cannot_run.py":
                continue
            built = os.path.realpath(path).startswith(build + os.sep)
            if kind == "test" and "gpu_ranks" in suites and not built:
                script = os.path.relpath(path, os.path.join(os.path.dirname(__file__), ".."))
                started = " ".join(os.path.relpath(os.path.join(build, a), build) for a in arguments)
                print("ranks", program["name"], started, script, sep="\t")
            elif kind == "test" and os.path.basename(path) == "run_example.py":
                _, example, *rest = arguments
                print("example", program["name"], os.path.relpath(os.path.join(build, example), build), " ".join(rest), sep="\t")
            elif built and (kind == "benchmark" or "gpu" in suites):
                kind_here = "rank-test" if "gpu_ranks" in suites else kind
                print(kind_here, program["name"], os.path.relpath(path, build), " ".join(arguments), sep="\t")


if __name__ == "__main__":
    main(sys.argv[1])
