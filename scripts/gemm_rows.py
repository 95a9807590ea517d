#!/usr/bin/env python3
"""Kiln's bf16 GEMM, tuned and untuned, against PyTorch's (cuBLAS): C = A * B^T, random data, cold L2 cache, contenders
in turns, the median of the ratios of neighbours. Exits 77 without PyTorch and a GPU.

  gemm_rows.py LIBRARY [--seconds S] [--limit S] [--set all|twelve|few_rows] [--top N] [M,N,K]...

Of few rows, "floor" is PyTorch's time over that of a kernel that only reads B: no ratio can be higher. With --top, the
N fastest candidates of each tuning are compared, too.
"""
import argparse
import ctypes
import json
import math
import statistics
import sys
import time

try:
    import torch
except ImportError:
    torch = None

TWELVE = [(8192, 8192, 8192), (4096, 4096, 4096), (4096, 7168, 2048), (4096, 2112, 7168), (4096, 4096, 7168),
          (2048, 24576, 1536), (256, 1024, 1024), (128, 8192, 8192), (64, 10240, 8192), (16, 8192, 8192),
          (1, 28672, 8192), (1000, 1003, 1000)]
# n, k of projections: Llama-3 8B and 70B, DeepSeek-V3, Qwen2.5 7B.
PROJECTIONS = [(6144, 4096), (4096, 14336), (10240, 8192), (57344, 8192), (7168, 16384), (24576, 1536), (4608, 3584),
               (37888, 3584)]
SQUARES = [(s, s, s) for s in (512, 1024, 2048)]
FEW_ROWS = 16


def shapes_of(name):
    if name == "twelve":
        return TWELVE
    rows = (1, 16, 64, 128, 512, 4096)
    more = [(rows[(i + j) % len(rows)], n, k) for i, (n, k) in enumerate(PROJECTIONS) for j in (0, 2, 4)]
    every = TWELVE + SQUARES + [(16384, 16384, 16384)] + more
    return [s for s in every if s[0] <= FEW_ROWS] if name == "few_rows" else every


class Kiln:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name, result in (("open", ctypes.c_void_p), ("failure", ctypes.c_char_p)):
            getattr(self.library, "gemm_rows_" + name).restype = result
        self.session = self.library.gemm_rows_open()
        if not self.session:
            sys.exit(self.why())

    def why(self):
        return self.library.gemm_rows_failure().decode()

    def tune(self, m, n, k, seconds):
        text = ctypes.create_string_buffer(4096)
        if self.library.gemm_rows_tune(ctypes.c_void_p(self.session), m, n, k, ctypes.c_double(seconds),
                                       ctypes.c_size_t(0), text, ctypes.c_size_t(len(text))):
            raise RuntimeError(self.why())
        return json.loads(text.value)

    def choose(self, place):
        """Takes the tuning's `place`th candidate in place of the winner; returns its config, or nothing."""
        text = ctypes.create_string_buffer(4096)
        failed = self.library.gemm_rows_choose(ctypes.c_void_p(self.session), ctypes.c_size_t(place), text,
                                               ctypes.c_size_t(len(text)))
        return None if failed else text.value.decode()

    def launch(self, which, c, a, b):
        stream = torch.cuda.current_stream().cuda_stream
        if self.library.gemm_rows_launch(ctypes.c_void_p(self.session), which, ctypes.c_void_p(stream),
                                         ctypes.c_void_p(c.data_ptr()), ctypes.c_void_p(a.data_ptr()),
                                         ctypes.c_void_p(b.data_ptr())):
            raise RuntimeError(self.why())

    def reader(self, array):
        """A function that reads an array by a tuned kernel and does nothing else."""
        pieces, total = array.numel() * array.element_size() // 16, torch.zeros(1, dtype=torch.int32, device="cuda")
        if self.library.gemm_rows_tune_read(ctypes.c_void_p(self.session), ctypes.c_longlong(pieces)):
            raise RuntimeError(self.why())

        def read():
            stream = torch.cuda.current_stream().cuda_stream
            if self.library.gemm_rows_read(ctypes.c_void_p(self.session), ctypes.c_void_p(stream),
                                           ctypes.c_void_p(total.data_ptr()), ctypes.c_void_p(array.data_ptr()),
                                           ctypes.c_longlong(pieces)):
                raise RuntimeError(self.why())
        return read


