#!/usr/bin/env python3
"""Prints what Ninja must build for some test suites, one target a line.

  suite_targets.py BUILD [SUITE]... [--without=SUITE]... [--benchmarks]
"""
import json
import os
import subprocess
import sys


def introspect(build, what):
    return json.loads(subprocess.check_output(["meson", "introspect", what, build]))


def main(build, *arguments):
    # What is introspected is as old as the last configuration.
    subprocess.run(["ninja", "-C", build, "build.ninja"], check=True, stdout=subprocess.DEVNULL)
    suites = {a for a in arguments if not a.startswith("--")}
    without = {a.partition("=")[2] for a in arguments if a.startswith("--without=")}
    programs = []
    for test in introspect(build, "--tests"):
        belongs_to = {suite.rpartition(":")[2] for suite in test["suite"]}
        if suites & belongs_to and not without & belongs_to:
            programs.append(test)
    if "--benchmarks" in arguments:
        programs += introspect(build, "--benchmarks")
    wanted = {target for program in programs for target in program["depends"]}
    files = {file for target in introspect(build, "--targets") if target["id"] in wanted
             for file in target["filename"]}
    if programs:  # also where nothing is to be built for them
        print("build.ninja")
    for file in sorted(os.path.relpath(file, build) for file in files):
        print(file)


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]), *sys.argv[2:])
