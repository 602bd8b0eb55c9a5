"""Trains a small Llama on N ranks on this host and prints by how much rank 0's memory grows over that before it.

`python cluster_case.py N alone|ddp|fsdp CONFIG STORE`: the configuration's file, and a file for the ranks to meet in.
The loop holds gradients through the next forward, as predictions assume.
"""

from __future__ import annotations

import ctypes
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def _status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def _warm_up() -> None:
    """Loads what any training loads."""
    layer = nn.Linear(64, 64)
    layer(torch.randn(4, 64)).sum().backward()
    torch.optim.AdamW(layer.parameters()).step()
    dist.all_reduce(torch.zeros(8))
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def _model(how: str, path: str) -> nn.Module:
    from transformers import AutoConfig, LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM(AutoConfig.from_pretrained(path))
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def rank(number: int, ranks: int, how: str, path: str, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)
    _warm_up()
    before = _status("VmRSS")
    model = _model(how, path)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 8000, (2, 128))
    for _ in range(3):
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if number == 0:
        print(_status("VmHWM") - before, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank, (int(sys.argv[1]), *sys.argv[2:5]), nprocs=int(sys.argv[1]))
