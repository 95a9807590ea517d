#!/usr/bin/env python3
"""Kiln's two-layer perceptrons in bf16, tuned and untuned, against PyTorch, in the way of gemm_rows.py: that of the
tutorials, y = relu(x W1 + b1) W2 + b2, against torch.compile of it, and gated ones, y = (silu(x G) * (x U)) D, against two
products of cuBLAS with a compiled activation between them. Exits 77 without PyTorch and a GPU.

  mlp.py [--seconds S] [--limit S] [--only relu|gated] LIBRARY [M,HIDDEN,INNER]...
"""
import ctypes
import statistics
import sys
import time

from gemm_rows import in_turns, ratio, torch
from rows import Session, need_gpu, options_for, random_bf16, run_rows

RELU = [(256, 1024, 1024), (4096, 1024, 1024)]
GATED = [(16, 4096, 14336), (512, 4096, 14336), (4096, 4096, 14336)]


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
    winners = kiln.told("tune", int(name == "gated"), *shape, ctypes.c_double(options.seconds))
    of_torch, arrays = (gated if name == "gated" else relu)(*shape)
    y, between = random_bf16(m, hidden), random_bf16(m, inner)
    works = [of_torch] + [lambda which=which: kiln.launch(name, which, (y, between, *arrays), shape) for which in (0, 1)]
    expected = of_torch().clone()
    for work in works[1:]:
        y.fill_(float("nan"))
        work()
        torch.testing.assert_close(y, expected, rtol=3e-2, atol=3e-2)
    torchs, *others = in_turns(works, options.rounds)
    tuned, untuned = (ratio(torchs, other) for other in others)
    return (tuned, untuned), (f"torch {statistics.median(torchs) * 1e6:.1f} us, tuned {tuned:.3f} times its speed, "
                              f"untuned {untuned:.3f}\n    {winners}")


def main():
    options = options_for(("relu", "gated"), 30).parse_args()
    need_gpu()
    began, failures, kiln = time.monotonic(), 0, Session(options.library, "mlp")
    for name, shapes in (("relu", RELU), ("gated", GATED)):
        if options.only in (None, name):
            failures += run_rows(name, shapes, options, began, "{0[0]} rows, hidden {0[1]}, inner {0[2]}".format,
                                 lambda shape, name=name: compare(kiln, name, shape, options))[0]
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
