"""PyTorch on two GPUs ($PEER_RANKS), a process for each: what scripts/peer_gemm.py and scripts/experts.py share."""
import os
import statistics
import time

RANKS = max(2, int(os.environ.get("PEER_RANKS", "2")))


def microseconds(work, times):
    """The time of one call among many in a row; the median of five rounds."""
    import torch
    import torch.distributed as dist
    for _ in range(3):
        work()
    rounds = []
    for _ in range(5):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            work()
        torch.cuda.synchronize()
        rounds.append(1e6 * (time.perf_counter() - start) / times)
    mine = torch.tensor([statistics.median(rounds)], device="cuda")
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine.item()


def start(rank, work):
    import torch
    import torch.distributed as dist
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS)
    work(rank)
    dist.destroy_process_group()


def run(work):
    """work(rank) on each, with NCCL."""
    import torch
    if torch.cuda.device_count() < RANKS:
        print(f"skipped: {torch.cuda.device_count()} GPUs; it needs {RANKS}")
        return
    import torch.multiprocessing as processes
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    processes.spawn(start, (work,), nprocs=RANKS)
