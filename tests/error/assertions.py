#!/usr/bin/env python3
"""A test program fails if one of its assertions fails, or is on a thread other than the test's.

Usage: PROGRAM (of assertions.cpp)"""
import re
import subprocess
import sys

failures = []


def expect(case, passes, told):
    """The case, alone, passes or not, and the program tells of an assertion on another thread or not."""
    result = subprocess.run([sys.argv[1], case], capture_output=True, text=True, timeout=60)
    ran = re.search(r"in 1 test case\b|test cases: +1\b", result.stdout)
    says = "an assertion on a thread other than the test's" in result.stderr
    if not ran or (result.returncode == 0) != passes or says != told:
        failures.append(f"'{case}': exit {result.returncode}\n{result.stdout}{result.stderr}")


expect("right here", passes=True, told=False)
expect("wrong here", passes=False, told=False)
expect("right elsewhere", passes=False, told=True)
expect("wrong elsewhere", passes=False, told=True)
if failures:
    sys.exit("\n".join(failures))
