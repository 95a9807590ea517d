#!/usr/bin/env python3
"""Kiln's grouped GEMMs in bf16, tuned and untuned, in the way of gemm_rows.py: those whose groups follow each other
against PyTorch's grouped product, with groups that are equal, lopsided and partly empty; masked ones of few rows against
reading the groups' weights as fast as the device copies. Exits 77 without PyTorch and a GPU that has such a product.

  gemm_grouped.py [--seconds S] [--limit S] [--only contiguous|masked] [--top N] LIBRARY [GROUPS,ROWS,N,K]...

ROWS: rows of a group on average; a masked group has room for this many, and has 1 to that many.
"""
import ctypes
import json
import random
import statistics
import sys
import time

from gemm_rows import in_turns, ratio, torch
from rows import Session, need_gpu, options_for, random_bf16, run_rows

CONTIGUOUS = [(4, 8192, 4096, 7168), (8, 4096, 7168, 2048), (128, 64, 2048, 2048)]
MASKED = [(128, 64, 2048, 2048), (32, 64, 4096, 4096)]


class Kiln(Session):
    def __init__(self, path, masked):
        super().__init__(path, "gemm_grouped", masked)

    def tune(self, m, n, k, groups, expected, seconds):
        return json.loads(self.told("tune", m, n, k, groups, expected, ctypes.c_double(seconds)))

    def choose(self, place):
        try:
            return self.told("choose", ctypes.c_size_t(place))
        except RuntimeError:
            return None


def distributions(groups, rows):
    """Rows of each group, by the distribution's name; all sum up to the same."""
    shuffle = random.Random(1)
    weights = [1 / (1 + g) for g in range(groups)]
    shuffle.shuffle(weights)
    lopsided = [int(groups * rows * w / sum(weights)) for w in weights]
    lopsided[0] += groups * rows - sum(lopsided)
    empty = [2 * rows if g % 2 == 0 else 0 for g in range(groups)]
    return {"equal": [rows] * groups, "lopsided": lopsided, "half empty": empty}


def candidates_of(kiln, works, rounds, top):
    found = []
    for place in range(top):
        config = kiln.choose(place)
        if config:
            found.append((ratio(*in_turns(works, rounds)), config))
    return found


def contiguous(kiln, shape, options):
    groups, rows, n, k = shape
    told = kiln.tune(groups * rows, n, k, groups, 0, options.seconds)
    a, b = random_bf16(groups * rows, k), random_bf16(groups, n, k)
    out = torch.empty(groups * rows, n, device="cuda", dtype=torch.bfloat16)
    lines, ratios = [], None
    for name, counts in distributions(groups, rows).items():
        ends = torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)
        works = [lambda: torch._grouped_mm(a, b.transpose(-2, -1), offs=ends)]
        works += [lambda which=which: kiln.launch("launch", which, (out, a, b, ends)) for which in (0, 1)]
        expected = works[0]()
        for work in works[1:]:
            out.fill_(float("nan"))
            work()
            torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2 * k**0.5)
        torchs, *others = in_turns(works, options.rounds)
        tuned, untuned = [ratio(torchs, other) for other in others]
        rate = 2e-12 * groups * rows * n * k / statistics.median(torchs)
        lines.append(f"{name}: torch {rate:.1f} TF/s, tuned {tuned:.3f}, untuned {untuned:.3f}")
        if name == "equal":
            ratios = tuned, untuned
            lines += [f"    {r:.3f} {config}" for r, config in candidates_of(kiln, works[:2], options.rounds, options.top)]
            if options.top:
                kiln.choose(0)
    return told, ratios, lines


def masked(kiln, shape, options):
    """Ratios: the time that copying moves the weights' bytes in, over Kiln's."""
    groups, most, n, k = shape
    counts = [1 + (37 * g) % most for g in range(groups)]
    told = kiln.tune(most, n, k, groups, sum(counts) // groups, options.seconds)
    a, b = random_bf16(groups, most, k), random_bf16(groups, n, k)
    out, other = torch.empty(groups, most, n, device="cuda", dtype=torch.bfloat16), torch.empty_like(b)
    sizes = torch.tensor(counts, device="cuda", dtype=torch.int32)
    expected = torch.matmul(a, b.transpose(-2, -1))
    computed = torch.arange(most, device="cuda")[None, :] < sizes[:, None]
    expected[~computed] = -7
    works = [lambda: other.copy_(b)]
    works += [lambda which=which: kiln.launch("launch", which, (out, a, b, sizes)) for which in (0, 1)]
    for work in works[1:]:
        out.fill_(-7)
        work()
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2 * k**0.5)
    copies, *others = in_turns(works, options.rounds)
    ratios = [ratio(copies, times) / 2 for times in others]  # a copy moves each byte twice
    speed = 2e-12 * 2 * b.numel() / statistics.median(copies)
    lines = [f"1 to {most} rows: copies at {speed:.2f} TB/s, tuned {ratios[0]:.3f} of that, untuned {ratios[1]:.3f}"]
    lines += [f"    {r / 2:.3f} {config}" for r, config in candidates_of(kiln, works[:2], options.rounds, options.top)]
    return told, ratios, lines


def row_of(kiln, compare, shape, options):
    told, measured, lines = compare(kiln, shape, options)
    text = f"{told['winner']} ({told['evaluated']} tried, {told['failed']} refused, {told['seconds']:.1f} s)"
    if measured[1] / measured[0] < 0.9:
        lines.insert(0, f"untuned: {told['untuned']}")
    return measured, "\n    ".join([text, *lines])


def main():
    parser = options_for(("contiguous", "masked"), 20)
    parser.add_argument("--top", type=int, default=0, help="candidates of each tuning to compare")
    options = parser.parse_args()
    need_gpu(hasattr(torch, "_grouped_mm"), "PyTorch with a GPU and a grouped product")
    began, failures = time.monotonic(), 0
    for name, compare, shapes in (("contiguous", contiguous, CONTIGUOUS), ("masked", masked, MASKED)):
        if options.only not in (None, name):
            continue
        kiln = Kiln(options.library, int(compare is masked))
        failed, done = run_rows(name, shapes, options, began, "{0[0]} groups of {0[1]} rows, n {0[2]}, k {0[3]}".format,
                                lambda shape, kiln=kiln, compare=compare: row_of(kiln, compare, shape, options))
        failures += failed + (not done)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
