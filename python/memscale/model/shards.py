"""Models with parameters that FSDP2 (`fully_shard`) has divided among ranks, and their trace.

A trace sees every parameter as a whole, as a layer does while it runs. The hooks that gather and divide
parameters do not run in a trace. The profiler and the session of several ranks use this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["has_shards", "is_shard", "silence_gathering"]

_HOME = "torch.distributed.fsdp"


def has_shards(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` manages any module of the model."""
    import torch

    fsdp = getattr(torch.distributed, "fsdp", None)
    managed = getattr(fsdp, "FSDPModule", None)
    return managed is not None and any(isinstance(module, managed) for module in model.modules())


def is_shard(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one rank's part of a parameter, a `DTensor`, which has the shape of the whole."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def silence_gathering(model: torch.nn.Module) -> None:
    """Removes FSDP's hooks from the modules; the caller's snapshot restores them."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if _is_of_fsdp(hook)]:
                del hooks[key]


def _is_of_fsdp(hook: Any) -> bool:
    owner = getattr(hook, "__self__", None)
    return any((getattr(thing, "__module__", None) or "").startswith(_HOME) for thing in (hook, type(owner)))
