#!/usr/bin/env python3
"""Kiln's bf16 GEMM as a choice between its kernel and cuBLASLt, against PyTorch's (cuBLAS), in the way of gemm_rows.py.
Says which alternative won, and how much faster it is than the default, cuBLASLt's first answer, by the tuning's times.
"again" is PyTorch against itself in the same rounds: what a ratio may be off by. Exits 77 without PyTorch and a GPU.

  gemm_choices.py LIBRARY [--seconds S] [--limit S] [--set all|twelve|few_rows] [M,N,K]...
"""
import argparse
import ctypes
import json
import math
import os
import statistics
import sys
import time

from gemm_rows import ODD, check, in_turns, mean, operands, ratio, shapes_of, torch


class Kiln:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.gemm_choice_open.restype = ctypes.c_void_p
        self.library.gemm_choice_failure.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p(self.library.gemm_choice_open())
        if not self.handle:
            sys.exit(self.why())

    def why(self):
        return self.library.gemm_choice_failure().decode()

    def tune(self, shape, seconds):
        text = ctypes.create_string_buffer(4096)
        if self.library.gemm_choice_tune(self.handle, *shape, ctypes.c_double(seconds), text, ctypes.c_size_t(len(text))):
            raise RuntimeError(self.why())
        return json.loads(text.value)

    def launch(self, c, a, b):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.library.gemm_choice_launch(self.handle, stream, *(ctypes.c_void_p(x.data_ptr()) for x in (c, a, b))):
            raise RuntimeError(self.why())


def own_cublaslt():
    """The path of the library that this process has loaded: PyTorch's."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split()[-1] for line in maps if "libcublasLt.so" in line}
    return min(paths, default="")


def compare(kiln, shape, rounds):
    a, b, out = operands(shape)
    def multiply():
        torch.matmul(a, b.t(), out=out)

    works = [multiply, lambda: kiln.launch(out, a, b), multiply]
    check(works[1], out, torch.matmul(a, b.t()), shape[2])
    first, kilns, again = in_turns(works, rounds)
    # The mean of both, because clocks follow what ran before.
    return statistics.median(first), (ratio(first, kilns) + ratio(again, kilns)) / 2, ratio(first, again)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--seconds", type=float, default=8, help="for tuning a shape")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no shape is begun")
    parser.add_argument("--set", default="all")
    parser.add_argument("--rounds", type=int, default=151)
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("no PyTorch with a GPU")
        sys.exit(77)
    shapes = [tuple(map(int, s.split(","))) for s in options.shapes] or shapes_of(options.set)
    torch.matmul(*(torch.ones(8, 8, device="cuda", dtype=torch.bfloat16),) * 2)  # loads cuBLAS
    os.environ.setdefault("KILN_CUBLASLT", own_cublaslt())
    kiln, began, ratios, winners, failures = Kiln(options.library), time.monotonic(), [], {}, 0
    print(f"{'m x n x k':>20} {'cuBLAS':>12} {'choice':>6} {'again':>6} {'default':>7} {'tuning':>7}  winner")
    for shape in shapes:
        if time.monotonic() - began > options.limit:
            print("no time for more shapes")
            break
        name = "x".join(map(str, shape))
        try:
            told = kiln.tune(shape, options.seconds)
            seconds, faster, again = compare(kiln, shape, options.rounds)
        except (RuntimeError, AssertionError) as error:
            failures += 1
            print(f"{name:>20} FAILED: {str(error).strip().splitlines()[0]}", flush=True)
            continue
        ratios.append((shape, faster))
        winners[told["alternative"]] = winners.get(told["alternative"], 0) + 1
        print(f"{name:>20} {2e-12 * math.prod(shape) / seconds:7.1f} TF/s {faster:6.3f} {again:6.3f} "
              f"{told['speedup']:7.3f} {told['seconds']:5.1f} s  {told['text']}", flush=True)
        if told["absent"]:
            failures += 1
            print(f"{'':>20} cuBLASLt took no part: {told['absent']}", flush=True)
    for what, some in (("without the odd ones", [r for s, r in ratios if s not in ODD]),
                       ("all", [r for _, r in ratios])):
        if some:
            print(f"{len(some)} shapes, {what}: geometric mean {mean(some):.3f} (goal 1.04), worst {min(some):.3f} (.99)")
    print("won by " + ", ".join(f"{name} {count}" for name, count in sorted(winners.items())))
    sys.exit(1 if failures or not ratios else 0)


if __name__ == "__main__":
    main()
