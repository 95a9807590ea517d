#!/usr/bin/env python3
"""Kiln's GEMMs of 8-bit floats (e4m3, C in bf16), tuned and untuned, in the way of gemm_rows.py: with one scale for each
operand and exact sums, and with a scale for each row and fast sums, against PyTorch's scaled product; and with scales of
blocks, 1 x 128 of A and 128 x 128 of B, against Kiln's own with one scale, of the same operands.
Exits 77 without PyTorch and a GPU that has such a product.

  gemm_fp8.py [--seconds S] [--limit S] [--only tensor|rows|blocks] [--top N] LIBRARY [M,N,K]...
"""
import argparse
import ctypes
import json
import math
import statistics
import sys
import time

from gemm_rows import in_turns, mean, ratio, torch

SHAPES = [(4096, 7168, 16384), (4096, 4096, 7168), (4096, 24576, 1536), (4096, 7168, 2048), (8192, 8192, 8192),
          (128, 7168, 16384), (64, 7168, 2048), (16, 8192, 8192)]
KINDS = ("tensor", "rows", "blocks")
BLOCK = 128


class Kiln:
    def __init__(self, path, kind):
        self.library = ctypes.CDLL(path)
        self.library.gemm_fp8_open.restype = ctypes.c_void_p
        self.library.gemm_fp8_failure.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p(self.library.gemm_fp8_open(KINDS.index(kind)))
        if not self.handle:
            sys.exit(self.why())

    def why(self):
        return self.library.gemm_fp8_failure().decode()

    def tune(self, shape, seconds):
        text = ctypes.create_string_buffer(4096)
        if self.library.gemm_fp8_tune(self.handle, *shape, ctypes.c_double(seconds), text, ctypes.c_size_t(len(text))):
            raise RuntimeError(self.why())
        return json.loads(text.value)

    def choose(self, place):
        text = ctypes.create_string_buffer(4096)
        failed = self.library.gemm_fp8_choose(self.handle, ctypes.c_size_t(place), text, ctypes.c_size_t(len(text)))
        return None if failed else text.value.decode()

    def launch(self, which, *arrays):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.library.gemm_fp8_launch(self.handle, which, stream, *(ctypes.c_void_p(x.data_ptr()) for x in arrays)):
            raise RuntimeError(self.why())


