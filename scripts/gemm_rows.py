#!/usr/bin/env python3
"""Kiln's bf16 GEMM, tuned and untuned, against PyTorch's (cuBLAS): C = A * B^T, random data, cold L2 cache, contenders
in turns, the median of the ratios of neighbours. Exits 77 without PyTorch and a GPU.

  gemm_rows.py LIBRARY [--seconds S] [--limit S] [--set all|twelve|few_rows|odd] [--top N] [M,N,K]...

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
# n, k or both are odd: TMA cannot reach rows of C, of A and B, or of all three.
ODD = [(16, 4099, 4096), (16, 4096, 4099), (128, 4096, 4099), (128, 4099, 4099), (4096, 4099, 4096), (4096, 4099, 4099)]
FEW_ROWS = 16


def shapes_of(name):
    if name == "twelve":
        return TWELVE
    if name == "odd":
        return ODD
    rows = (1, 16, 64, 128, 512, 4096)
    more = [(rows[(i + j) % len(rows)], n, k) for i, (n, k) in enumerate(PROJECTIONS) for j in (0, 2, 4)]
    every = TWELVE + SQUARES + [(16384, 16384, 16384)] + more
    return [s for s in every if s[0] <= FEW_ROWS] if name == "few_rows" else every + ODD


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

    def exhaust(self, seconds):
        """Tries every config for the problem that was tuned last."""
        text = ctypes.create_string_buffer(4096)
        if self.library.gemm_rows_exhaust(ctypes.c_void_p(self.session), ctypes.c_double(seconds), text,
                                          ctypes.c_size_t(len(text))):
            raise RuntimeError(self.why())
        return json.loads(text.value)

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


def operands(shape):
    """A, B, and a matrix for the product."""
    m, n, k = shape
    a, b = (torch.randn(r, k, device="cuda", dtype=torch.bfloat16) for r in (m, n))
    return a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def check(launch, out, expected, k):
    out.fill_(float("nan"))
    launch()
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2 * math.sqrt(k))


def in_turns(works, rounds, hold=0):
    """Seconds of each work on the GPU, in a cold cache; the n-th ones of all are neighbours in time. `hold`: GPU
    cycles that a work's launch may take without being a part of its time."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times = [[] for _ in works]
    for sample in range(2 + rounds):  # of which the first two warm up
        for which in [(sample + i) % len(works) for i in range(len(works))]:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if hold:
                torch.cuda._sleep(hold)
            flush.fill_(sample)
            start.record()
            works[which]()
            stop.record()
            stop.synchronize()
            if sample >= 2:
                times[which].append(start.elapsed_time(stop) * 1e-3)
    return times


def ratio(numerators, denominators):
    """The median of the ratios of neighbours."""
    return statistics.median(x / y for x, y in zip(numerators, denominators))


def compare(kiln, shape, rounds, top):
    """PyTorch's seconds, and the ratios of its time to those of Kiln's, tuned and untuned; of few rows, to that of
    reading B; and of the `top` fastest candidates each, with its config."""
    a, b, out = operands(shape)
    works = [lambda: torch.matmul(a, b.t(), out=out), lambda: kiln.launch(0, out, a, b),
             lambda: kiln.launch(1, out, a, b)]
    expected = torch.matmul(a, b.t())
    for work in works[1:]:
        check(work, out, expected, shape[2])
    if shape[0] <= FEW_ROWS:
        works.append(kiln.reader(b))
    torchs, *others = in_turns(works, rounds)
    ratios = [ratio(torchs, other) for other in others]
    candidates = []
    for place in range(top):
        config = kiln.choose(place)
        if config:
            check(works[1], out, expected, shape[2])
            candidates.append((ratio(*in_turns(works[:2], rounds)), config))
    return statistics.median(torchs), ratios, candidates


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else float("nan")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--seconds", type=float, default=6, help="for tuning a shape")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no shape is begun")
    parser.add_argument("--set", default="all")
    parser.add_argument("--rounds", type=int, default=23)
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
            seconds, (tuned, untuned, *floor), candidates = compare(kiln, shape, options.rounds, options.top)
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
        for of_candidate, config in candidates:
            print(f"{'':>20} {of_candidate:.3f} {config}", flush=True)
        if untuned / tuned < 0.9:
            print(f"{'':>20} untuned: {told['untuned']}", flush=True)
    even = {s: r for s, r in rows.items() if s[1] % 8 == 0 and s[2] % 8 == 0}
    for name, chosen in (("n and k multiples of 8", even), ("m <= 16, weights of 8 MB and more",
                         {s: r for s, r in even.items() if s[0] <= 16 and 2 * s[1] * s[2] >= 8e6}),
                        ("n or k no multiple of 8", {s: r for s, r in rows.items() if s not in even})):
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
