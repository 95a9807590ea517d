#!/usr/bin/env python3
"""All-gather + GEMM, and GEMM + reduce-scatter, of bf16 on two GPUs by PyTorch: NCCL's collective and
cuBLAS, and its asynchronous tensor parallelism. Sizes and method are those of tests/perf/peer_gemm.cpp.

  peer_gemm.py
"""
from ranks import RANKS, microseconds, run

SIZES = [(8192, 4096, 8192), (512, 4096, 8192), (4096, 2048, 8192), (8192, 14336, 4096),
         (8192, 2048, 8192), (4096, 4096, 4096), (128, 4096, 8192)]


def rank_main(rank):
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric
    group = dist.group.WORLD.group_name
    if hasattr(symmetric, "enable_symm_mem_for_group"):
        symmetric.enable_symm_mem_for_group(group)
    if rank == 0:
        print(f"{'   m     n     k':20} {'NCCL + cuBLAS us':>17} {'async TP us':>12}", flush=True)

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
            print(f"{name} {size[0]:5} {size[1]:5} {size[2]:5} {found[0]:17.1f} {found[1]:12.1f}",
                  flush=True)

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


if __name__ == "__main__":
    run(rank_main)
