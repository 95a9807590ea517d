#!/usr/bin/env python3
"""What `kiln tune --problems` shows on a terminal while it works, and the table at its end: kernels and choices of one name
are told apart.

Usage: KILN. Exits 77 (skipped) where the host device cannot compile."""
import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading

KILN = sys.argv[1]
STRIDED = {"m": 32, "n": 32, "k": 32, "ldc": 32, "lda": 32, "ldb": 32, "batch": 1, "stride_c": 0, "stride_a": 0, "stride_b": 0}
PLAIN = {"m": 32, "n": 32, "k": 32}
PROBLEMS = [{"choice": "gemm_strided", "problem": STRIDED}, {"kernel": "gemm", "problem": PLAIN},
            {"choice": "gemm", "problem": PLAIN}, {"choice": "gemm_nn", "problem": PLAIN}]


def text(values):
    return ",".join(f"{name}={value}" for name, value in values.items())


def on_a_terminal(*arguments):
    """Standard output, and what the terminal got on standard error."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 400, 0, 0))
    shown = []

    def read():
        try:
            while piece := os.read(screen, 65536):
                shown.append(piece)
        except OSError:  # no process has the terminal open any more
            pass

    reader = threading.Thread(target=read)
    reader.start()
    result = subprocess.run([KILN, *arguments], stdout=subprocess.PIPE, stderr=terminal, timeout=280)
    os.close(terminal)
    reader.join()
    os.close(screen)
    lines = b"".join(shown).decode()
    assert result.returncode == 0, f"kiln {arguments}: exit {result.returncode}\n{result.stdout.decode()}{lines}"
    return result.stdout.decode(), lines


def main(folder):
    doctor = json.loads(subprocess.run([KILN, "doctor", "--json"], capture_output=True, text=True, timeout=60).stdout)
    if not doctor["components"]["llvm"]["available"]:
        print("skipped:", doctor["components"]["llvm"]["problem"])
        return 77
    (folder / "problems.json").write_text(json.dumps(PROBLEMS))
    out, bars = on_a_terminal("tune", "--problems", str(folder / "problems.json"), "--device", "host",
                              "--max-seconds", "120", "--evaluations", "2")

    plain = text(PLAIN)
    subjects = {"gemm<float,nt> " + text(STRIDED), "gemm<float> " + plain, "gemm<float,nt> " + plain, "gemm<float,nn> " + plain}
    shown = [line.split(f": {len(PROBLEMS)} problems, ")[1] for line in re.split(r"\r\x1b\[K|\r?\n", bars) if " problems, " in line]
    # The kernels of choices are tuned by themselves, too.
    own = {"gemm_strided<float> " + text(STRIDED), "gemm_nn<float> " + plain}
    strange = set(shown) - subjects - own
    assert len(set(shown)) > 1 and not strange, f"{strange} among {set(shown)}"

    rows = [line.split("  ")[0] for line in out.splitlines()[-1 - len(PROBLEMS):-1]]
    assert rows == ["choice gemm<float,nt> " + text(STRIDED), "gemm<float> " + plain, "choice gemm<float,nt> " + plain,
                    "choice gemm<float,nn> " + plain], out
    print(f"progress: {len(shown)} bars of {len(set(shown))} subjects")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["KILN_CACHE_DIR"] = str(pathlib.Path(temporary) / "store")
        sys.exit(main(pathlib.Path(temporary)))