class Contest:
    """PyTorch's product of one shape, and what is compared with it."""

    def __init__(self, kiln, shape):
        m, n, k = shape
        self.kiln = kiln
        self.a, self.b = (torch.randn(r, k, device="cuda", dtype=torch.bfloat16) for r in (m, n))
        self.out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        self.expected = torch.matmul(self.a, self.b.t())
        self.tolerance = 2e-2 * math.sqrt(k)

    def torch(self):
        torch.matmul(self.a, self.b.t(), out=self.out)

    def own(self, which):
        """Kiln's, 0 tuned or 1 untuned, once it has been seen to be right."""
        def work():
            self.kiln.launch(which, self.out, self.a, self.b)
        self.out.fill_(float("nan"))
        work()
        torch.testing.assert_close(self.out, self.expected, rtol=2e-2, atol=self.tolerance)
        return work

    def ratios(self, works, rounds):
        """PyTorch's seconds, and their ratios to those of each of the works; all take turns."""
        works = [self.torch] + works
        times = [[] for _ in works]
        for sample in range(rounds):
            for which in [(sample + i) % len(works) for i in range(len(works))]:
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.flush.fill_(sample)
                start.record()
                works[which]()
                stop.record()
                stop.synchronize()
                times[which].append(start.elapsed_time(stop) * 1e-3)
        return statistics.median(times[0][2:]), [statistics.median(x / y for x, y in zip(times[0][2:], own[2:]))
                                                 for own in times[1:]]


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else float("nan")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--seconds", type=float, default=6, help="for tuning a shape")
    parser.add_argument("--limit", type=float, default=1e9, help="no shape is begun after so many seconds")
    parser.add_argument("--set", default="all")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--top", type=int, default=0, help="candidates of each tuning to compare")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("no PyTorch with a GPU")
        sys.exit(77)
    shapes = [tuple(map(int, s.split(","))) for s in options.shapes] or shapes_of(options.set)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    kiln, began, rows, failures = Kiln(options.library), time.monotonic(), {}, 0
    print(f"{'m x n x k':>20} {'cuBLAS':>12} {'tuned':>6} {'untuned':>7} {'of tuned':>8} {'tuning':>7}  winner")
    for shape in shapes:
        if time.monotonic() - began > options.limit:
            print("no time for more shapes")
            break
        try:
            told = kiln.tune(*shape, options.seconds)
            contest = Contest(kiln, shape)
            works = [contest.own(0), contest.own(1)]
            if shape[0] <= FEW_ROWS:
                works.append(kiln.reader(contest.b))
            seconds, (tuned, untuned, *floor) = contest.ratios(works, options.rounds)
        except (RuntimeError, AssertionError) as error:
            failures += 1
            print(f"{'x'.join(map(str, shape)):>20} FAILED: {str(error).strip().splitlines()[0]}", flush=True)
            continue
        rows[shape] = tuned, untuned, *floor
        print(f"{'x'.join(map(str, shape)):>20} {2e-12 * math.prod(shape) / seconds:7.1f} TF/s {tuned:6.3f} {untuned:7.3f} "
              f"{untuned / tuned:8.3f} {told['seconds']:5.1f} s  {told['winner']} ({told['evaluated']} tried, "
              f"{told['failed']} refused)", flush=True)
        if floor:
            print(f"{'':>20} floor {floor[0]:.3f}: reading B at {2e-12 * math.prod(shape[1:]) * floor[0] / seconds:.2f} TB/s")
        for place in range(options.top):
            config = kiln.choose(place)
            if config:
                print(f"{'':>20} {contest.ratios([contest.own(0)], options.rounds)[1][0]:.3f} {config}", flush=True)
        if untuned / tuned < 0.9:
            print(f"{'':>20} untuned: {told['untuned']}", flush=True)
    even = {s: r for s, r in rows.items() if s[1] % 8 == 0 and s[2] % 8 == 0}
    for name, chosen in (("n and k multiples of 8", even), ("m <= 16, weights of 8 MB and more",
                         {s: r for s, r in even.items() if s[0] <= 16 and 2 * s[1] * s[2] >= 8e6})):
        if chosen:
            tuned, untuned, *floor = zip(*chosen.values())  # a floor only where all have one
            print(f"{name}: {len(chosen)} shapes, tuned {mean(tuned):.3f} (worst {min(tuned):.3f}), untuned "
                  f"{mean(untuned):.3f} (worst {min(untuned):.3f}), untuned of tuned "
                  f"{mean([u / t for t, u in zip(tuned, untuned)]):.3f} "
                  f"(worst {min(u / t for t, u in zip(tuned, untuned)):.3f})"
                  + (f", floor {mean(floor[0]):.3f}" if floor else ""))
    sys.exit(1 if failures or not rows else 0)


if __name__ == "__main__":
    main()
