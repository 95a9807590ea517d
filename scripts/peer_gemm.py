#!/usr/bin/env python3
"""All-gather + GEMM, and GEMM + reduce-scatter, of bf16 on two GPUs by PyTorch: NCCL's collective and
cuBLAS, and its asynchronous tensor parallelism. Sizes and method are those of tests/perf/peer_gemm.cpp, whose
output, if it is given, is compared with: for each size, and by geometric means over the sizes that the goals name.

  peer_gemm.py [OUTPUT]
"""
import statistics
import sys

from ranks import RANKS, microseconds, run

SIZES = [(8192, 4096, 8192), (512, 4096, 8192), (4096, 2048, 8192), (8192, 14336, 4096),
         (8192, 2048, 8192), (4096, 4096, 4096), (128, 4096, 8192), (2048, 4096, 4096), (1024, 14336, 4096),
         (16384, 2048, 4096)]


def kilns(path):
    """Microseconds, as tuned, by operation and size."""
    found = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if words and words[0] in ("AG", "RS") and len(words) > 4 and words[2] != "x":
                found[words[0], *map(int, words[1:4])] = float(words[4])
    return found


def verdict(name, ratios, goal):
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{name}: {len(ratios)} sizes, {mean:.3f} (worst {min(ratios):.3f}), goal {goal}", flush=True)


def rank_main(rank):
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric
    group = dist.group.WORLD.group_name
    if hasattr(symmetric, "enable_symm_mem_for_group"):
        symmetric.enable_symm_mem_for_group(group)
    ours = kilns(sys.argv[1]) if len(sys.argv) > 1 else {}
    ratios = {}
    if rank == 0:
        print(f"{'   m     n     k':20} {'NCCL + cuBLAS us':>17} {'async TP us':>12} {'speedup of Kiln':>17}", flush=True)

    def show(name, size, work):
        times = max(10, min(300, int(0.03 * 0.7e15 / (2.0 * size[0] * size[1] * size[2]))))
        found = []
        for each in work:
            try:
                found.append(microseconds(each, times))
            except Exception as error:  # not every version has all of it
                found.append(float("nan"))
                if rank == 0:
                    print(f"{name}: {str(error).splitlines()[0]}", flush=True)
        if rank == 0:
            of = ours.get((name, *size), float("nan"))
            ratios[name, size] = [theirs / of for theirs in found]
            print(f"{name} {size[0]:5} {size[1]:5} {size[2]:5} {found[0]:17.1f} {found[1]:12.1f} "
                  f"{found[0] / of:8.3f} {found[1] / of:8.3f}", flush=True)

    for size in SIZES:
        m, n, k = size
        weight = (torch.rand(n, k, device="cuda") * 2 - 1).bfloat16().t()
        shard = (torch.rand(m // RANKS, k, device="cuda") * 2 - 1).bfloat16()
        gathered = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)

        def gather():
            dist.all_gather_into_tensor(gathered, shard)
            return gathered @ weight

        show("AG", size, [gather, lambda: torch.ops.symm_mem.fused_all_gather_matmul(
            shard, [weight], 0, group)])
    for size in SIZES:
        m, n, k = size
        weight = (torch.rand(n, k, device="cuda") * 2 - 1).bfloat16().t()
        rows = (torch.rand(m, k, device="cuda") * 2 - 1).bfloat16()
        own = torch.empty(m // RANKS, n, device="cuda", dtype=torch.bfloat16)

        def scatter():
            dist.reduce_scatter_tensor(own, rows @ weight)
            return own

        show("RS", size, [scatter, lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(
            rows, weight, "sum", 0, group)])
    if rank or not ours:
        return
    for name, goals in (("AG", (1.20, 1.15)), ("RS", (1.15, 1.15))):
        large = [pair for (of, size), pair in ratios.items() if of == name and size[0] == 8192]
        for other, goal, place in (("NCCL + cuBLAS", goals[0], 0), ("async TP", goals[1], 1)):
            verdict(f"{name} of 8192 rows against {other}", [p[place] for p in large if p[place] == p[place]], goal)
    verdict("512 rows and fewer against the better of both",
            [min(x for x in pair if x == x) for (_, size), pair in ratios.items()
             if size[0] <= 512 and any(x == x for x in pair)], "0.99 (worst)")


if __name__ == "__main__":
    run(rank_main)
