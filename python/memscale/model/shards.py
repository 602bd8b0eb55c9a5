"""Models with parameters that are divided among ranks, by FSDP2 (`fully_shard`) or tensor parallelism, and their trace.

What FSDP2 has divided a trace sees as a whole, as a layer does while it runs. The hooks that gather and divide
parameters do not run in a trace. A layer of tensor parallelism computes with its part, and so does its trace. The
profiler and the session of several ranks use this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "graph_part_of",
    "computes_in_parts",
    "gathered_layout",
    "has_shards",
    "is_shard",
    "part_of",
    "shard_type",
    "silence_gathering",
]

_HOME = "torch.distributed.fsdp"


def has_shards(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` manages any module of the model."""
    import torch

    fsdp = getattr(torch.distributed, "fsdp", None)
    managed = getattr(fsdp, "FSDPModule", None)
    return managed is not None and any(isinstance(module, managed) for module in model.modules())


def shard_type() -> type | None:
    """The class `DTensor` of tensors of which this rank has a part, in the shape of the whole; None while torch has not
    loaded it."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def is_shard(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one rank's part of a larger one."""
    shard = shard_type()
    return shard is not None and isinstance(tensor, shard)


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is divided, without its graph; any other tensor itself."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor) if is_shard(tensor) else tensor
    return part


def graph_part_of(tensor: Any) -> torch.Tensor:
    """As `part_of()`, in the graph."""
    part: torch.Tensor = tensor.to_local() if is_shard(tensor) else tensor
    return part


def gathered_layout(shard: Any) -> tuple[Any, Any] | None:
    """Mesh and placements of a parameter that FSDP divides too, while its layer runs; None if it is whole then.

    FSDP's are the first dimensions of the mesh: one that shards, with one before it that replicates in hybrid sharding.
    """
    mesh, placements = shard.device_mesh, shard.placements
    of_fsdp = 2 if placements[0].is_replicate() else 1
    names = mesh.mesh_dim_names
    if mesh.ndim <= of_fsdp or names is None:
        return None
    return mesh[tuple(names[of_fsdp:])], placements[of_fsdp:]


def computes_in_parts(model: torch.nn.Module) -> bool:
    """Whether layers compute with parts of parameters, as in tensor parallelism."""
    gathers = has_shards(model)
    return any(is_shard(p) and not (gathers and gathered_layout(p) is None) for p in model.parameters())


def silence_gathering(model: torch.nn.Module) -> None:
    """Removes FSDP's hooks from the modules; the caller's snapshot restores them."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if _is_of_fsdp(hook)]:
                del hooks[key]


def _is_of_fsdp(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    return any((getattr(thing, "__module__", None) or "").startswith(_HOME) for thing in (hook, type(owner)))
