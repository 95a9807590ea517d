"""Counts test cases and prints "N passed, N failed, N skipped".

  count_tests.py TESTLOG           Meson's testlog.json: every program of a run
  count_tests.py OUTPUT STATUS     one program: what it printed and its exit status

A Catch2 program counts with the cases of its closing lines; any other program, and one that ended
without them, counts as one. A program that failed has at least one failure, whatever it printed. A case
that said "case skipped: NAME<tab>WHY" (tests/kiln_test.hpp) counts as skipped. What programs say in one line of all that they
tried, "faults tried N, ...", "captures tried N, ...", "swaps N, torn N", is repeated before the count, and so is what was
skipped, by its reason.
"""
import collections
import json
import re
import sys

ALL_PASSED = re.compile(r"^All tests passed \(.*?in (\d+) test cases?\)", re.M)
CASES = re.compile(r"^test cases: .*$", re.M)
SUMMARY = re.compile(r"^((?:[A-Za-z]+:? )*(?:tried|swaps|problems) )\d+, .*$", re.M)
CASE_SKIPPED = re.compile(r"^case skipped: (.*)\t(.*)$", re.M)
PROGRAM_SKIPPED = re.compile(r"^skipped:? (.*)$", re.M)
ALL_SKIPPED = 4  # exit status of Catch2 3 when it skipped every case
PART = re.compile(r"(\d+) (passed|skipped|failed as expected|failed)")


def catch2_counts(output):
    """Passed, failed and skipped cases by the last summary in a program's output; None without one."""
    lines = sorted([*ALL_PASSED.finditer(output), *CASES.finditer(output)], key=lambda m: m.start())
    if not lines:
        return None
    if lines[-1].re is ALL_PASSED:
        return int(lines[-1][1]), 0, 0
    parts = {name: int(number) for number, name in PART.findall(lines[-1][0])}
    return (parts.get("passed", 0) + parts.get("failed as expected", 0), parts.get("failed", 0),
            parts.get("skipped", 0))


def skipped_cases(output):
    """The reasons of the cases that skipped themselves, by name: a case may say so more than once."""
    return dict(CASE_SKIPPED.findall(output))


def summaries(output):
    """The lines that sum up what was tried: of each kind the last one."""
    return list({match[1]: match[0] for match in SUMMARY.finditer(output)}.values())


def counts(test):
    """Passed, failed and skipped cases of one entry of the log."""
    cases = catch2_counts(test.get("stdout") or "")
    if cases:
        skipped = min(len(skipped_cases(test["stdout"])), cases[0])
        cases = cases[0] - skipped, cases[1], cases[2] + skipped
    if test["result"] == "SKIP":
        return 0, 0, max(1, sum(cases or (0,)))
    if test["result"] in ("OK", "EXPECTEDFAIL"):
        return cases or (1, 0, 0)
    passed, failed, skipped = cases or (0, 0, 0)
    if test.get("returncode") == ALL_SKIPPED and skipped and passed + failed == 0:
        return 0, 0, skipped
    return passed, max(1, failed), skipped


def read(path, status=None):
    """The entries of a log, or the one entry that a program's output and exit status make."""
    try:
        with open(path, encoding="utf-8", errors="replace") as log:
            if status is None:
                return [json.loads(line) for line in log if line.strip()]
            result = {"0": "OK", "77": "SKIP"}.get(status, "FAIL")
            return [{"stdout": log.read(), "result": result, "returncode": int(status)}]
    except FileNotFoundError:
        return []


def main(*arguments):
    tests = read(*arguments)
    results = [counts(test) for test in tests]
    for test in tests:
        for summary in summaries(test.get("stdout") or ""):
            print(summary)
    reasons = collections.Counter()
    for test in tests:
        output = test.get("stdout") or ""
        reasons.update(skipped_cases(output).values())
        if test["result"] == "SKIP":
            why = PROGRAM_SKIPPED.findall(output)[-1:] or ["it does not say why"]
            reasons[f"{test.get('name', 'the program').rpartition(' / ')[2]}: {why[0]}"] += 1
    for reason, count in sorted(reasons.items()):
        print(f"skipped {count}: {reason}")
    passed, failed, skipped = (sum(column) for column in zip(*results)) if results else (0, 0, 0)
    if passed + failed + skipped == 0:
        print("no test ran")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or passed + failed + skipped == 0 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
