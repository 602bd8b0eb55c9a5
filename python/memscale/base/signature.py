"""Names a forward by the facts that a plan depends on: shapes, types and plain values of its arguments.

Graphs and plans are stored under these names, and `ms_signature_covers()` in C compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..device import AUTOCAST_KINDS, kind_of

__all__ = ["describe_arguments", "input_signature", "is_full_mask", "is_unread_mask"]


def input_signature(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The name of a forward, equal for forwards that share a plan. It states the mode of the model, the
    shapes, dtypes and plain values of the arguments, and autocast."""
    mode = "train" if model.training else "eval"
    return f"{mode}: {describe_arguments(args, kwargs)}"


def describe_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Shapes, dtypes and plain values of a forward's arguments as one line.

    Two forwards with equal descriptions allocate the same memory. Values of tensors are left out, except
    that a mask of ones in host memory is marked, because models skip it. `ms_signature_covers()` reads
    the form ``"input_ids:int64[4,512],use_cache=False"``, with numbers as names of positional arguments.
    """
    named = [*((str(index), value) for index, value in enumerate(args)), *kwargs.items()]
    parts = [_describe_value(name, value) for name, value in named if value is not None]
    for device in AUTOCAST_KINDS:
        if torch.is_autocast_enabled(device):
            parts.append(f"autocast={device}:{_dtype_name(torch.get_autocast_dtype(device))}")
    return ",".join(parts)


def _describe_value(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        full = ":ones" if is_full_mask(name, value) else ""
        return f"{name}:{_dtype_name(value.dtype)}[{','.join(map(str, value.shape))}]{full}"
    if isinstance(value, Mapping):
        return ",".join(_describe_value(f"{name}.{key}", item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(_describe_value(f"{name}.{index}", item) for index, item in enumerate(value))
    if isinstance(value, (bool, int, float, str)):
        return f"{name}={value!r}"[:64]
    return f"{name}={type(value).__name__}"


def is_full_mask(name: str, value: Any) -> bool:
    """Whether an argument is a padding mask of ones, in host memory."""
    return _is_padding_mask(name, value) and not is_unread_mask(name, value) and bool((value == 1).all())


def is_unread_mask(name: str, value: Any) -> bool:
    """Whether an argument is a padding mask on an accelerator. Its values are not read, because each
    forward would then wait for all work that is queued there."""
    return _is_padding_mask(name, value) and not kind_of(value.device).is_host


def _is_padding_mask(name: str, value: Any) -> bool:
    if not (isinstance(value, torch.Tensor) and name.endswith("mask") and value.dim() == 2):
        return False
    return not (value.dtype.is_floating_point or value.dtype.is_complex or value.device.type == "meta")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
