#!/usr/bin/env python3
"""Mistakes on the command line: one clear message, the documented exit code, nothing written.

Usage: KILN"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

USER, ENVIRONMENT = 1, 2
KILN = sys.argv[1]
failures = []


def run(arguments, cache, **environment):
    return subprocess.run([KILN, *arguments], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, KILN_CACHE_DIR=str(cache), **environment))


def expect(code, words, *arguments, without="json.exception"):
    """`kiln ARGUMENTS` exits with `code`, says all `words` and not `without`, and leaves no store behind."""
    with tempfile.TemporaryDirectory() as folder:
        cache = pathlib.Path(folder) / "store"
        result = run(arguments, cache)
        said = result.stdout + result.stderr
        wrong = [w for w in words if w not in said] + [f"not {w}" for w in [without] if w in said]
        if result.returncode != code or wrong or cache.exists():
            failures.append(f"kiln {' '.join(arguments)}: exit {result.returncode} (expected {code}), "
                            f"missing {wrong}, store {'written' if cache.exists() else 'untouched'}:\n{said}")


PROBLEM = ["--problem", "rows=2,hidden=64", "--device", "host"]
expect(USER, ["no_such_kernel", "rmsnorm", "gemm"], "tune", "no_such_kernel", *PROBLEM)
expect(USER, ["rmsnorm", "f7", "bf16"], "tune", "rmsnorm", "--types", "f7", *PROBLEM)
expect(USER, ["colums", "rows", "hidden"], "tune", "rmsnorm", "--problem", "rows=2,colums=4", "--device", "host")
expect(USER, ["hidden", "missing"], "tune", "rmsnorm", "--problem", "rows=2", "--device", "host")
expect(USER, ["hidden", "6x4"], "tune", "rmsnorm", "--problem", "rows=2,hidden=6x4", "--device", "host")
expect(USER, ["rows", "twice"], "tune", "rmsnorm", "--problem", "rows=2,rows=3", "--device", "host")
expect(USER, ["rows", "-2"], "tune", "rmsnorm", "--problem", "rows=-2,hidden=64", "--device", "host")
expect(USER, ["rows"], "tune", "rmsnorm", "--problem", "rows", "--device", "host")
expect(USER, ["abacus", "host", "cuda"], "tune", "rmsnorm", "--problem", "rows=2,hidden=64", "--device", "abacus")
expect(USER, ["guesswork", "exhaustive"], "tune", "rmsnorm", *PROBLEM, "--strategy", "guesswork")
expect(USER, ["kernel"], "tune", *PROBLEM)
expect(USER, ["no_such_kernel"], "tune", "no_such_kernel")
expect(USER, ["--problem", "rows=N,hidden=N"], "tune", "rmsnorm")
expect(USER, ["--evaluations"], "tune", "rmsnorm", *PROBLEM, "--evaluations", "-1")
expect(USER, ["--evaluations", "'0' is not a number above 0"], "tune", "rmsnorm", *PROBLEM, "--evaluations", "0")
expect(USER, ["shred", "leader|replicate|shard"], "tune", "rmsnorm", *PROBLEM, "--ranks", "mpi",
       "--strategy-ranks", "shred")
expect(USER, ["'independent'", "use no ranks"], "tune", "rmsnorm", *PROBLEM, "--ranks", "mpi",
       "--strategy-ranks", "independent")
expect(ENVIRONMENT, ["--export", "/no/such/x.json", "No such file"], "tune", "rmsnorm", *PROBLEM,
       "--export", "t4:/no/such/x.json")
expect(ENVIRONMENT, ["--trace", "/tmp", "folder"], "tune", "rmsnorm", *PROBLEM, "--trace", "/tmp")
expect(USER, ["--seconds"], "tune", "rmsnorm", *PROBLEM, "--seconds", "nan")
expect(USER, ["rows=0", "nothing to tune"], "tune", "rmsnorm", "--problem", "rows=0,hidden=64", "--device", "host")
expect(USER, ["/no/such/file.json"], "tune", "--problems", "/no/such/file.json", "--device", "host")
expect(USER, ["--frobnicate"], "tune", "rmsnorm", "--frobnicate")
expect(USER, ["xyz"], "cache", "explain", "xyz")
expect(USER, ["rows=N,hidden=N", "--problems"], "precompile", "rmsnorm", "--arch", "host", "-o", "x.kiln")
expect(USER, ["--arch"], "precompile", "rmsnorm", "--problem", "rows=2,hidden=64", "-o", "x.kiln")
expect(USER, ["abacus", "sm_90a"], "precompile", "rmsnorm", "--problem", "rows=2,hidden=64", "--arch", "abacus", "-o", "x.kiln")
expect(USER, ["--output"], "precompile", "rmsnorm", "--problem", "rows=2,hidden=64", "--arch", "host")
expect(USER, ["/no/such.json"], "precompile", "--manifest", "/no/such.json", "-o", "x.kiln")
expect(ENVIRONMENT, ["/no/such.kiln"], "bundle", "show", "/no/such.kiln")
expect(USER, ["file"], "bundle", "verify")
expect(USER, ["--output"], "bundle", "merge", "a.kiln")
expect(USER, ["--key"], "bundle", "sign", "a.kiln")
expect(USER, ["2Q", "--max-size"], "cache", "trim", "--max-size", "2Q")
expect(USER, ["abacus", "host", "cuda"], "roofline", "--device", "abacus")
expect(ENVIRONMENT, ["cuda:99"], "roofline", "--device", "cuda:99")
expect(USER, ["--device"], "roofline", "--device")
expect(USER, ["subcommand"], )
expect(ENVIRONMENT, ["cuda:99"], "tune", "rmsnorm", "--problem", "rows=2,hidden=64", "--device", "cuda:99")

# What is misspelt or rounded in a problem file is no other problem.
with tempfile.TemporaryDirectory() as folder:
    expect(USER, ["--problems", folder], "tune", "--problems", folder, "--device", "host")
    expect(USER, ["--problems", folder], "precompile", "--problems", folder, "--arch", "host", "-o", "x.kiln")
    good = {"kernel": "vector_add", "problem": {"n": 64}}
    for change, words in [({"type": "bf16"}, ["'type'", "types"]), ({"problem": {"n": 64.5}}, ["n=64.5"]),
                          ({"problem": {"n": 1e30}}, ["n="]), ({"devices": ["gpu"]}, ["gpu", "cuda"])]:
        file = pathlib.Path(folder) / "problems.json"
        file.write_text(json.dumps([{**good, **change}]))
        expect(USER, words, "tune", "--problems", str(file), "--device", "host")
    groups = {"m": 64, "n": 8, "k": 8, "groups": 2, "row_alignment": 0}
    file.write_text(json.dumps([{"kernel": "gemm_padded", "types": "f32", "problem": groups}]))
    expect(USER, ["row_alignment is 0"], "tune", "--problems", str(file), "--device", "host")
    file.write_text("[7")
    expect(USER, ["line 1", "--problems"], "tune", "--problems", str(file), "--device", "host")
    file.write_text("[7]")
    expect(USER, ["7"], "tune", "--problems", str(file), "--device", "host")

# A list that could not be written is not an empty one.
with open("/dev/full", "w") as full:
    listed = subprocess.run([KILN, "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    if listed.returncode != ENVIRONMENT or "standard output" not in listed.stderr:
        failures.append(f"list to a full disk: exit {listed.returncode}, {listed.stderr}")

# A file in the store's place: said once, and everything else works.
with tempfile.TemporaryDirectory() as folder:
    cache = pathlib.Path(folder) / "store"
    cache.write_text("not a directory")
    result = run(["cache", "stats", "--json"], cache)
    stats = json.loads(result.stdout)
    if not stats["memory_only"] or str(cache) not in stats["reason"] or cache.read_text() != "not a directory":
        failures.append(f"a file as the store: {result.stdout}{result.stderr}")

# JSON output stays JSON when something is wrong.
with tempfile.TemporaryDirectory() as folder:
    result = run(["tune", "no_such_kernel", *PROBLEM, "--json"], pathlib.Path(folder) / "store")
    if json.loads(result.stdout)["error"]["kind"] != "user":
        failures.append(f"--json: {result.stdout}")

print("\n".join(failures))
print(f"{len(failures)} mistakes were answered wrongly")
sys.exit(1 if failures else 0)
