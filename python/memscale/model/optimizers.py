"""Finds the optimizers that update a model.

A script makes its optimizer before its first training forward, and `wrap()` is not given it. The profiler asks here
what will step, instead of assuming the state of an AdamW; the session asks how much of a baseline is state that a
resumed run has already. Nothing is kept and nothing changed.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from .. import _core
from .shards import gathered_parameters, has_shards

if TYPE_CHECKING:
    import torch

__all__ = ["have_8bit_moments", "made_state_bytes", "optimizers_of", "state_tensors", "to_trace"]

# The trace assumes the fp32 state and the temporaries of these.
_ASSUMED = ("torch.optim.adam.Adam", "torch.optim.adamw.AdamW")
# The homes of optimizers that can step on a trace's tensors.
_FOLLOWED = ("torch.optim.", "memscale.optim.")


def optimizers_of(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """The live optimizers that update a parameter of `model`, but none that only passes its steps on to another of
    them, as trainers' do.

    The search reads every object that the garbage collector knows: tens of milliseconds in a process with large
    libraries.
    """
    import torch

    ours = {id(parameter) for parameter in model.parameters()} | gathered_parameters(model).keys()
    alive = [item for item in gc.get_objects() if issubclass(type(item), torch.optim.Optimizer)]
    found = [optimizer for optimizer in alive if not ours.isdisjoint(_parameters(optimizer))]
    inner = {id(optimizer) for optimizer in found}
    return [optimizer for optimizer in found if inner.isdisjoint(map(id, vars(optimizer).values()))]


def to_trace(optimizers: list[torch.optim.Optimizer], model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers whose steps a trace follows: all, if they are torch's or memscale's and each trainable parameter
    is updated by one of them. Empty if the assumption holds for all; if one is somebody else's, whose step may do
    anything; or if FSDP2 divides parameters, which are whole and of another type in a trace."""
    if has_shards(model):
        return []
    parameters = [key for optimizer in optimizers for key in _parameters(optimizer)]
    wanted = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if len(set(parameters)) != len(parameters) or not wanted.issubset(parameters):
        return []
    if not all(type(optimizer).__module__.startswith(_FOLLOWED) for optimizer in optimizers):
        return []
    return [] if all(map(_is_assumed, optimizers)) else optimizers


def have_8bit_moments(optimizers: list[torch.optim.Optimizer]) -> bool:
    """Whether there are optimizers and each is an Adam or AdamW of bitsandbytes or torchao with 8-bit moments. Their
    state is as large as memscale's, in blocks of 256 elements (FP32 below 4096)."""
    return bool(optimizers) and all(map(_has_8bit_moments, optimizers))


def _has_8bit_moments(optimizer: torch.optim.Optimizer) -> bool:
    home, name = type(optimizer).__module__.partition(".")[0], type(optimizer).__name__
    if home == "bitsandbytes":
        return "Adam" in name and getattr(getattr(optimizer, "args", None), "optim_bits", None) == 8
    return home == "torchao" and name in ("Adam8bit", "AdamW8bit")


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors that hold an optimizer's state, of wrappers (DTensor, quantized moments) those inside; none before
    its first step."""
    from ..base.arguments import plain_tensors
    from ..base.walk import stored_tensors

    kept = getattr(optimizer, "state", {})
    return [inner for state in kept.values() for tensor in plain_tensors(state) for inner in stored_tensors(tensor)]


def made_state_bytes(optimizers: list[torch.optim.Optimizer], device: torch.device) -> int:
    """Bytes of the optimizers' state that exist on `device`."""
    tensors = [tensor for optimizer in optimizers for tensor in state_tensors(optimizer)]
    return _core.storage_bytes([tensor for tensor in tensors if tensor.device == device])


def _parameters(optimizer: torch.optim.Optimizer) -> list[int]:
    # An optimizer whose constructor failed has no groups.
    groups = getattr(optimizer, "param_groups", ())
    return [id(parameter) for group in groups for parameter in group["params"]]


def _is_assumed(optimizer: torch.optim.Optimizer) -> bool:
    import torch

    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return (
        kind in _ASSUMED
        and not any(group["amsgrad"] for group in optimizer.param_groups)
        and all(parameter.dtype is torch.float32 for parameter in parameters)
    )
