#!/usr/bin/env python3
"""A layer of experts (bf16) on two GPUs by PyTorch: its grouped product with NCCL's collectives, and an activation between
the two GEMMs. Layers, routing and method are those of tests/perf/experts.cpp, whose output, if it is given, is compared with.

  experts.py [OUTPUT]
  experts.py --draws PROGRAM    whether perf_experts draws the same routing; needs neither PyTorch nor a GPU
"""
import subprocess
import sys

from ranks import RANKS, microseconds, run

# Tokens of all ranks, the model's and the experts' dimension (of all ranks), experts, of each token.
LAYERS = [(8192, 2048, 1536, 32, 2, False), (8192, 2048, 1536, 32, 2, True), (2048, 2048, 1536, 32, 2, False)]

TIMES = 100  # calls in a row
GOAL = 1.3  # how much faster the layer of 8192 tokens is to be


def draw(index, count):
    bits = index * 2654435761 & 0xffffffff
    bits = (bits ^ bits >> 15) * 2246822519 & 0xffffffff
    return (bits ^ bits >> 13) % count


def experts_of(tokens, experts, top, skewed):
    """The expert of each choice of each token."""
    pairs = ((draw(2 * i, experts), draw(2 * i + 1, experts)) for i in range(tokens * top))
    return [min(pair) if skewed else pair[0] for pair in pairs]


def checksum(choices):
    total = 0
    for expert in choices:
        total = total * 31 + expert & 0xffffffff
    return total


def routing(skewed):
    return "skewed" if skewed else "balanced"


def draws():
    """Lines as `perf_experts draws` prints them."""
    return [f"{tokens} {routing(skewed)} {checksum(experts_of(tokens, experts, top, skewed))}"
            for tokens, _, _, experts, top, skewed in LAYERS]


def kilns(path):
    """Microseconds of a layer, and the checksum of its draws, by tokens and routing."""
    found = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if words and words[0] == "layer":
                found[int(words[1]), words[2]] = float(words[3]), int(words[-1])
    return found


def compare(ours, tokens, name, choices, best):
    if (tokens, name) not in ours:
        return
    time, drawn = ours[tokens, name]
    if drawn != checksum(choices):
        print(f"{tokens:5} {name:8} not compared: the draws differ", flush=True)
        return
    goal = f", goal {GOAL}" if tokens == 8192 else ""
    print(f"{tokens:5} {name:8} layer by Kiln {time:9.1f} us, {best / time:.3f} times as fast{goal}", flush=True)


def rank_main(rank):
    import torch
    import torch.distributed as dist

    def random(*size):
        return (torch.rand(*size, device="cuda") * 2 - 1).bfloat16()

    def shown(name, work):
        try:
            return microseconds(work, TIMES)
        except Exception as error:  # not every version has all of it
            if rank == 0:
                print(f"{name}: {str(error).splitlines()[0]}", flush=True)
            return float("nan")

    ours = kilns(sys.argv[1]) if len(sys.argv) > 1 else {}
    for tokens, hidden, inner, experts, top, skewed in LAYERS:
        choices = experts_of(tokens, experts, top, skewed)
        choice = torch.tensor(choices, device="cuda")
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

        def activate(products):
            gate, linear = products.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * linear

        def weigh(products):
            return (products[places].view(tokens, top, hidden) * weights).sum(1)

        activate_compiled = torch.compile(activate, dynamic=False)
        weigh_compiled = torch.compile(weigh, dynamic=False)

        def combine(activated, weigh):
            dist.reduce_scatter_tensor(out, weigh(torch._grouped_mm(activated, down, offs=ends)))

        gathering = shown("gather", gather)
        eager = shown("combine", lambda: combine(rows, weigh))
        compiled = shown("combine, compiled", lambda: combine(rows, weigh_compiled))
        layer = shown("layer", lambda: combine(activate(gather()), weigh))
        layer_compiled = shown("layer, compiled", lambda: combine(activate_compiled(gather()), weigh_compiled))
        if rank == 0:
            name = routing(skewed)
            print(f"{tokens:5} {name:8} gather {gathering:9.1f} us, combine {eager:9.1f} us, with compiled sums "
                  f"{compiled:9.1f} us; layer {layer:9.1f} us, compiled {layer_compiled:9.1f} us", flush=True)
            known = [time for time in (layer, layer_compiled) if time == time]
            if known:
                compare(ours, tokens, name, choices, min(known))


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "--draws":
        run(rank_main)
        return 0
    theirs = subprocess.run([sys.argv[2], "draws"], check=True, capture_output=True, text=True).stdout.splitlines()
    print("\n".join(theirs))
    return int(theirs != draws())


if __name__ == "__main__":
    sys.exit(main())
