"""Models with parameters that are divided among ranks, by FSDP2 (`fully_shard`) or tensor parallelism, and their trace.

What FSDP2 has divided a trace sees as a whole, as a layer does while it runs, in the type of its mixed precision. The
hooks that gather and divide parameters do not run in a trace. A layer of tensor parallelism computes with its part, and
so does its trace. The profiler and the session of several ranks use this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = [
    "graph_part_of",
    "computes_in_parts",
    "computing_types",
    "gathered_layout",
    "has_shards",
    "is_shard",
    "part_of",
    "shard_type",
    "sharding_of",
    "stand_in_for_fsdp",
]

_HOME = "torch.distributed.fsdp"


class Sharding(NamedTuple):
    """How FSDP has divided a model.

    Attributes:
        ranks: among which.
        is_mixed: whether parameters are cast to a smaller type when gathered.
        stays_gathered: whether they stay gathered between forward and backward.
    """

    ranks: int
    is_mixed: bool
    stays_gathered: bool


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
    """Mesh and placements of a parameter that FSDP divides too, while its layer runs; None if it is whole then."""
    mesh, placements, of_fsdp = shard.device_mesh, shard.placements, _dims_of_fsdp(shard)
    names = mesh.mesh_dim_names
    if mesh.ndim <= of_fsdp or names is None:
        return None
    return mesh[tuple(names[of_fsdp:])], placements[of_fsdp:]


def _dims_of_fsdp(shard: Any) -> int:
    """FSDP's are the first dimensions of the mesh: one that shards, with one before it that replicates in hybrid
    sharding."""
    return 2 if shard.placements[0].is_replicate() else 1


def computes_in_parts(model: torch.nn.Module) -> bool:
    """Whether layers compute with parts of parameters, as in tensor parallelism."""
    gathers = has_shards(model)
    return any(is_shard(p) and not (gathers and gathered_layout(p) is None) for p in model.parameters())


def computing_types(model: torch.nn.Module) -> dict[int, torch.dtype]:
    """The types that FSDP's mixed precision casts parameters to when it gathers them, by the parameters' identities."""
    types: dict[int, torch.dtype] = {}
    for module in model.modules():  # a parameter belongs to the innermost module that FSDP manages
        policy = _policy_of(module)
        if policy is not None:
            types.update({id(p): policy.param_dtype or p.dtype for p in module.parameters()})
    return types


def stand_in_for_fsdp(model: torch.nn.Module) -> None:
    """Replaces FSDP's hooks on the modules by those that cast as its mixed precision does; the caller's snapshot
    restores them."""
    for module in model.modules():
        policy = _policy_of(module)
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if _is_of_fsdp(hook)]:
                del hooks[key]
        if policy is not None and policy.param_dtype is not None and policy.cast_forward_inputs:
            module.register_forward_pre_hook(_casting_inputs(policy.param_dtype), prepend=True, with_kwargs=True)
        if policy is not None and policy.output_dtype is not None:
            module.register_forward_hook(_casting_outputs(policy.output_dtype))


def sharding_of(model: torch.nn.Module) -> Sharding:
    """How `fully_shard` has divided the model."""
    shards: list[Any] = [p for p in model.parameters() if is_shard(p)]
    types = computing_types(model)
    groups = [group for module in model.modules() for value in _state_of(module) for group in _groups_in(value)]
    return Sharding(
        ranks=max(shard.device_mesh.size(_dims_of_fsdp(shard) - 1) for shard in shards),
        is_mixed=any(types[id(p)].itemsize < p.element_size() for p in shards if id(p) in types),
        stays_gathered=all(group.post_forward_mesh_info is None for group in groups),
    )


def _state_of(module: torch.nn.Module) -> list[Any]:
    """What FSDP keeps about a module that it manages."""
    for hook in filter(_is_of_fsdp, module._forward_pre_hooks.values()):
        if hasattr(hook, "__self__"):
            return list(vars(hook.__self__).values())
    return []


def _groups_in(value: Any) -> list[Any]:
    """FSDP's groups of parameters: later versions of torch have a list of them for a module."""
    found = value if isinstance(value, list) else [value]
    return [group for group in found if hasattr(group, "post_forward_mesh_info")]


def _policy_of(module: torch.nn.Module) -> Any:
    """FSDP's policy of mixed precision for this module; None if FSDP does not manage it."""
    policy = getattr(sys.modules.get(_HOME), "MixedPrecisionPolicy", ())
    return next((value for value in _state_of(module) if isinstance(value, policy)), None)


def _casting_inputs(dtype: torch.dtype) -> Any:
    return lambda module, args, kwargs: (_cast(args, dtype), _cast(kwargs, dtype))


def _casting_outputs(dtype: torch.dtype) -> Any:
    return lambda module, args, output: _cast(output, dtype)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """The value with its floating-point tensors in `dtype`, also in lists, tuples and dictionaries."""
    import torch

    from ..base.walk import mapped

    return mapped(value, torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _is_of_fsdp(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    return any((getattr(thing, "__module__", None) or "").startswith(_HOME) for thing in (hook, type(owner)))
