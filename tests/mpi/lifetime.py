#!/usr/bin/env python3
"""When MPI is finalized: lifetime.py MPIRUN LIFETIME_JOB. Each case is a job of its own: MPI starts only once."""

import os
import subprocess
import sys

RANKS = 2


def main(mpirun, program):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1")
    failed = False
    for mode in ("several", "parts", "again", "foreign", "broken", "threads", "one_thread"):
        done = subprocess.run([mpirun, "-n", str(RANKS), program, mode], env=environment, capture_output=True,
                              text=True, timeout=60)
        # A rank that leaves without MPI_Finalize, as it must after a failure, is reported by the launcher.
        good = done.stdout.split().count("ok") == RANKS and (done.returncode == 0 or mode in ("broken", "one_thread"))
        print(mode, "ok" if good else f"FAILED\n{done.stdout}{done.stderr}")
        failed |= not good
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
