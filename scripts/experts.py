#!/usr/bin/env python3
"""The two GEMMs of a layer of experts (bf16) on two GPUs by PyTorch: its grouped product with NCCL's
collectives. Layers, routing and method are those of tests/perf/experts.cpp.

  experts.py
"""
from ranks import RANKS, microseconds, run

# Tokens of all ranks, the model's and the experts' dimension (of all ranks), experts, of each token.
LAYERS = [(8192, 2048, 1536, 32, 2, False), (8192, 2048, 1536, 32, 2, True), (2048, 2048, 1536, 32, 2, False)]

TIMES = 100  # calls in a row


def rank_main(rank):
    import torch
    import torch.distributed as dist

    def random(*size):
        return (torch.rand(*size, device="cuda") * 2 - 1).bfloat16()

    for tokens, hidden, inner, experts, top, skewed in LAYERS:
        generator = torch.Generator(device="cuda").manual_seed(5)
        choice = torch.randint(experts, (tokens * top,), device="cuda", generator=generator)
        if skewed:
            choice = torch.minimum(choice, torch.randint(experts, (tokens * top,), device="cuda",
                                                         generator=generator))
        order = torch.argsort(choice, stable=True)
        ends = torch.cumsum(torch.bincount(choice, minlength=experts), 0).int()
        token_of, places = order // top, torch.argsort(order)
        weights = torch.full((tokens, top, 1), .5, device="cuda", dtype=torch.bfloat16)
        own, every = random(tokens // RANKS, hidden), random(tokens, hidden)
        up = random(experts, 2 * inner // RANKS, hidden).transpose(1, 2)
        down = random(experts, hidden, inner // RANKS).transpose(1, 2)
        rows = random(tokens * top, inner // RANKS)
        out = torch.empty(tokens // RANKS, hidden, device="cuda", dtype=torch.bfloat16)

        def gather():
            dist.all_gather_into_tensor(every, own)
            return torch._grouped_mm(every[token_of], up, offs=ends)

        def weigh(products):
            return (products[places].view(tokens, top, hidden) * weights).sum(1)

        weigh_compiled = torch.compile(weigh, dynamic=False)

        def combine(weigh):
            dist.reduce_scatter_tensor(out, weigh(torch._grouped_mm(rows, down, offs=ends)))
            return out

        gathering = microseconds(gather, TIMES)
        eager = microseconds(lambda: combine(weigh), TIMES)
        try:
            compiled = microseconds(lambda: combine(weigh_compiled), TIMES)
        except Exception as error:
            compiled = float("nan")
            if rank == 0:
                print(f"compiled: {str(error).splitlines()[0]}", flush=True)
        if rank == 0:
            print(f"{tokens:5} {'skewed' if skewed else 'balanced':8} gather {gathering:9.1f} us, combine "
                  f"{eager:9.1f} us, with compiled sums {compiled:9.1f} us", flush=True)


if __name__ == "__main__":
    run(rank_main)
