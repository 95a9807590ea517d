#!/usr/bin/env python3
"""`kiln doctor` shows every variable, its value and where that comes from; names that Kiln does not know, too.

Usage: KILN"""
import json
import os
import subprocess
import sys
import tempfile


def doctor(kiln, folder, *options, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
    environment["XDG_CACHE_HOME"] = folder
    run = subprocess.run([kiln, *options, "doctor", "--json"], env=environment | variables, capture_output=True,
                         text=True, timeout=60)
    text = subprocess.run([kiln, *options, "doctor"], env=environment | variables, capture_output=True, text=True,
                          timeout=60)
    assert run.returncode == text.returncode == 0, run.stderr + text.stderr
    return json.loads(run.stdout), text.stdout


def check(kiln, folder):
    reference = json.loads(subprocess.run([kiln, "reference", "--json"], check=True, capture_output=True, text=True).stdout)
    names = [row["variable"].strip("`") for row in reference["variables"]]
    plain, text = doctor(kiln, folder)
    assert sorted(plain["variables"]) == sorted(names)
    assert all(name in text for name in names)
    assert {v["from"] for v in plain["variables"].values()} == {"default"}, plain["variables"]
    assert plain["unknown_variables"] == []

    told, text = doctor(kiln, folder, "--cache-dir", folder + "/elsewhere", KILN_CACHE_DIR="/tmp/here", KILN_MODE="untuned",
                        KILN_MAX_SECONDS="soon", KILN_TRACES="/tmp", KILN_ON_UNPREPARED="never",
                        KILN_CACHE_FILES="many", KILN_ISOLATION="always")
    variables = told["variables"]
    assert variables["KILN_CACHE_DIR"] == {"value": folder + "/elsewhere", "from": "option", "problem": ""}
    assert variables["KILN_MODE"] == {"value": "untuned", "from": "environment", "problem": ""}
    assert "KILN_MAX_SECONDS is 'soon'" in variables["KILN_MAX_SECONDS"]["problem"]
    assert "KILN_MAX_SECONDS is 'soon'" in text
    assert "KILN_ON_UNPREPARED is 'never'" in variables["KILN_ON_UNPREPARED"]["problem"]
    assert "'many'" in variables["KILN_CACHE_FILES"]["problem"]
    assert variables["KILN_ISOLATION"] == {"value": "always", "from": "environment", "problem": ""}
    assert len(told["unknown_variables"]) == 1 and "did you mean KILN_TRACE?" in told["unknown_variables"][0]

    assert plain["components"]["store"]["available"], plain
    with open(folder + "/file", "w"):
        told, text = doctor(kiln, folder, "--cache-dir", folder + "/file/store")
    store = told["components"]["store"]
    assert not store["available"] and "is not a directory" in store["problem"], store
    assert "is not a directory" in text, text
    print(f"{len(names)} variables")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        check(sys.argv[1], cache)
