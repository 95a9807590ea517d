#!/usr/bin/env python3
"""Kiln's two-layer perceptrons in bf16, tuned and untuned, against PyTorch, in the way of gemm_rows.py: that of the
tutorials, y = relu(x W1 + b1) W2 + b2, against torch.compile of it, and gated ones, y = (silu(x G) * (x U)) D, against two
products of cuBLAS with a compiled activation between them. Exits 77 without PyTorch and a GPU.

  mlp.py [--seconds S] [--limit S] [--only relu|gated] LIBRARY [M,HIDDEN,INNER]...
"""
import argparse
import ctypes
import statistics
import sys
import time

from gemm_rows import in_turns, mean, ratio, torch

RELU = [(256, 1024, 1024), (4096, 1024, 1024)]
GATED = [(16, 4096, 14336), (512, 4096, 14336), (4096, 4096, 14336)]


class Kiln:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.mlp_open.restype = ctypes.c_void_p
        self.library.mlp_failure_text.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p(self.library.mlp_open())
        if not self.handle:
            sys.exit(self.why())

    def why(self):
        return self.library.mlp_failure_text().decode()

    def tune(self, gated, m, hidden, inner, seconds):
        text = ctypes.create_string_buffer(8192)
        if self.library.mlp_tune(self.handle, gated, m, hidden, inner, ctypes.c_double(seconds), text,
                                 ctypes.c_size_t(len(text))):
            raise RuntimeError(self.why())
        return text.value.decode()

    def launch(self, name, untuned, arrays, sizes):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        function = getattr(self.library, "mlp_" + name)
        if function(self.handle, untuned, stream, *(ctypes.c_void_p(x.data_ptr()) for x in arrays), *sizes):
            raise RuntimeError(self.why())


def random_bf16(*sizes, scale=1.0):
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16) * scale


def relu(m, hidden, inner):
    """What torch computes, and the arrays behind y and what lies between the layers."""
    x, w1, w2 = random_bf16(m, hidden), random_bf16(inner, hidden, scale=hidden**-0.5), random_bf16(hidden, inner, scale=inner**-0.5)
    b1, b2 = random_bf16(inner), random_bf16(hidden)
    linear = torch.nn.functional.linear

    @torch.compile(dynamic=False, mode="max-autotune-no-cudagraphs")
    def forward(x):
        return linear(torch.relu(linear(x, w1, b1)), w2, b2)

    return lambda: forward(x), (x, w1, b1, w2, b2)


def gated(m, hidden, inner):
    x, weights = random_bf16(m, hidden), random_bf16(2 * inner, hidden, scale=hidden**-0.5)
    down = random_bf16(hidden, inner, scale=inner**-0.5)

    @torch.compile(dynamic=False)
    def activate(both):
        gate, up = both.split(inner, -1)
        return torch.nn.functional.silu(gate) * up

    return lambda: torch.matmul(activate(torch.matmul(x, weights.t())), down.t()), (x, weights, down)


def compare(kiln, name, shape, options):
    m, hidden, inner = shape
    winners = kiln.tune(int(name == "gated"), m, hidden, inner, options.seconds)
    of_torch, arrays = (gated if name == "gated" else relu)(*shape)
    y, between = random_bf16(m, hidden), random_bf16(m, inner)
    works = [of_torch] + [lambda which=which: kiln.launch(name, which, (y, between, *arrays), shape) for which in (0, 1)]
    expected = of_torch().clone()
    for work in works[1:]:
        y.fill_(float("nan"))
        work()
        torch.testing.assert_close(y, expected, rtol=3e-2, atol=3e-2)
    torchs, *others = in_turns(works, options.rounds)
    return winners, [ratio(torchs, other) for other in others], statistics.median(torchs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30, help="for tuning a shape")
    parser.add_argument("--limit", type=float, default=1e9, help="no shape is begun after so many seconds")
    parser.add_argument("--only", choices=("relu", "gated"))
    parser.add_argument("--rounds", type=int, default=23)
    parser.add_argument("library")
    parser.add_argument("shapes", nargs="*")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available():
        print("no PyTorch with a GPU")
        sys.exit(77)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    began, failures, kiln = time.monotonic(), 0, Kiln(options.library)
    for name, shapes in (("relu", RELU), ("gated", GATED)):
        if options.only not in (None, name):
            continue
        ratios = []
        for shape in [tuple(map(int, s.split(","))) for s in options.shapes] or shapes:
            if time.monotonic() - began > options.limit:
                print("no time for more shapes")
                break
            text = f"{name}, {shape[0]} rows, hidden {shape[1]}, inner {shape[2]}"
            try:
                winners, measured, seconds = compare(kiln, name, shape, options)
            except (RuntimeError, AssertionError) as error:
                failures += 1
                print(f"{text}: FAILED: {(str(error).strip() or repr(error)).splitlines()[0]}", flush=True)
                continue
            ratios.append(measured)
            print(f"{text}: torch {seconds * 1e6:.1f} us, tuned {measured[0]:.3f} times its speed, untuned {measured[1]:.3f}")
            print(f"    {winners}", flush=True)
        if ratios:
            tuned, untuned = zip(*ratios)
            print(f"{name}: {len(ratios)} shapes, tuned {mean(tuned):.3f} (worst {min(tuned):.3f}), untuned "
                  f"{mean(untuned):.3f} (worst {min(untuned):.3f})")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