def quantized(x, kind, high=1):
    """e4m3 and its scales, which divide x as they broadcast: of all, of rows, or of `high` x BLOCK."""
    rows, k = x.shape
    if kind != "blocks":
        scale = (x.abs().amax(1, keepdim=True) if kind == "rows" else x.abs().max().reshape(1, 1)) / 448
        return (x / scale).to(torch.float8_e4m3fn), scale
    padding = torch.zeros(-rows % high, k, device=x.device)
    parts = torch.cat((x, padding)).reshape(-1, high, k // BLOCK, BLOCK)
    scale = parts.abs().amax((1, 3)) / 448
    return (x / spread(scale, x.shape, high)).to(torch.float8_e4m3fn), scale


def spread(scale, shape, high):
    """Scales of `high` x BLOCK, for each element of this shape."""
    return scale.repeat_interleave(high, 0)[:shape[0]].repeat_interleave(BLOCK, 1)


def operands(shape, kind):
    """C, A, B and their scales, quantized from normal numbers, those of A's blocks as kiln/block_scales.hpp has them, and
    the first rows of the product in double precision."""
    m, n, k = shape
    some = min(256, m)
    (a, scale_a), (b, scale_b) = (quantized(torch.randn(size, k, device="cuda"), kind, high)
                                  for size, high in ((m, 1), (n, BLOCK)))
    of_a, of_b = ((spread(scale_a, a.shape, 1), spread(scale_b, b.shape, BLOCK)) if kind == "blocks"
                  else (scale_a, scale_b))
    want = (a[:some].double() * of_a[:some].double()) @ (b.double() * of_b.double()).t()
    if kind == "blocks":
        scale_a = torch.nn.functional.pad(scale_a.t(), (0, -m % 4)).contiguous()
    return torch.empty(m, n, device="cuda", dtype=torch.bfloat16), a, b, scale_a, scale_b, want


def relative_error(got, want):
    """||got - want|| / ||want|| on the first rows."""
    return float((got[:want.shape[0]].double() - want).norm() / want.norm())


def scaled_product(kind, out, a, b, scale_a, scale_b):
    """PyTorch's, as a function."""
    scales = (scale_a, scale_b.t()) if kind == "rows" else (scale_a.reshape(()), scale_b.reshape(()))
    return lambda: torch._scaled_mm(a, b.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=kind == "rows", out=out)


def compare(kiln, per_tensor, shape, kind, rounds, top):
    """Seconds of PyTorch's product, or with scales of blocks of Kiln's `per_tensor`; the ratios of that time to those of
    Kiln's, tuned and untuned; the errors of PyTorch's result and of both; and the `top` fastest candidates."""
    out, a, b, scale_a, scale_b, want = operands(shape, kind)
    works = [lambda which=which: kiln.launch(which, out, a, b, scale_a, scale_b) for which in (0, 1)]
    if kind == "blocks":
        one = torch.ones(1, device="cuda")
        works.insert(0, lambda: per_tensor.launch(0, out, a, b, one, one))
    else:
        works.insert(0, scaled_product(kind, out, a, b, scale_a, scale_b))
    errors = []
    for work in works[1:] if kind == "blocks" else works:
        out.fill_(float("nan"))
        work()
        errors.append(relative_error(out, want))
    if not all(error < (4e-3 if kind == "blocks" else max(2 * errors[0], 4e-3)) for error in errors):
        raise AssertionError(f"errors {errors}")
    torchs, *others = in_turns(works, rounds)
    candidates = []
    for place in range(top):
        config = kiln.choose(place)
        if config:
            candidates.append((ratio(*in_turns(works[:2], rounds)), config))
    return statistics.median(torchs), [ratio(torchs, other) for other in others], errors, candidates


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6, help="for tuning a shape")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no shape is begun")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--rounds", type=int, default=23)
    parser.add_argument("--top", type=int, default=0, help="candidates of each tuning to compare")
    parser.add_argument("library")
    parser.add_argument("shapes", nargs="*")
    options = parser.parse_args()
    if torch is None or not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        print("no PyTorch with a GPU that multiplies 8-bit floats")
        sys.exit(77)
    shapes = [tuple(map(int, s.split(","))) for s in options.shapes] or SHAPES
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    began, failures = time.monotonic(), 0
    per_tensor = Kiln(options.library, "tensor")
    for name in KINDS:
        if options.only not in (None, name):
            continue
        kiln, ratios = per_tensor if name == "tensor" else Kiln(options.library, name), []
        other = "Kiln's by tensor" if name == "blocks" else "torch"
        print(f"scales by {name}, {'fast' if name == 'rows' else 'exact'} sums")
        for shape in shapes:
            if time.monotonic() - began > options.limit:
                print("no time for more shapes")
                break
            text = f"{'x'.join(map(str, shape)):>20}"
            try:
                if name == "blocks":
                    per_tensor.tune(shape, options.seconds)
                told = kiln.tune(shape, options.seconds)
                seconds, (tuned, untuned), errors, candidates = compare(kiln, per_tensor, shape, name, options.rounds,
                                                                        options.top)
            except (RuntimeError, AssertionError) as error:
                failures += 1
                print(f"{text} FAILED: {str(error).strip().splitlines()[0]}", flush=True)
                continue
            ratios.append((tuned, untuned))
            speed = 2e-12 * math.prod(shape) / seconds
            print(f"{text} {other} {speed:7.1f} TF/s, tuned {tuned:.3f} ({speed * tuned:.1f}), untuned {untuned:.3f}, "
                  f"{told['seconds']:.1f} s, errors {' '.join(f'{e:.1e}' for e in errors)}, {told['winner']} "
                  f"({told['evaluated']} tried, {told['failed']} refused)", flush=True)
            if untuned / tuned < 0.9:
                print(f"{'':>20} untuned: {told['untuned']}", flush=True)
            for of_candidate, config in candidates:
                print(f"{'':>20} {of_candidate:.3f} {config}", flush=True)
        if ratios:
            tuned, untuned = zip(*ratios)
            print(f"scales by {name}: {len(ratios)} shapes, tuned {mean(tuned):.3f} (worst {min(tuned):.3f}), untuned "
                  f"{mean(untuned):.3f} (worst {min(untuned):.3f}), untuned of tuned "
                  f"{mean([u / t for t, u in ratios]):.3f} (worst {min(u / t for t, u in ratios):.3f})")
        else:
            failures += 1
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
