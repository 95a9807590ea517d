#!/usr/bin/env python3
"""An engine outside the tree, built against an installed prefix through pkg-config and CMake; the prefix is then moved.
Its four threads launch shipped kernels while problems of the other threads are tuned: every launch is served, every
result is right, nothing is on stderr. With --bench the longest launch is held against the budget, too.

Usage: [--bench] ENGINE_PROJECT KILN_BUILD KILN"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import boost_path  # noqa: E402,F401
from installed import compiler, environment, install, library_folder, output, run  # noqa: E402

BUDGET, BENCH_BUDGET = 0.5, 2.0  # seconds of a launch that tunes
MOST = 1.2  # the longest launch, in budgets
PROBLEMS = 16  # of one round of the engine


def no_host_compiler(kiln):
    """Why the host target cannot be used, or nothing."""
    llvm = json.loads(output(kiln, "doctor", "--json"))["components"]["llvm"]
    return None if llvm["available"] else llvm["problem"]


def build_engines(project, prefix, scratch):
    """How each was built, and the program."""
    env = environment(prefix, scratch)
    programs = {"pkg-config": scratch / "engine"}
    flags = output("pkg-config", "--cflags", "--libs", "kiln", env=env).split()
    run(*compiler(), "-std=c++20", "-pthread", project / "engine.cpp", "-o", programs["pkg-config"], *flags, env=env)
    if shutil.which("cmake"):
        run("cmake", "-S", project, "-B", scratch / "cmake", f"-DCMAKE_PREFIX_PATH={prefix}", "-G", "Ninja",
            stdout=subprocess.DEVNULL, env=env)
        run("ninja", "-C", scratch / "cmake", stdout=subprocess.DEVNULL, env=env)
        programs["CMake"] = scratch / "cmake" / "engine"
    else:
        print("CMake: skipped: cmake is not installed")
    return programs


def serve(how, program, prefix, cache, budget, rounds):
    """Runs an engine; its worst stall, in budgets."""
    env = environment(prefix, cache) | {"LD_LIBRARY_PATH": str(library_folder(prefix))}
    done = subprocess.run([program, str(budget), str(rounds)], env=env, text=True, capture_output=True, timeout=280)
    print(f"-- {how}\n{done.stdout}", end="", flush=True)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    assert not done.stderr, f"on stderr: {done.stderr}"
    launches, tuned = map(int, re.search(r"(\d+) launches, (\d+) problems tuned", done.stdout).groups())
    assert launches == PROBLEMS * rounds, f"{launches} launches of {PROBLEMS * rounds} were served"
    assert tuned > 0, "nothing was tuned, so nobody had to wait"
    return float(re.search(r"worst stall ([\d.]+) of the budget", done.stdout)[1])


def main():
    arguments = sys.argv[1:]
    bench = "--bench" in arguments
    project, build, kiln = (pathlib.Path(a) for a in arguments if a != "--bench")
    reason = no_host_compiler(kiln)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        built = install(build, scratch)
        programs = build_engines(project, built, scratch)
        prefix = built.rename(scratch / "elsewhere")
        if reason:
            print("skipped: built, but not run:", reason)
            return 77
        budget, rounds = (BENCH_BUDGET, 4) if bench else (BUDGET, 2)
        stalls = [serve(how, program, prefix, scratch / how, budget, rounds) for how, program in programs.items()]
    worst = max(stalls)
    print(f"worst stall {worst:.2f} of the budget")
    if bench and worst > MOST:
        print(f"that is more than {MOST}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
