#!/usr/bin/env python3
"""What PyTorch takes for the problems of `kiln tune --json`, timed as Kiln times: as graphs, over
copies that no last-level cache holds. A comparison, not a goal. Exits 77 without PyTorch and a GPU.
Products and sums are PyTorch's own; all else is what torch.compile makes of the same expression.
The last lines are means of PyTorch's time over Kiln's: of up to 512 rows, and of more.

  torch_rows.py RESULTS...
"""
import json
import statistics
import sys

try:
    import torch
except ImportError:
    torch = None

TYPES = {"float": "float32", "f32": "float32", "__half": "float16", "f16": "float16",
         "__nv_bfloat16": "bfloat16", "bf16": "bfloat16",
         "__nv_fp8_e4m3": "float8_e4m3fn", "__nv_fp8_e5m2": "float8_e5m2"}


def seconds(work, copies):
    """Median seconds of work(copy). Where there are several copies, a graph uses each once."""
    scratch = torch.empty(2 * cache(), dtype=torch.uint8, device="cuda")
    for copy in range(copies):
        work(copy)
    torch.cuda.synchronize()

    def timed(run):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e-3

    run = lambda: work(0)
    if copies > 1:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for copy in range(copies):
                work(copy)
        run = graph.replay
    samples = []
    for sample in range(30):
        scratch.fill_(sample)  # nothing of the sample before is in the cache
        samples.append(timed(run))
    return statistics.median(samples[5:]) / copies


def cache():
    return torch.cuda.get_device_properties(0).L2_cache_size


