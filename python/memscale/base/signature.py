"""Names a forward by the facts that a plan depends on: shapes, types and plain values of its arguments.

Graphs and plans are stored under these names, and `ms_signature_covers()` in C compares them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..device import AUTOCAST_KINDS, kind_of
from .walk import is_training, parameters_of

__all__ = [
    "Signatures",
    "describe_arguments",
    "input_signature",
    "is_full_mask",
    "is_unread_mask",
    "resized_arguments",
]

_SIZES = re.compile(r"\[([\d,]*)\]")
_LETTERS = str.maketrans("0123456789", "ghijklmnop")  # numbers may be left out of a signature


def input_signature(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The name of a forward, equal for forwards that share a plan. It states the mode of the model, the
    shapes, dtypes and plain values of the arguments, and autocast."""
    mode = "train" if is_training(model) else "eval"
    return f"{mode}: {describe_arguments(args, kwargs)}"


class Signatures:
    """Names the forwards of one model. A script may unfreeze layers, or freeze one part while it trains the other: the
    same inputs then leave other tensors for backward, so that the name says that other parameters are trained."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._first = _trained(model)

    def of(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """`input_signature()`, with a mark if the parameters that are trained are not those at first."""
        signature, trained = input_signature(model, args, kwargs), _trained(model)
        if trained == self._first:
            return signature
        return signature + f",trained={zlib.crc32(bytes(trained)):x}".translate(_LETTERS)


def _trained(model: torch.nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in parameters_of(model)]


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
    if isinstance(value, torch.Tensor) and value.is_nested:  # some have no shape
        return f"{name}:nested {_dtype_name(value.dtype)}[{value.numel()}]"
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


def resized_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], signature: str
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Arguments whose tensors have the sizes that `signature` names, none of them smaller; the last rows are
    repeated. None if an argument is an object that may hold further tensors.

    Args:
        signature: a signature with one bracket for each tensor of these arguments, in the order of `input_signature()`.
    """
    shapes = iter([tuple(map(int, sizes.split(","))) if sizes else () for sizes in _SIZES.findall(signature)])
    try:
        return tuple(_resized(value, shapes) for value in args), {
            key: _resized(value, shapes) for key, value in kwargs.items()
        }
    except (TypeError, StopIteration):
        return None


def _resized(value: Any, shapes: Iterator[tuple[int, ...]]) -> Any:
    if isinstance(value, torch.Tensor):
        return _resized_tensor(value, next(shapes))
    if type(value) is dict:
        return {key: _resized(item, shapes) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_resized(item, shapes) for item in value])
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__} may hold tensors")


def _resized_tensor(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) != tensor.dim() or any(new < old for new, old in zip(shape, tensor.shape, strict=True)):
        raise TypeError("the sizes belong to another tensor")
    if shape == tensor.shape:
        return tensor
    larger = tensor.detach()
    for dim, (new, old) in enumerate(zip(shape, tensor.shape, strict=True)):
        if new > old:
            larger = larger.index_select(dim, torch.arange(new, device=tensor.device).clamp_(max=old - 1))
    return larger.requires_grad_(tensor.requires_grad)


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
