#!/usr/bin/env python3
"""Runs a test program's cases under compute-sanitizer, each in a process of its own, several at a time.

  sanitize_cases.py SECONDS TOOL[ OPTION...] PROGRAM CASES

CASES: as the program takes them. A case after which SECONDS have passed is ended, those behind it are not run. Prints what
was found, and one line of all last. Exit: 0 nothing, 99 errors, 124 not all cases came to their end.
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time

AT_A_TIME = max(1, min(12, (os.cpu_count() or 1) * 3 // 4))  # one takes a core, and gigabytes


def listed(program, cases):
    out = subprocess.run([program, "--list-test-names-only", cases], capture_output=True, text=True).stdout
    return [line.strip() for line in out.splitlines() if line.strip()]


def escaped(name):
    return re.sub(r'([\\,"\[\]*~])', r"\\\1", name)


class Run:
    def __init__(self, seconds, tool, program):
        self.end = time.monotonic() + seconds
        self.command = ["compute-sanitizer", "--tool", *tool.split(), "--error-exitcode", "99", "--target-processes", "all",
                        "--report-api-errors", "no", program]

    def case(self, name):
        """The case's name, its exit code, None where it was ended or did not begin, and what it printed."""
        left = self.end - time.monotonic()
        if left < 5:
            return name, None, "not begun"
        with tempfile.TemporaryDirectory() as cache:
            try:
                done = subprocess.run([*self.command, escaped(name)], env=dict(os.environ, XDG_CACHE_HOME=cache), text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=left, errors="replace")
            except subprocess.TimeoutExpired:
                return name, None, f"not done after {left:.0f} s"
        return name, done.returncode, done.stdout


def main(seconds, tool, program, cases):
    names = listed(program, cases)
    run, wrong, unfinished = Run(float(seconds), tool, program), 0, 0
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for name, code, output in pool.map(run.case, names):
            if code == 0:
                continue
            wrong, unfinished = wrong + (code is not None), unfinished + (code is None)
            print(f"-- {name}: {output if code is None else f'exit code {code}'}")
            if code is not None:
                print(output[-6000:])
    print(f"SUMMARY: {len(names)} cases, {wrong} with errors, {unfinished} not done")
    return 99 if wrong or not names else 124 if unfinished else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
