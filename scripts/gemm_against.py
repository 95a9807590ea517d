#!/usr/bin/env python3
"""Kiln's tuned bf16 GEMM beside others of its kind in one process: C = A * B^T, random data, cold L2 cache, contenders
in turns, the median of the ratios of neighbours. Exits 77 without PyTorch and a GPU.

  gemm_against.py triton LIBRARY [M,N,K]...      Triton's matrix products, tuned by Inductor (max-autotune, its
                                                 persistent TMA template included, no other backend), and cuBLAS
  gemm_against.py fused LIBRARY [M,N,K]...       gelu(A * B^T + bias) and A * B^T + residual, against torch.compile of the
                                                 same expression (max-autotune); `alone`: Kiln's GEMM without them,
                                                 against the fused one
  gemm_against.py exhaustive LIBRARY [M,N,K]...  the default strategy's winner against the exhaustive one's, of the
                                                 same list of configs

A ratio above 1: Kiln's, or the default strategy's, is faster.
"""
import argparse
import contextlib
import ctypes
import math
import os
import re
import signal
import statistics
import sys
import tempfile
import time

SIX = [(8192, 8192, 8192), (4096, 4096, 7168), (2048, 24576, 1536), (4096, 2112, 7168), (256, 1024, 1024),
       (16, 8192, 8192)]
# The clock cycles that a launch through Inductor's Python wrapper may take.
HOLD = 600_000


class OutOfTime(BaseException):
    """Not an Exception: compilers catch those."""


@contextlib.contextmanager
def at_most(seconds):
    def ring(*_):
        raise OutOfTime(f"not done within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def inductor_options(torch):
    wanted = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "triton.enable_persistent_tma_matmul": True,
              "triton.cudagraphs": False}
    known = set(torch._inductor.list_options())
    for name in sorted(wanted.keys() - known):
        print(f"this PyTorch has no option {name}", flush=True)
    return {name: value for name, value in wanted.items() if name in known}


def generated_code(work):
    """The source that Inductor makes for the first call of `work`; empty where PyTorch does not tell."""
    try:
        from torch._inductor.utils import run_and_get_code
    except ImportError:
        work()
        return ""
    return "\n".join(run_and_get_code(work)[1])


def template_of(code):
    if not code:
        return "unknown template"
    if library := re.search(r"extern_kernels\.\w+\(", code):
        return "not Triton's: " + library.group()[:-1]
    return "persistent TMA" if re.search("tensor_descriptor|descriptor_load|tensormap", code) else "tiles"


class AgainstTriton:
    head = f"{'cuBLAS':>12} {'Kiln/cuBLAS':>11} {'Triton/cuBLAS':>13} {'Kiln/Triton':>11} {'compile':>8}  template"
    goal = "Kiln against Triton: goal >= 1.05"

    def __init__(self, kiln, rows, options):
        self.kiln, self.rows, self.rounds = kiln, rows, options.rounds
        self.options = inductor_options(rows.torch)

    def row(self, shape, told, seconds):
        torch, rows = self.rows.torch, self.rows
        a, b, out = rows.operands(shape)
        torch._dynamo.reset()
        product = torch.compile(lambda x, y: torch.matmul(x, y.t()), fullgraph=True, dynamic=False,
                                options=self.options)
        began = time.monotonic()
        template = template_of(generated_code(lambda: product(a, b)))
        torch.cuda.synchronize()
        took = time.monotonic() - began
        expected = torch.matmul(a, b.t())
        torch.testing.assert_close(product(a, b), expected, rtol=2e-2, atol=2e-2 * math.sqrt(shape[2]))
        launch = lambda: self.kiln.launch(0, out, a, b)
        rows.check(launch, out, expected, shape[2])
        cublas, own, triton = rows.in_turns([lambda: torch.matmul(a, b.t(), out=out), launch, lambda: product(a, b)],
                                            self.rounds, HOLD)
        against = rows.ratio(triton, own)
        print(f"{2e-12 * math.prod(shape) / statistics.median(cublas):7.1f} TF/s {rows.ratio(cublas, own):11.3f} "
              f"{rows.ratio(cublas, triton):13.3f} {against:11.3f} {took:6.1f} s  {template}", flush=True)
        return None if template.startswith("not Triton's") else against


