"""Which ranks share a plan: those that may meet in a forward's collectives.

A layer that is recomputed repeats its collectives, so the ranks that meet in them have to follow one plan. A stage of a
pipeline must not wait for other stages in its forward, which begins after another rank has ended its own.
"""

from __future__ import annotations

import hashlib
import sys
from types import FrameType

import torch

from ..model.shards import meshes_of

__all__ = ["bucketed", "describe", "digest_of_names", "is_pipeline_stage", "partners_of"]

_PIPELINE = "torch.distributed.pipelining."


def digest_of_names(model: torch.nn.Module) -> str:
    """Equal on ranks that wrap the same model, or equally named parts of one, such as those of a hand-written tensor
    parallelism. Shapes don't count: these parts may be unequal."""
    names = sorted(name for name, _ in model.named_parameters())
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def partners_of(model: torch.nn.Module) -> set[int]:
    """The ranks in the process group of the DDP around this forward, and in the meshes of the model's parameters.
    Empty if there are none; collectives that a forward makes by itself are not seen."""
    ranks: set[int] = set()
    for mesh in meshes_of(model):
        ranks.update(mesh.mesh.flatten().tolist())
    ddp = _ddp_around(model)
    if ddp is not None:
        ranks.update(torch.distributed.get_process_group_ranks(ddp.process_group))
    return ranks


def is_pipeline_stage() -> bool:
    """Whether a stage of torch's pipelines has called this forward, in which it may wait for other stages."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_PIPELINE):
            return True
        frame = frame.f_back
    return False


def bucketed(model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters whose gradients the DDP around this forward copies to buckets. With
    `gradient_as_bucket_view` the gradients are the buckets."""
    ddp = _ddp_around(model)
    if ddp is None or ddp.gradient_as_bucket_view:
        return []
    return [p for name, p in ddp.module.named_parameters() if p.requires_grad and name not in ddp.parameters_to_ignore]


def _ddp_around(model: torch.nn.Module) -> torch.nn.parallel.DistributedDataParallel | None:
    ddp = torch.nn.parallel.DistributedDataParallel._active_ddp_module
    return ddp if ddp is not None and any(module is model for module in ddp.modules()) else None


def describe(ranks: list[int]) -> str:
    """For a log line: `0 to 7`, or `0, 2, 4`."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) > 2 and ranks == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, ranks))
