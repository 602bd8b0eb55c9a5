"""Sees the cross entropies that a model computes in its own forward.

Models call `torch.nn.functional.cross_entropy`, by way of a loss function of their
library or a module that they build on the spot: a torch function mode sees all of them,
and nothing on the model or in torch is replaced. The profiler marks them for the
planner; the executor computes them with the exact loss head where the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from .tracer import LiveTracer

__all__ = ["CrossEntropy", "LossMode", "exact_head", "marking"]


class CrossEntropy(NamedTuple):
    """One call over rows of logits, with what it was given."""

    logits: torch.Tensor
    labels: torch.Tensor
    ignore_index: int
    reduction: str
    label_smoothing: float
    call: Callable[[], torch.Tensor]
    """The call itself, by torch."""


class LossMode(TorchFunctionMode):
    """While on, cross entropies over rows with class labels go to `compute`.

    On one thread, from `start()` to `stop()`, in any order with other modes. Those that
    have class weights, probabilities for labels or more dimensions are torch's.
    """

    def __init__(self, compute: Callable[[CrossEntropy], torch.Tensor]) -> None:
        super().__init__()
        self._compute = compute

    def start(self) -> None:
        """Begins to look."""
        torch.overrides._push_mode(self)

    def stop(self) -> None:
        """Ends it; modes that were begun later stay on. Nothing happens a second time."""
        above = []
        if not any(mode is self for mode in torch.overrides._get_current_function_mode_stack()):
            return
        while (mode := torch.overrides._pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            torch.overrides._push_mode(mode)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.cross_entropy:
            found = _rows_of(args, kwargs or {})
            if found is not None:
                return self._compute(found)
        return func(*args, **kwargs) if kwargs else func(*args)


def _rows_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CrossEntropy | None:
    """The call's arguments where it is one over rows; None for any other."""
    given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    logits: Any = given.get("input")
    labels: Any = given.get("target")
    plain = type(logits) in _TENSORS and type(labels) in _TENSORS
    if not plain or logits.dim() != 2 or labels.dim() != 1 or labels.is_floating_point():
        return None
    if any(given.get(name) is not None for name in ("weight", "size_average", "reduce")):
        return None
    if not logits.is_floating_point() or not logits.requires_grad or not torch.is_grad_enabled():
        return None
    return CrossEntropy(
        logits,
        labels,
        given.get("ignore_index", -100),
        given.get("reduction", "mean"),
        given.get("label_smoothing", 0.0),
        lambda: F.cross_entropy(*args, **kwargs),
    )


_PARAMETERS = (
    "input",
    "target",
    "weight",
    "size_average",
    "ignore_index",
    "reduce",
    "reduction",
    "label_smoothing",
)


def _plain_tensors() -> tuple[type, ...]:
    from torch._subclasses.fake_tensor import FakeTensor

    return (torch.Tensor, FakeTensor)


_TENSORS = _plain_tensors()


def marking(tracer: LiveTracer) -> LossMode:
    """A mode that tells the tracer of each; torch computes them."""

    def compute(found: CrossEntropy) -> torch.Tensor:
        number = tracer.loss(found.logits)
        value = found.call()
        tracer.loss_ended(number, found.logits, value)
        return value

    return LossMode(compute)


def exact_head(is_wanted: Callable[[], bool]) -> LossMode:
    """A mode that computes them row by row, wherever `is_wanted` says so at that moment."""
    from ..techniques import cross_entropy

    def compute(found: CrossEntropy) -> torch.Tensor:
        if not is_wanted():
            return found.call()
        return cross_entropy(
            found.logits,
            found.labels,
            ignore_index=found.ignore_index,
            reduction=found.reduction,
            label_smoothing=found.label_smoothing,
        )

    return LossMode(compute)
