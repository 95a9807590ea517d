#!/usr/bin/env python3
"""Lists a build folder's GPU tests and all benchmarks, one a line, for scripts/test-gpu.

  list_programs.py BUILD   ->   test|benchmark <tab> name <tab> path in BUILD <tab> arguments
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
            if kind == "test" and "gpu" not in suites:
                continue
            path, *arguments = program["cmd"]
            print(kind, program["name"], os.path.relpath(path, build), " ".join(arguments), sep="\t")


if __name__ == "__main__":
    main(sys.argv[1])
