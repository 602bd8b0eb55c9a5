"""What hangs on a value: the tensors in an operator's arguments, others in their place, the leaves under a result,
the version of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

__all__ = ["functions_of", "is_accumulation", "leaves_of", "mapped", "tensors_of", "version_of"]


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    """The tensors among an operator's arguments or results, in lists and tuples too; a single one is itself."""
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
    """`value` with what `change` gives wherever it is of `kind`, in lists, tuples and dictionaries too."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(item, kind, change) for item in value)
    if type(value) is dict:
        return {key: mapped(item, kind, change) for key, item in value.items()}
    return value


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
    """Whether an autograd function adds to the gradient of a leaf, its `variable`; those of a user's own may
    have an attribute of that name too."""
    return type(function).__name__ == "AccumulateGrad"


def leaves_of(result: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that backward from `result` would leave gradients on."""
    for function in functions_of(result):
        if is_accumulation(function):
            yield function.variable


def version_of(value: Any) -> int | None:
    """A tensor's version; None where it has none (inference tensors, other objects)."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return None
    return value._version
