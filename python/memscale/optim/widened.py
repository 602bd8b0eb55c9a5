"""AdamW in fp32 for bf16 parameters on a GPU, with torch's operators.

A state has fp32 moments and the bits that bf16 cannot hold, in the form of the CPU's state (memscale/optimizer.h): 16
low bits an element (`low`) or an fp32 copy (`master`). So states go from one kind of device to the other. An update has
the bits of `torch.optim.AdamW` on an fp32 copy of the parameters and gradients. It widens a piece at a time: copies of
all parameters would take as much as the state.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _core
from ..base.divided import part_of
from . import state as _state
from .memory_update import count_write, gradient_part, run_adamw
from .pieces import Piece, cut

__all__ = ["elements_at_once", "find_room", "flat_parts", "is_widened", "rows_of", "update", "update_rows"]

Row = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor], torch.Tensor]
"""A piece's parameter, gradient, state by name, and step count; the state's count is not changed."""

# fp32 arrays: a copy of the parameters, one of the gradients, and two temporaries of torch's update.
_ARRAYS_AT_ONCE = 4
_NAN, _INFINITY = 0x7FC0, 0x7F80


def is_widened(p: torch.Tensor, group: dict[str, Any], bf16: str | None) -> bool:
    """Whether a parameter, or this rank's part of one, has a state in fp32 though torch's would be bf16."""
    return bf16 is not None and p.dtype is torch.bfloat16 and _state.may_leave_gpu(p, group)


def elements_at_once() -> int:
    """The elements that an update widens at a time: their temporaries fit a buffer of `HostState`."""
    return _core.optimizer_host_elements(_ARRAYS_AT_ONCE, torch.float32.itemsize)


def find_room(params: list[torch.Tensor]) -> None:
    """Allocates and frees what an update of `params` takes beside their states, before anything is updated.

    Raises:
        torch.OutOfMemoryError: the card has no room for it.
    """
    for device in {p.device for p in params if not _state.is_traced(p)}:
        elements = min(elements_at_once(), sum(part_of(p).numel() for p in params if p.device == device))
        torch.empty((_ARRAYS_AT_ONCE, elements), dtype=torch.float32, device=device)


def update(optimizer: torch.optim.AdamW, group: dict[str, Any], params: list[torch.Tensor]) -> None:
    """Updates parameters of `group` whose states are beside them."""
    states = {p: _flat_state(p, optimizer.state[p]) for p in params}
    flat = {p: flat_parts(p) for p in params}
    loads = cut(params, elements_at_once())
    is_traced = _state.is_traced(params[0])
    for load in loads[:1] if is_traced else loads:  # a trace needs the temporaries of one
        values = [{name: value[begin:end] for name, value in states[p].items()} for p, begin, end in load]
        update_rows(optimizer, group, rows_of(optimizer, load, flat, values))
    if not is_traced:
        for p in params:
            optimizer.state[p]["step"] += 1
        count_write(params)


def _flat_state(p: torch.Tensor, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    parts = _state.parts_of(p, values)
    return {name: _state.flat(parts[name]) for name in _state.ARRAYS if name in parts}


def flat_parts(p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of a parameter and of its gradient, in the order of memory."""
    return _state.flat(part_of(p).detach()), _state.flat(gradient_part(p))


def rows_of(
    optimizer: torch.optim.AdamW,
    pieces: list[Piece],
    flat: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor]],
    values: list[dict[str, torch.Tensor]],
) -> list[Row]:
    """The pieces of parameters, whose `flat_parts()` are given, with the state of each in `values`."""
    rows = []
    for (p, begin, end), state in zip(pieces, values, strict=True):
        parameter, gradient = flat[p]
        rows.append((parameter[begin:end], gradient[begin:end], state, optimizer.state[p]["step"]))
    return rows


def update_rows(optimizer: torch.optim.AdamW, group: dict[str, Any], rows: list[Row]) -> None:
    """torch's update of pieces that are alike, in fp32 if their states have the bits that bf16 cannot hold."""
    parameters, gradients, states, steps = (list(column) for column in zip(*rows, strict=True))
    is_wide = bool(_state.EXTRAS & states[0].keys())
    weights = _widened(parameters, states) if is_wide else parameters
    lists = [
        weights,
        _together(gradients, torch.float32) if is_wide else gradients,
        *([state[name] for state in states if name in state] for name in _state.MOMENT_NAMES),
        [step.clone() for step in steps],  # torch counts them up
    ]
    run_adamw(optimizer, group, lists)
    lists[1].clear()
    if is_wide:
        _narrow(weights, parameters, states)


def _together(tensors: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Copies of another type that are parts of one array, so that a kernel can compute all of them."""
    whole = torch.cat(tensors).to(dtype)
    return list(whole.split([tensor.numel() for tensor in tensors]))


def _widened(parameters: list[torch.Tensor], states: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """The fp32 values: parts of a new array, or the masters, which have taken over elements that other code has
    written."""
    sizes = [parameter.numel() for parameter in parameters]
    narrow = torch.cat(parameters)
    if "low" in states[0]:
        return list(_joined(narrow, torch.cat([state["low"] for state in states])).split(sizes))
    masters = [state["master"] for state in states]
    known = torch.cat(masters)
    is_own = known.to(torch.bfloat16).view(torch.int16) == narrow.view(torch.int16)
    torch._foreach_copy_(masters, list(torch.where(is_own, known, narrow.float()).split(sizes)))
    return masters


def _joined(narrow: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    high = narrow.view(torch.int16)
    # As in C, low bits that would make a NaN of a zero or an infinity that other code has written don't count.
    is_strange = ((narrow == 0) & (low < 0)) | (((high & _INFINITY) == _INFINITY) & (low > 0))
    bits = high.to(torch.int32).bitwise_left_shift_(16)
    return bits.add_(low.masked_fill_(is_strange, 0)).view(torch.float32)


def _narrow(weights: list[torch.Tensor], parameters: list[torch.Tensor], states: list[dict[str, torch.Tensor]]) -> None:
    """Rounds fp32 values to the parameters and stores the bits that are left. Spoils what `_joined()` made."""
    if "master" in states[0]:
        torch._foreach_copy_(parameters, weights)
        return
    sizes = [part.numel() for part in weights]
    whole = weights[0].as_strided((sum(sizes),), (1,))  # they are the parts of one array
    is_nan, low = whole.isnan(), whole.view(torch.int32)
    high = low.add(0x8000).bitwise_right_shift_(16).masked_fill_(is_nan, _NAN)
    torch._foreach_copy_([parameter.view(torch.int16) for parameter in parameters], list(high.split(sizes)))
    low.sub_(high.bitwise_left_shift_(16)).masked_fill_(is_nan, 0)
    torch._foreach_copy_([state["low"] for state in states], list(low.split(sizes)))