def copies_of(nbytes):
    return max(1, min(1000, -(-3 * cache() // nbytes)))


def random(copies, *shape, dtype):
    return [torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(copies)]


def prepare(kernel, p, dtype):
    """A function of a copy's number, and how many copies there are."""
    size = torch.empty((), dtype=dtype).element_size()
    if kernel == "gemm":
        copies = copies_of(size * (p["m"] * p["k"] + p["n"] * p["k"] + p["m"] * p["n"]))
        a = random(copies, p["m"], p["k"], dtype=dtype)
        b = random(copies, p["n"], p["k"], dtype=dtype)
        out = random(copies, p["m"], p["n"], dtype=dtype)
        return lambda i: torch.matmul(a[i], b[i].t(), out=out[i]), copies
    if kernel in LAYERS:
        return LAYERS[kernel](p, dtype)
    if kernel in OF_ROWS:
        return prepare_rows(kernel, p, dtype)
    shape = (p["n"],) if kernel == "vector_add" else (p["rows"], p["hidden"])
    count = p["n"] if kernel == "vector_add" else shape[0] * shape[1]
    copies = copies_of(3 * size * count)
    a, b, out = (random(copies, *shape, dtype=dtype) for _ in range(3))
    return lambda i: torch.add(a[i], b[i], out=out[i]), copies


def prepare_gated(p, dtype):
    """One product with stacked weights, and what torch.compile makes of the activation."""
    m, n, k = p["m"], p["n"], p["k"]
    copies = copies_of(torch.empty((), dtype=dtype).element_size() * (m * k + 2 * n * k + m * n))
    a, w = random(copies, m, k, dtype=dtype), random(copies, 2 * n, k, dtype=dtype)
    out = random(copies, m, n, dtype=dtype)

    @torch.compile(dynamic=False)
    def gated(a, w, out):
        gate, up = torch.matmul(a, w.t()).split(n, -1)
        out.copy_(torch.nn.functional.silu(gate) * up)

    return lambda i: gated(a[i], w[i], out[i]), copies


def prepare_gated_fp8(p, dtype):
    """The same, and what torch.compile makes of quantizing it by blocks of 128."""
    m, n, k = p["m"], p["n"], p["k"]
    copies = copies_of(torch.empty((), dtype=dtype).element_size() * (m * k + 2 * n * k) + m * n)
    a, w = random(copies, m, k, dtype=dtype), random(copies, 2 * n, k, dtype=dtype)
    out = [torch.empty(m, n, device="cuda", dtype=torch.float8_e4m3fn) for _ in range(copies)]
    scales = [torch.empty(n // 128, m, device="cuda") for _ in range(copies)]

    @torch.compile(dynamic=False)
    def gated(a, w, out, scales):
        gate, up = torch.matmul(a, w.t()).split(n, -1)
        blocks = (torch.nn.functional.silu(gate.float()) * up.float()).view(m, n // 128, 128)
        of_blocks = blocks.abs().amax(-1) / 448
        scales.copy_(of_blocks.t())
        out.copy_((blocks / of_blocks[..., None]).view(m, n).to(out.dtype))

    return lambda i: gated(a[i], w[i], out[i], scales[i]), copies


def prepare_norm_residual(p, dtype):
    shape = p["rows"], p["hidden"]
    copies = copies_of(4 * torch.empty((), dtype=dtype).element_size() * shape[0] * shape[1])
    x, residual, y = (random(copies, *shape, dtype=dtype) for _ in range(3))
    weight = torch.randn(shape[1], device="cuda", dtype=dtype)

    @torch.compile(dynamic=False)
    def norm(x, residual, y):
        residual.add_(x)
        y.copy_(torch.nn.functional.rms_norm(residual, shape[1:], weight, 1e-5))

    return lambda i: norm(x[i], residual[i], y[i]), copies


def quantized(y, largest):
    """What is stored as 8-bit floats, and its scales, of which a row or block has one."""
    scales = (largest / 448).clamp(min=1e-12)
    return (y / scales).clamp(-448, 448).to(torch.float8_e4m3fn), scales.squeeze(-1)


def rms_norm(x, weight):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def by_blocks(x):
    blocks = x.float().view(x.shape[0], -1, 128)
    q, scales = quantized(blocks, blocks.abs().amax(-1, keepdim=True))
    return q.view(x.shape), scales.t()


def by_rows(y):
    return quantized(y.float(), y.float().abs().amax(-1, keepdim=True))


def as_one(x):
    q, scale = quantized(x.float(), x.float().abs().amax())
    return q, scale.reshape(1)


def prepare_residual_fp8(quantize):
    def prepare(p, dtype):
        shape = (p["rows"], p["hidden"])
        copies = copies_of(4 * torch.empty((), dtype=dtype).element_size() * shape[0] * shape[1])
        x, residual = (random(copies, *shape, dtype=dtype) for _ in range(2))
        weight = torch.randn(shape[1], device="cuda", dtype=dtype)
        outs = [[torch.empty_like(out) for out in quantize(rms_norm(x[0], weight))] for _ in range(copies)]

        @torch.compile(dynamic=False)
        def norm(x, residual, outs):
            residual.add_(x)
            for out, result in zip(outs, quantize(rms_norm(residual, weight))):
                out.copy_(result)

        return lambda i: norm(x[i], residual[i], outs[i]), copies

    return prepare


# The results for a row, weights and biases, by kernel.
OF_ROWS = {
    "rmsnorm": lambda x, w, b: (rms_norm(x, w).to(x.dtype),),
    "rmsnorm_fp8": lambda x, w, b: by_rows(rms_norm(x, w)),
    "rmsnorm_fp8_blocks": lambda x, w, b: by_blocks(rms_norm(x, w)),
    "layernorm": lambda x, w, b: (torch.nn.functional.layer_norm(x, x.shape[1:], w, b, 1e-5),),
    "softmax": lambda x, w, b: (torch.softmax(x.float(), -1).to(x.dtype),),
    "quantize_rows": lambda x, w, b: by_rows(x),
    "quantize_blocks": lambda x, w, b: by_blocks(x),
    "quantize_tensor_dynamic": lambda x, w, b: as_one(x),
    "silu_mul": lambda x, w, b: ((torch.nn.functional.silu(x[:, :x.shape[1] // 2].float()) *
                                  x[:, x.shape[1] // 2:]).to(x.dtype),),
}


def prepare_rows(kernel, p, dtype):
    rows, columns = p["rows"], p.get("hidden") or p["columns"]
    width = columns * (2 if kernel == "silu_mul" else 1)
    nbytes = torch.empty((), dtype=dtype).element_size() * rows * (width + columns)
    copies = copies_of(nbytes)
    x = random(copies, rows, width, dtype=dtype)
    w, b = (torch.randn(width, device="cuda", dtype=dtype) for _ in range(2))
    expression = OF_ROWS[kernel]
    outs = [[torch.empty_like(out) for out in expression(x[0], w, b)] for _ in range(copies)]

    @torch.compile(dynamic=False)
    def work(x, w, b, outs):
        for out, result in zip(outs, expression(x, w, b)):
            out.copy_(result)

    return lambda i: work(x[i], w, b, outs[i]), copies


def prepare_rope(p, dtype):
    """What torch.compile makes of it: halves rotated, k and v put into their slots."""
    tokens, width, half = p["tokens"], p["head_dim"], p["rotary_dim"] // 2
    q_row, kv_row = p["q_heads"] * width, p["kv_heads"] * width
    copies = copies_of(4 * tokens * (q_row + 2 * kv_row))
    slots = p["block_size"] * (tokens // p["block_size"] + 2)
    qkv = random(copies, tokens, q_row + 2 * kv_row, dtype=dtype)
    out = random(copies, tokens, p["q_heads"], width, dtype=dtype)
    caches = [random(copies, slots, p["kv_heads"], width, dtype=dtype) for _ in range(2)]
    table = torch.randn(4096, 2 * half, device="cuda")
    positions = torch.arange(tokens, device="cuda") * 1000003 % 4096
    places = torch.arange(tokens, device="cuda") * 1000003 % slots

    def rotated(x, angles):
        cosine, sine = angles[:, None, :half], angles[:, None, half:]
        a, b = x[..., :half].float(), x[..., half:2 * half].float()
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine,
                          x[..., 2 * half:].float()), -1).to(x.dtype)

    @torch.compile(dynamic=False)
    def rope(qkv, out, k_cache, v_cache):
        angles = table[positions]
        q, k, v = (part.view(tokens, -1, width) for part in qkv.split((q_row, kv_row, kv_row), -1))
        out.copy_(rotated(q, angles))
        k_cache[places] = rotated(k, angles)
        v_cache[places] = v

    return lambda i: rope(qkv[i], out[i], caches[0][i], caches[1][i]), copies


LAYERS = {"rope_paged": prepare_rope, "gemm_gated_silu": prepare_gated, "gemm_gated_silu_fp8_blocks": prepare_gated_fp8,
          "rmsnorm_residual": prepare_norm_residual, "rmsnorm_residual_fp8": prepare_residual_fp8(by_rows),
          "rmsnorm_residual_fp8_blocks": prepare_residual_fp8(by_blocks)}


def main(*paths):
    if torch is None or not torch.cuda.is_available():
        print("no PyTorch with a GPU here")
        return 77
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    taken = seconds(lambda _: target.copy_(source), 1)
    print(f"torch {torch.__version__}: copy of 1 GiB, {2 * source.nbytes / taken * 1e-9:.4g} GB/s")
    del source, target
    ratios = {"up to 512 rows": [], "more rows": []}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            output = json.load(file)
        for result in output.get("results", [output]):
            problem = result["problem"]
            dtype = getattr(torch, TYPES[result["types"][0]])
            work, copies = prepare(result["kernel"], problem, dtype)
            taken, kiln = seconds(work, copies), result["winner"]["time_ms"] * 1e-3
            products = {"gemm": 1, "gemm_gated_silu": 2, "gemm_gated_silu_fp8_blocks": 2}.get(result["kernel"])
            rate = f", {2e-12 * products * problem['m'] * problem['n'] * problem['k'] / taken:.4g} TFLOP/s" \
                if products else ""
            sizes = ",".join(f"{name}={value}" for name, value in problem.items())
            print(f"{result['kernel']} {sizes}: torch {taken * 1e6:.4g} us{rate}; Kiln "
                  f"{kiln * 1e6:.4g} us: {taken / kiln:.2f} times torch's speed")
            del work
            torch.cuda.empty_cache()
            torch.compiler.reset()  # else a function that many sizes compile is left as it is
            rows = problem.get("rows", problem.get("tokens"))
            if rows:
                ratios["up to 512 rows" if rows <= 512 else "more rows"].append(taken / kiln)
    for name, some in ratios.items():
        if some:
            print(f"{name}: {len(some)} problems, {statistics.geometric_mean(some):.3f} times torch's speed "
                  f"(worst {min(some):.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
