#!/usr/bin/env python3
"""Lists a build folder's GPU tests and all benchmarks, one a line, for scripts/test-gpu.

  list_programs.py BUILD   ->   test|ranks|benchmark <tab> name <tab> path in BUILD <tab> arguments

`ranks` is a program that a script of the tree starts, once a rank; the script is its argument.
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
            if kind == "test" and "gpu_ranks" in suites:
                script = os.path.relpath(path, os.path.join(os.path.dirname(__file__), ".."))
                started = os.path.relpath(os.path.join(build, arguments[0]), build)
                print("ranks", program["name"], started, script, sep="\t")
            elif not os.path.realpath(path).startswith(build + os.sep):
                continue  # a script that looks at the build itself
            elif kind == "benchmark" or "gpu" in suites:
                print(kind, program["name"], os.path.relpath(path, build), " ".join(arguments), sep="\t")


if __name__ == "__main__":
    main(sys.argv[1])
