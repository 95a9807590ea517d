#!/usr/bin/env python3
"""A test program fails if one of its assertions fails, or is on a thread other than the test's.

Usage: PROGRAM (of assertions.cpp)"""
import subprocess
import sys

SAID = "an assertion on a thread other than the test's"
failures = []


def expect(case, passes, said):
    result = subprocess.run([sys.argv[1], case.replace(",", "\\,")], capture_output=True, text=True, timeout=60)
    if (result.returncode == 0) != passes or (SAID in result.stderr) != said or "1 test case" not in result.stdout \
            and "1 assertion" not in result.stdout:
        failures.append(f"'{case}': exit {result.returncode}\n{result.stdout}{result.stderr}")


expect("on the test's thread", passes=True, said=False)
expect("on the test's thread, wrong", passes=False, said=False)
expect("on another thread, right", passes=False, said=True)
expect("on another thread, wrong", passes=False, said=True)
if failures:
    sys.exit("\n".join(failures))
