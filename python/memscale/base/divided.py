"""Tensors that are divided among ranks: torch's `DTensor`, by FSDP2 or tensor parallelism. Each rank has a part.

Nothing here communicates. torch is imported by whoever has made such a tensor.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = [
    "Division",
    "divided_as",
    "divided_evenly",
    "divisions_of",
    "graph_part_of",
    "has_several_processes",
    "is_shard",
    "largest_part_elements",
    "part_of",
    "parts_count",
    "shard_type",
]

_kind: type | None = None  # once it is known


def shard_type() -> type | None:
    """The class `DTensor` of tensors of which this rank has a part, in the shape of the whole; None while torch has not
    loaded it."""
    global _kind
    if _kind is None:
        _kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return _kind


def is_shard(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one rank's part of a larger one."""
    kind = _kind or shard_type()
    return kind is not None and isinstance(tensor, kind)


def part_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is divided, without its graph; any other tensor itself."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor) if is_shard(tensor) else tensor
    return part


def graph_part_of(tensor: Any) -> torch.Tensor:
    """As `part_of()`, in the graph."""
    part: torch.Tensor = tensor.to_local() if is_shard(tensor) else tensor
    return part


class Division(NamedTuple):
    """A tensor that is divided among ranks, without this rank's part of it."""

    kind: Any
    mesh: Any
    placements: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Any) -> Division:
        """That of a tensor for which `is_shard()` holds."""
        return cls(type(tensor), tensor.device_mesh, tensor.placements, tuple(tensor.shape), tensor.stride())

    def with_part(self, part: torch.Tensor) -> torch.Tensor:
        """The divided tensor whose part on this rank is `part`, without a graph and without a copy."""
        # DTensor.from_local() would move a part in host memory to the mesh's device.
        from torch import Size
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

        meta = TensorMeta(Size(self.shape), self.stride, part.dtype)
        spec = DTensorSpec(self.mesh, tuple(self.placements), tensor_meta=meta)
        made: torch.Tensor = self.kind(part, spec, requires_grad=False)
        return made


def divided_as(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor of which this rank has `part` if it is divided as `like` is; `part` itself if that is not divided."""
    return Division.of(like).with_part(part) if is_shard(like) else part


def divided_evenly(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One row of as many parts as `like` has, of which `part` is this rank's; `part` itself if `like` is not divided.
    All parts have one dimension and the same length."""
    if not is_shard(like):
        return part
    from torch.distributed.tensor import Shard

    division = Division.of(like)
    placements = [Shard(0) if hasattr(place, "dim") else place for place in division.placements]
    length = parts_count(like) * part.numel()
    return division._replace(placements=placements, shape=(length,), stride=(1,)).with_part(part)


def largest_part_elements(tensor: torch.Tensor) -> int:
    """Elements of the largest part that a rank has; all of a tensor that is not divided."""
    if not is_shard(tensor):
        return tensor.numel()
    sizes = list(tensor.shape)
    for dimension, ranks, _ in divisions_of(tensor):
        sizes[dimension] = -(-sizes[dimension] // ranks)
    return math.prod(sizes)


def parts_count(tensor: torch.Tensor) -> int:
    """The number of parts, copies not counted; 1 for a tensor that is not divided."""
    return math.prod(ranks for _, ranks, _ in divisions_of(tensor))


def divisions_of(tensor: Any) -> list[tuple[int, int, int]]:
    """The dimensions that are divided, each with the number of parts and the stride of parts that follow each other (1:
    they do). One dimension may be divided twice."""
    if not is_shard(tensor):
        return []
    mesh = tensor.device_mesh
    return [
        (place.dim, mesh.size(index), getattr(place, "split_factor", 1))
        for index, place in enumerate(tensor.placements)
        if hasattr(place, "dim")
    ]


def has_several_processes() -> bool:
    """Whether this process trains with others, which add to its gradients after backward has made them."""
    import torch

    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
