"""Two processes with DistributedDataParallel: wrap the module first, then DDP. Under torchrun, call train()."""

import os

import torch
import torch.distributed as dist
from tell import tell
from torch import nn

import memscale


def train(rank, wrapped, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2",
                   "LOCAL_RANK": str(rank)}  # fmt: skip
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(8)])
    if wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True))
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        loss = parallel(torch.randn(1024, 128)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        tell("memscale" if wrapped else "plain", loss, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    for wrapped in (False, True):
        torch.multiprocessing.spawn(train, (wrapped, 29500 + os.getpid() % 1000 + wrapped), nprocs=2)
