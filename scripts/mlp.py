#!/usr/bin/env python3
"""Kiln's two-layer perceptrons in bf16, tuned and untuned, against PyTorch, in the way of gemm_rows.py: that of the
tutorials, y = relu(x W1 + b1) W2 + b2, against torch.compile of it, and gated ones, y = (silu(x G) * (x U)) D, against two
products of cuBLAS with a compiled activation between them. gated_fp8 has 8-bit floats with scales of blocks between the layers,
which the first one writes, against Kiln's own in three launches, of which one quantizes. gated_eight is the first layer alone,
of 8-bit floats with scales of rows, against Kiln's own GEMM of them and its activation in a launch apart. Exits 77 without
PyTorch and a GPU.

  mlp.py [--seconds S] [--limit S] [--only relu|gated|gated_fp8|gated_eight] LIBRARY [M,HIDDEN,INNER]...
"""
import ctypes
import statistics
import sys
import time

from gemm_rows import in_turns, ratio, torch
from rows import Session, need_gpu, options_for, random_bf16, run_rows

RELU = [(256, 1024, 1024), (4096, 1024, 1024)]
GATED = [(16, 4096, 14336), (512, 4096, 14336), (4096, 4096, 14336)]
BLOCK = 128


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


def compare_fp8(kiln, shape, options):
    m, hidden, inner = shape
    winners = kiln.told("tune", 2, *shape, ctypes.c_double(options.seconds))
    of_torch, (x, weights, down) = gated(*shape)
    blocks = torch.nn.functional.pad(down, (0, 0, 0, -hidden % BLOCK)).view(-1, BLOCK, inner // BLOCK, BLOCK)
    of_down = blocks.abs().amax((1, 3)).float() / 448
    eight = (down.float() / of_down.repeat_interleave(BLOCK, 0)[:hidden].repeat_interleave(BLOCK, 1)).to(torch.float8_e4m3fn)
    y, apart = random_bf16(m, hidden), random_bf16(m, inner)
    between = torch.empty(m, inner, device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(inner // BLOCK, (m + 3) // 4 * 4, device="cuda")
    arrays = y, between, scales, apart, x, weights, eight, of_down
    works = [lambda which=which: kiln.launch("gated_fp8", which, arrays, shape) for which in (2, 0, 1)]
    expected = of_torch().float()
    for work in works:
        y.fill_(float("nan"))
        work()
        error = ((y.float() - expected).norm() / expected.norm()).item()
        if not error < 0.06:  # of two factors that are rounded to 4 bits
            raise RuntimeError(f"the results are off by {error:.3g} of their norm")
    three, *others = in_turns(works, options.rounds)
    tuned, untuned = (ratio(three, other) for other in others)
    return (tuned, untuned), (f"three launches {statistics.median(three) * 1e6:.1f} us, tuned {tuned:.3f} times their speed, "
                              f"untuned {untuned:.3f}\n    {winners}")


def by_rows(m, hidden, scale=1.0):
    """Random rows in 8 bits, their scales, and what they stand for."""
    values = random_bf16(m, hidden, scale=scale).float()
    scales = values.abs().amax(1) / 448
    eight = (values / scales[:, None]).to(torch.float8_e4m3fn)
    return eight, scales, eight.float() * scales[:, None]


def compare_eight(kiln, shape, options):
    m, hidden, inner = shape
    winners = kiln.told("tune", 3, *shape, ctypes.c_double(options.seconds))
    (x, of_x, x_is), (weights, of_weights, weights_are) = by_rows(m, hidden), by_rows(2 * inner, hidden, hidden**-0.5)
    gate, up = torch.matmul(x_is, weights_are.t()).split(inner, -1)
    expected = torch.nn.functional.silu(gate) * up
    out, both = random_bf16(m, inner), random_bf16(m, 2 * inner)
    arrays = out, both, x, weights, of_x, of_weights
    works = [lambda which=which: kiln.launch("gated_eight", which, arrays, shape) for which in (2, 0, 1)]
    for work in works:
        out.fill_(float("nan"))
        work()
        error = ((out.float() - expected).norm() / expected.norm()).item()
        if not error < 0.01:
            raise RuntimeError(f"the results are off by {error:.3g} of their norm")
    two, *others = in_turns(works, options.rounds)
    tuned, untuned = (ratio(two, other) for other in others)
    return (tuned, untuned), (f"two launches {statistics.median(two) * 1e6:.1f} us, tuned {tuned:.3f} times their speed, "
                              f"untuned {untuned:.3f}\n    {winners}")


COMPARE = {"gated_fp8": compare_fp8, "gated_eight": compare_eight}


def main():
    options = options_for(("relu", "gated", "gated_fp8", "gated_eight"), 30).parse_args()
    need_gpu()
    began, failures, kiln = time.monotonic(), 0, Session(options.library, "mlp")
    for name, shapes in (("relu", RELU), ("gated", GATED), ("gated_fp8", GATED), ("gated_eight", GATED)):
        if options.only in (None, name):
            failures += run_rows(name, shapes, options, began, "{0[0]} rows, hidden {0[1]}, inner {0[2]}".format,
                                 lambda shape, name=name: (COMPARE[name](kiln, shape, options) if name in COMPARE
                                                           else compare(kiln, name, shape, options)))[0]
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