class AgainstCompiled:
    head = f"{'':>9} {'compiled':>12} {'ratio':>6} {'alone':>6} {'compile':>8}  winner"
    goal = "fused, against torch.compile: goal >= 1.05"

    def __init__(self, kiln, rows, options):
        self.kiln, self.library, self.rows, self.rounds, self.seconds = kiln, kiln.library, rows, options.rounds, options.seconds
        for name, result in (("open", ctypes.c_void_p), ("failure", ctypes.c_char_p)):
            getattr(self.library, "gemm_fused_" + name).restype = result

    def require(self, done):
        if not done:
            raise RuntimeError(self.library.gemm_fused_failure().decode())

    def row(self, shape, told, seconds):
        found = []
        for residual in (0, 1):
            if residual:
                print(f"{'':>20} ", end="")
            found.append(self.one(shape, residual))
        return min(found)

    def one(self, shape, residual):
        torch, rows = self.rows.torch, self.rows
        a, b, out = rows.operands(shape)
        more = torch.randn(*shape[:2] if residual else shape[1:2], device="cuda", dtype=torch.bfloat16)
        if residual:
            plain = lambda x, y, z: torch.matmul(x, y.t()) + z
        else:
            plain = lambda x, y, z: torch.nn.functional.gelu(torch.matmul(x, y.t()) + z)
        torch._dynamo.reset()
        compiled = torch.compile(plain, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
        began = time.monotonic()
        expected = compiled(a, b, more)
        torch.cuda.synchronize()
        took = time.monotonic() - began
        handle = ctypes.c_void_p(self.library.gemm_fused_open(residual))
        self.require(handle)
        try:
            winner = ctypes.create_string_buffer(4096)
            self.require(not self.library.gemm_fused_tune(handle, *shape, ctypes.c_double(self.seconds), winner,
                                                          ctypes.c_size_t(len(winner))))
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            pointers = [ctypes.c_void_p(t.data_ptr()) for t in (out, a, b, more)]
            launch = lambda: self.require(not self.library.gemm_fused_launch(handle, stream, *pointers))
            rows.check(launch, out, expected, shape[2])
            alone = lambda: self.kiln.launch(0, out, a, b)
            works = [launch, lambda: compiled(a, b, more), alone]
            if shape[0] <= rows.FEW_ROWS:
                works.append(self.kiln.reader(b))
            own, theirs, bare, *reading = rows.in_turns(works, self.rounds, HOLD)
        finally:
            torch.cuda.synchronize()
            self.library.gemm_fused_close(handle)
        found = rows.ratio(theirs, own)
        bound = f"; reading B alone allows {rows.ratio(theirs, reading[0]):.3f}" if reading else ""
        print(f"{'residual' if residual else 'bias+gelu':>9} {2e-12 * math.prod(shape) / statistics.median(theirs):7.1f} TF/s "
              f"{found:6.3f} {rows.ratio(bare, own):6.3f} {took:6.1f} s  {winner.value.decode()}{bound}", flush=True)
        return found


class AgainstExhaustive:
    head = f"{'ratio':>6} {'tried':>11} {'seconds':>13}  winners"
    goal = "the default strategy's winner against the exhaustive one's: goal >= .98"

    def __init__(self, kiln, rows, options):
        self.kiln, self.rows, self.rounds, self.seconds = kiln, rows, options.rounds, options.exhaustive_seconds

    def row(self, shape, told, seconds):
        every = self.kiln.exhaust(max(min(self.seconds, seconds - told["seconds"] - 5), 1))
        a, b, out = self.rows.operands(shape)
        expected = self.rows.torch.matmul(a, b.t())
        works = [lambda which=which: self.kiln.launch(which, out, a, b) for which in (0, 2)]
        for work in works:
            self.rows.check(work, out, expected, shape[2])
        default, exhaustive = self.rows.in_turns(works, self.rounds)
        found = self.rows.ratio(exhaustive, default)
        print(f"{found:6.3f} {told['evaluated']:5d}/{every['evaluated']:5d} {told['seconds']:5.1f}/{every['seconds']:5.1f} s  "
              f"{told['winner']}", flush=True)
        if every["winner"] != told["winner"]:
            print(f"{'':>20} exhaustively: {every['winner']}", flush=True)
        if not every["complete"]:
            print(f"{'':>20} the exhaustive search is not complete: it does not count", flush=True)
        return found if every["complete"] else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("triton", "fused", "exhaustive"))
    parser.add_argument("library", help="libkiln_gemm_rows.so")
    parser.add_argument("shapes", nargs="*", help="six of scripts/gemm_rows.py by default")
    parser.add_argument("--seconds", type=float, default=6, help="for Kiln to tune a shape (default: %(default)s)")
    parser.add_argument("--exhaustive-seconds", type=float, default=120,
                        help="for the exhaustive search of a shape (default: %(default)s)")
    parser.add_argument("--row", type=float, default=150, help="for a shape (default: %(default)s s)")
    parser.add_argument("--limit", type=float, default=1e9, help="for all shapes; what is left then is not run")
    parser.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1), help="that Inductor compiles with")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    folder = tempfile.TemporaryDirectory()
    # Read when PyTorch is imported.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(options.threads)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder.name, "inductor")
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder.name, "triton")
    import gemm_rows as rows

    if rows.torch is None or not rows.torch.cuda.is_available():
        print("no PyTorch with a GPU")
        return 77
    rows.torch.cuda.init()
    rows.torch.zeros(1, device="cuda")
    kiln, began, ratios, failures = rows.Kiln(options.library), time.monotonic(), [], 0
    if options.what != "exhaustive":
        import torch._dynamo
        import torch._inductor
    against = {"triton": AgainstTriton, "fused": AgainstCompiled, "exhaustive": AgainstExhaustive}[options.what](
        kiln, rows, options)
    print(f"{'m x n x k':>20} {against.head}", flush=True)
    for shape in [tuple(map(int, s.split(","))) for s in options.shapes] or SIX:
        left = options.limit - (time.monotonic() - began)
        if left < 2 * options.seconds:
            print("no time for more shapes")
            break
        print(f"{'x'.join(map(str, shape)):>20} ", end="", flush=True)
        try:
            seconds = min(options.row, left)
            with at_most(seconds):
                told = kiln.tune(*shape, options.seconds)
                found = against.row(shape, told, seconds)
            if found is not None:
                ratios.append(found)
        except (Exception, OutOfTime) as error:  # whatever a compiler throws
            failures += 1
            print(f"FAILED: {(str(error).strip() or type(error).__name__).splitlines()[0][:150]}", flush=True)
    if ratios:
        print(f"{against.goal}: {len(ratios)} shapes, {rows.mean(ratios):.3f} (worst {min(ratios):.3f})", flush=True)
    folder.cleanup()
    # Inductor's processes may still compile for a shape that was out of time.
    sys.stdout.flush()
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    sys.exit(main())
