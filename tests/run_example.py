#!/usr/bin/env python3
"""Runs a program on an empty store and again on what that left. Usage: KILN PROGRAM [ARGUMENT...]

Exits 77 (skipped) where no device can be used."""
import json
import os
import subprocess
import sys
import tempfile


def no_device(kiln):
    """Why no kernel can run here, or nothing."""
    doctor = json.loads(subprocess.check_output([kiln, "doctor", "--json"]))
    cuda = any(d["id"].startswith("cuda") for d in doctor["devices"])
    wanted = doctor["components"]["nvrtc" if cuda else "llvm"]
    return None if wanted["available"] else wanted["problem"]


def main():
    kiln, program = sys.argv[1], sys.argv[2:]
    reason = no_device(kiln)
    if reason:
        print("skipped:", reason)
        return 77
    with tempfile.TemporaryDirectory() as store:
        environment = dict(os.environ, KILN_CACHE_DIR=os.path.join(store, "kiln"))
        for run in ("cold", "warm"):
            print(f"-- {run} store", flush=True)
            code = subprocess.run(program, env=environment, timeout=280).returncode
            if code != 0:
                print(f"exit code {code}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
