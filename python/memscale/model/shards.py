"""Models with parameters that are divided among ranks, by FSDP2 (`fully_shard`) or tensor parallelism, and their trace.

What FSDP2 has divided a trace sees as a whole, as a layer does while it runs, in the type of its mixed precision. The
hooks that gather and divide parameters do not run in a trace. A layer of tensor parallelism computes with its part, and
so does its trace. The profiler and the session of several ranks use this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.divided import is_shard

if TYPE_CHECKING:
    import torch

__all__ = [
    "Gathered",
    "Sharding",
    "computes_in_parts",
    "gathered_parameters",
    "has_shards",
    "meshes_of",
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
        is_one_group: whether all are gathered together, and their gradients reduced together.
    """

    ranks: int
    is_mixed: bool
    stays_gathered: bool
    is_one_group: bool


def has_shards(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` manages any module of the model."""
    import torch

    fsdp = getattr(torch.distributed, "fsdp", None)
    managed = getattr(fsdp, "FSDPModule", None)
    return managed is not None and any(isinstance(module, managed) for module in model.modules())


class Gathered(NamedTuple):
    """A parameter that FSDP divides, as its layer sees it.

    Attributes:
        layout: mesh and placements if tensor parallelism divides it too; None if it is whole.
        dtype: the type of FSDP's mixed precision.
    """

    layout: tuple[Any, Any] | None
    dtype: torch.dtype


def gathered_parameters(model: torch.nn.Module) -> dict[int, Gathered]:
    """The parameters that FSDP divides, by their identities while they are divided."""
    found = {}
    for group in _groups_of(model):
        for each in group.fsdp_params:
            shard, dtype = each.sharded_param, group.mp_policy.param_dtype
            found[id(shard)] = Gathered(_layout_in_layer(shard, group), dtype or shard.dtype)
    return found


def _layout_in_layer(shard: Any, group: Any) -> tuple[Any, Any] | None:
    """The dimensions of a parameter's mesh that are not FSDP's. FSDP's are the first ones."""
    of_fsdp, names = group.mesh_info.mesh.ndim, shard.device_mesh.mesh_dim_names
    if shard.device_mesh.ndim <= of_fsdp or names is None:
        return None
    return shard.device_mesh[tuple(names[of_fsdp:])], shard.placements[of_fsdp:]


def computes_in_parts(model: torch.nn.Module) -> bool:
    """Whether layers compute with parts of parameters, as in tensor parallelism."""
    gathered = gathered_parameters(model)
    if any(entry.layout is not None for entry in gathered.values()):
        return True
    return any(is_shard(parameter) and id(parameter) not in gathered for parameter in model.parameters())


def meshes_of(model: torch.nn.Module) -> list[Any]:
    """The meshes of the parameters that are divided among ranks, whether FSDP has gathered them or not."""
    shards: list[Any] = [each.sharded_param for group in _groups_of(model) for each in group.fsdp_params]
    shards.extend(parameter for parameter in model.parameters() if is_shard(parameter))
    return [shard.device_mesh for shard in shards]


def stand_in_for_fsdp(model: torch.nn.Module) -> None:
    """Replaces FSDP's hooks on the modules by those that cast as its mixed precision does; the caller's snapshot
    restores them."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if _is_of_fsdp(hook)]:
                del hooks[key]
    for module, state in _states_of(model):
        policy = state._mp_policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            module.register_forward_pre_hook(_casting_inputs(policy.param_dtype), prepend=True, with_kwargs=True)
        if policy.output_dtype is not None:
            module.register_forward_hook(_casting_outputs(policy.output_dtype))


def sharding_of(model: torch.nn.Module) -> Sharding:
    """How `fully_shard` has divided the model."""
    groups = _groups_of(model)
    return Sharding(
        ranks=max((getattr(group.mesh_info, "shard_mesh_size", 1) for group in groups), default=1),
        is_mixed=any(_narrows(each, group.mp_policy.param_dtype) for group in groups for each in group.fsdp_params),
        stays_gathered=all(group.post_forward_mesh_info is None for group in groups),
        is_one_group=len(groups) == 1,
    )


def _narrows(parameter: Any, dtype: torch.dtype | None) -> bool:
    return dtype is not None and dtype.itemsize < parameter.sharded_param.element_size()


def _states_of(model: torch.nn.Module) -> list[tuple[torch.nn.Module, Any]]:
    """The modules that FSDP manages, and what it keeps about each."""
    managed = getattr(sys.modules.get(_HOME), "FSDPModule", ())
    found: list[tuple[torch.nn.Module, Any]] = []
    for module in model.modules():
        if isinstance(module, managed):
            state: Any = module
            found.append((module, state._get_fsdp_state()))
    return found


def _groups_of(model: torch.nn.Module) -> list[Any]:
    """FSDP's groups of parameters, each once. Later versions of torch have a list of them for a module."""
    groups: dict[int, Any] = {}
    for _, state in _states_of(model):
        found = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
        groups.update({id(group): group for group in found if group is not None})
    return list(groups.values())


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
