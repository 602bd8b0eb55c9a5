"""Walks over values: finds and replaces tensors in arguments, finds the leaves under a result, a tensor's
version, the loss among a model's outputs, and a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from .. import _core

__all__ = [
    "first_output",
    "functions_of",
    "is_accumulation",
    "is_training",
    "leaves_of",
    "loss_of",
    "mapped",
    "parameters_of",
    "plain_leaves",
    "shape_of",
    "stored_tensors",
    "tensors_of",
    "version_of",
]


def is_training(module: Any) -> bool:
    """Whether a module is in training mode. One without the attribute `training` always is, as torch's own layers take
    it: a class may delete it, or never set it."""
    return bool(getattr(module, "training", True))


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments or results, also in lists and tuples; or `values` itself if it is
    a tensor."""
    if isinstance(values, torch.Tensor):
        yield values
        return
    if not isinstance(values, Iterable) or isinstance(values, str):
        return
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)


def mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """`value` with each item of `kind` replaced by `change(item)`, also in lists, tuples and dictionaries."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(item, kind, change) for item in value)
    if type(value) is dict:
        return {key: mapped(item, kind, change) for key, item in value.items()}
    return value


def stored_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that have the bytes of one: those inside a wrapper (DTensor, a quantized tensor), else itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        inner = getattr(tensor, name)
        if isinstance(inner, torch.Tensor):
            yield from stored_tensors(inner)


def functions_of(result: torch.Tensor) -> Iterator[Any]:
    """The autograd functions that backward from `result` would call, each once."""
    seen: set[Any] = set()
    waiting: list[Any] = [result.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        yield function
        waiting.extend(inner for inner, _ in function.next_functions)


def is_accumulation(function: Any) -> bool:
    """Whether an autograd function adds to the gradient of a leaf, its `variable`. The class is checked, because
    a user's own functions may have an attribute of that name."""
    return type(function).__name__ == "AccumulateGrad"


def leaves_of(result: torch.Tensor) -> Iterator[torch.Tensor]:
    """The leaf tensors that receive gradients in backward from `result`."""
    for function in functions_of(result):
        if is_accumulation(function):
            yield function.variable


def plain_leaves(value: Any) -> Iterator[Any]:
    """Leaves of nested lists, tuples and dictionaries, in order.

    Tensors, unknown objects and all other values are leaves.
    """
    if isinstance(value, dict):
        for item in value.values():
            yield from plain_leaves(item)
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        for item in value:
            yield from plain_leaves(item)
    else:
        yield value


def first_output(output: Any) -> torch.Tensor | None:
    """The first leaf of a forward's result, if it is a tensor."""
    first = next(plain_leaves(output), None)
    return first if isinstance(first, torch.Tensor) else None


def version_of(value: Any) -> int | None:
    """A tensor's version; None if it has none (inference tensors, other objects)."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return None
    return value._version


def shape_of(tensor: torch.Tensor) -> torch.Size:
    """A tensor's shape. A nested tensor of the strided layout has none, and counts as a vector."""
    if tensor.is_nested and tensor.layout is torch.strided:
        return torch.Size([tensor.numel()])
    return tensor.shape


def loss_of(output: Any) -> torch.Tensor | None:
    """The model's own loss: `loss` of a mapping or object, or the first 0-dim output."""
    candidates: list[Any] = [output]
    if isinstance(output, Mapping):
        candidates = [output.get("loss")]
    elif isinstance(output, (list, tuple)):
        candidates = [getattr(output, "loss", None), *output]
    elif not isinstance(output, torch.Tensor):
        candidates = [getattr(output, "loss", None)]
    for value in candidates:
        if isinstance(value, torch.Tensor) and value.dim() == 0 and value.requires_grad:
            return value
    return None


def parameters_of(module: torch.nn.Module, with_buffers: bool = False) -> list[torch.Tensor]:
    """The parameters of `module` and all modules in it, each once, and their buffers if asked for."""
    try:
        return _core.module_tensors(module, with_buffers)
    except TypeError:  # a scripted module keeps them elsewhere
        return [*module.parameters(), *(module.buffers() if with_buffers else ())]
