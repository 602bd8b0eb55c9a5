"""Tensors that are divided among ranks: torch's `DTensor`, by FSDP2 or tensor parallelism. Each rank has a part.

Nothing here communicates. torch is imported by whoever has made such a tensor.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "divided_as",
    "divided_evenly",
    "graph_part_of",
    "is_shard",
    "largest_part_elements",
    "part_of",
    "parts_count",
    "shard_type",
]


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


def divided_as(part: torch.Tensor, like: Any) -> torch.Tensor:
    """The tensor of which this rank has `part` if it is divided as `like` is; `part` itself if that is not divided."""
    return _divided(part, like, like.placements, like.shape, like.stride()) if is_shard(like) else part


def divided_evenly(part: torch.Tensor, like: Any) -> torch.Tensor:
    """The row of the parts of all ranks among which `like` is divided; `part` itself if it is not. The parts have one
    dimension and the same length on all ranks."""
    if not is_shard(like):
        return part
    from torch.distributed.tensor import Shard

    placements = [Shard(0) if hasattr(placement, "dim") else placement for placement in like.placements]
    return _divided(part, like, placements, (parts_count(like) * part.numel(),), (1,))


def _divided(part: torch.Tensor, like: Any, placements: Any, shape: Any, stride: tuple[int, ...]) -> torch.Tensor:
    # DTensor.from_local() would move a part in host memory to the mesh's device.
    from torch import Size
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(Size(shape), stride, part.dtype)
    made: torch.Tensor = type(like)(
        part, DTensorSpec(like.device_mesh, tuple(placements), tensor_meta=meta), requires_grad=False
    )
    return made


def largest_part_elements(tensor: torch.Tensor) -> int:
    """Elements of the largest part that a rank has; all of a tensor that is not divided."""
    sizes = list(tensor.shape)
    for dimension, ranks in _divisions(tensor):
        sizes[dimension] = -(-sizes[dimension] // ranks)
    return math.prod(sizes)


def parts_count(tensor: torch.Tensor) -> int:
    """The number of parts, copies not counted; 1 for a tensor that is not divided."""
    return math.prod(ranks for _, ranks in _divisions(tensor))


def _divisions(tensor: Any) -> list[tuple[int, int]]:
    """The dimensions that are divided, each with the number of parts. One may be divided twice."""
    if not is_shard(tensor):
        return []
    mesh = tensor.device_mesh
    return [(place.dim, mesh.size(index)) for index, place in enumerate(tensor.placements) if hasattr(place, "dim")]
