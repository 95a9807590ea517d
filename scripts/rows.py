"""What mlp.py and gemm_grouped.py share: the library's functions, options, and a row for each shape."""
import argparse
import ctypes
import sys
import time

from gemm_rows import mean, torch


class Session:
    """The functions of the library whose names begin with a prefix: PREFIX_open, PREFIX_failure and others."""

    def __init__(self, path, prefix, *arguments):
        self.library, self.prefix = ctypes.CDLL(path), prefix
        self.function("open").restype = ctypes.c_void_p
        self.function("failure").restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p(self.function("open")(*arguments))
        if not self.handle:
            sys.exit(self.why())

    def function(self, name):
        return getattr(self.library, f"{self.prefix}_{name}")

    def why(self):
        return self.function("failure")().decode()

    def told(self, name, *arguments):
        """Calls a function that writes a text, and returns the text."""
        text = ctypes.create_string_buffer(8192)
        if self.function(name)(self.handle, *arguments, text, ctypes.c_size_t(len(text))):
            raise RuntimeError(self.why())
        return text.value.decode()

    def launch(self, name, which, arrays, sizes=()):
        """Launches the tuned kernel (`which` 0) or the untuned one (1) on PyTorch's stream."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.function(name)(self.handle, which, stream, *(ctypes.c_void_p(x.data_ptr()) for x in arrays), *sizes):
            raise RuntimeError(self.why())


def random_bf16(*sizes, scale=1.0):
    return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16) * scale


def options_for(kinds, seconds):
    """A parser of the options that all of them have; `seconds` for tuning a shape."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=seconds, help="for tuning a shape")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no shape is begun")
    parser.add_argument("--only", choices=kinds)
    parser.add_argument("--rounds", type=int, default=23)
    parser.add_argument("library")
    parser.add_argument("shapes", nargs="*")
    return parser


def need_gpu(also=True, what="PyTorch with a GPU"):
    """Exits with 77 where there is none; else starts CUDA."""
    if torch is None or not torch.cuda.is_available() or not also:
        print("no " + what)
        sys.exit(77)
    torch.cuda.init()
    torch.zeros(1, device="cuda")


def run_rows(name, shapes, options, began, describe, row):
    """Prints what `row` makes of each shape: the ratios of PyTorch's time to Kiln's, tuned and untuned, and a text that
    follows the shape's. Then prints their means. Returns how many shapes failed, and how many did not."""
    ratios, failures = [], 0
    for shape in [tuple(map(int, s.split(","))) for s in options.shapes] or shapes:
        if time.monotonic() - began > options.limit:
            print("no time for more shapes")
            break
        try:
            measured, text = row(shape)
        except (RuntimeError, AssertionError) as error:
            failures += 1
            why = (str(error).strip() or repr(error)).splitlines()[0]
            print(f"{name}, {describe(shape)}: FAILED: {why}", flush=True)
            continue
        ratios.append(measured)
        print(f"{name}, {describe(shape)}: {text}", flush=True)
    if ratios:
        tuned, untuned = zip(*ratios)
        print(f"{name}: {len(ratios)} shapes, tuned {mean(tuned):.3f} (worst {min(tuned):.3f}), untuned "
              f"{mean(untuned):.3f} (worst {min(untuned):.3f})")
    return failures, len(ratios)
