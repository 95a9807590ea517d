#!/usr/bin/env python3
"""A gated MLP of bf16 divided among two GPUs, by PyTorch: NCCL's collectives and cuBLAS, and its asynchronous
tensor parallelism; with the activation by itself, and compiled. Sizes and method are those of tests/perf/peer_mlp.cpp.

  peer_mlp.py
"""
from ranks import RANKS, microseconds, run

LAYERS = [(8192, 4096, 14336), (2048, 4096, 14336), (512, 4096, 14336), (8192, 8192, 28672)]


def rank_main(rank):
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric
    group = dist.group.WORLD.group_name
    if hasattr(symmetric, "enable_symm_mem_for_group"):
        symmetric.enable_symm_mem_for_group(group)

    def activate(x):
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    if rank == 0:
        print(f"{'tokens':>6} {'hidden':>6} {'inner':>6} {'NCCL us':>9} {'compiled us':>11} {'async TP us':>11}",
              flush=True)
    for tokens, hidden, inner in LAYERS:
        def noise(*shape):
            return (torch.rand(*shape, device="cuda") * 2 - 1).bfloat16()
        shard, gate_up = noise(tokens // RANKS, hidden), noise(2 * inner // RANKS, hidden).t()
        down = noise(hidden, inner // RANKS).t()
        gathered = torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        own = torch.empty(tokens // RANKS, hidden, device="cuda", dtype=torch.bfloat16)
        compiled = torch.compile(activate, dynamic=False)

        def layer(act):
            dist.all_gather_into_tensor(gathered, shard)
            dist.reduce_scatter_tensor(own, act(gathered @ gate_up) @ down)

        def overlapped():
            _, products = torch.ops.symm_mem.fused_all_gather_matmul(shard, [gate_up], 0, group)
            return torch.ops.symm_mem.fused_matmul_reduce_scatter(compiled(products[0]), down, "sum", 0, group)

        times = max(10, min(100, int(0.03 * 0.7e15 / (6.0 * tokens * hidden * inner / RANKS))))
        found = []
        for work in (lambda: layer(activate), lambda: layer(compiled), overlapped):
            try:
                found.append(microseconds(work, times))
            except Exception as error:  # not every version has all of it
                found.append(float("nan"))
                if rank == 0:
                    print(str(error).splitlines()[0], flush=True)
        if rank == 0:
            print(f"{tokens:6} {hidden:6} {inner:6} {found[0]:9.1f} {found[1]:11.1f} {found[2]:11.1f}", flush=True)


if __name__ == "__main__":
    run(rank_main)
