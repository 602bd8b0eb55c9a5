"""Finds the cross entropies that a model computes in its own forward.

Models call `torch.nn.functional.cross_entropy`, through a loss function of their library or a module
that they build for the call. A torch function mode sees all these calls, so nothing on the model or in
torch is replaced. The profiler marks each call for the planner, with the linear layer whose unchanged
output it takes. The executor computes them with the exact or the chunked loss head if the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from ..base.modes import FUNCTION, begin_below, leave, modes_on, stack_functions
from .lazy_logits import LazyLogits, can_defer, deferred, keeps_rows, with_values
from .loss_head import is_supported

__all__ = ["CrossEntropy", "LossMode", "chunked_head", "exact_head", "marking"]


class CrossEntropy(NamedTuple):
    """One call of cross entropy over rows of logits, with its arguments."""

    logits: torch.Tensor
    labels: torch.Tensor
    ignore_index: int
    reduction: str
    label_smoothing: float
    call: Callable[[], torch.Tensor]
    """Runs the call in torch."""


class LossTracer(Protocol):
    """The methods of a tracer that `marking()` calls; see `memscale.tracing.tracer.LiveTracer`."""

    def loss(self, logits: torch.Tensor) -> int: ...

    def head_used(self, head: int, loss: int) -> None: ...

    def loss_ended(self, loss: int, logits: torch.Tensor, value: torch.Tensor) -> None: ...

    def head(self, logits: torch.Tensor, hidden: torch.Tensor) -> int: ...


class LossMode(TorchFunctionMode):
    """Passes cross entropies over rows with class labels to `compute`, while the mode is on.

    It acts on one thread, from `start()` to `stop()`; other modes may begin and end in between. Every function of torch
    costs 3 us more while a function mode is on, so it pauses in layers, whose losses are never computed here. torch
    computes cross entropies with class weights, with probabilities as labels or with more dimensions, and on a GPU
    those that `is_supported` excludes.
    """

    def __init__(self, compute: Callable[[CrossEntropy], torch.Tensor]) -> None:
        super().__init__()
        self._compute = compute
        self._paused_at: int | None = None

    def start(self) -> None:
        """Turns the mode on."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Turns the mode off. Modes that began later stay on. A second call does nothing."""
        self._paused_at = None
        leave(self)

    def pause(self) -> None:
        """Takes the mode off until `resume()`, if no other mode began later."""
        _, pop, _ = stack_functions(FUNCTION)
        modes = modes_on(FUNCTION)
        if modes and modes[-1] is self:
            pop()
            self._paused_at = len(modes) - 1

    def resume(self) -> None:
        """Ends a pause. Modes that began in it and are still on stay inside."""
        if self._paused_at is None:
            return
        length, _, push = stack_functions(FUNCTION)
        if length() == self._paused_at:
            push(self)
        else:
            begin_below(self)
        self._paused_at = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.cross_entropy:
            found = _rows_of(args, kwargs or {})
            if found is not None:
                return self._compute(found)
        return func(*args, **kwargs) if kwargs else func(*args)


def _rows_of(args: tuple[Any, ...], kwargs: dict[str, Any], kinds: tuple[type, ...] = ()) -> CrossEntropy | None:
    """The arguments of a call over rows with class labels; None for any other call."""
    given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    logits: Any = given.get("input")
    labels: Any = given.get("target")
    plain = type(logits) in (kinds or _TENSORS) and type(labels) in _TENSORS
    if not plain or logits.dim() != 2 or labels.dim() != 1 or labels.is_floating_point():
        return None
    if any(given.get(name) is not None for name in ("weight", "size_average", "reduce")):
        return None
    if not logits.is_floating_point() or not logits.requires_grad or not torch.is_grad_enabled():
        return None
    if not is_supported(logits, given.get("label_smoothing", 0.0)):
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


# The chunked head supports these reductions, and logits of these types.
_SUMMED = ("mean", "sum")
_WIDE = (torch.float32, torch.float64)


class _Marking(LossMode):
    """Reports each cross entropy to the tracer and lets torch compute it. If only views and casts lie between
    a linear layer and the cross entropy, the layer is reported with it."""

    def __init__(self, tracer: LossTracer) -> None:
        heads = WeakIdKeyDictionary()

        def mark(found: CrossEntropy) -> torch.Tensor:  # a method would put tensors of the trace into a cycle
            number = tracer.loss(found.logits)
            head = heads.get(found.logits)
            if head is not None and found.reduction in _SUMMED and found.logits.dtype in _WIDE:
                tracer.head_used(head, number)
            value = found.call()
            tracer.loss_ended(number, found.logits, value)
            return value

        super().__init__(mark)
        self._tracer = tracer
        self._heads = heads

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        operands = can_defer(args, kwargs) if func is F.linear else None
        made = super().__torch_function__(func, types, args, kwargs)
        if operands is not None:
            self._heads[made] = self._tracer.head(made, operands.hidden)
        elif self._knows(args) and keeps_rows(func, args, kwargs, args[0], made):
            self._heads[made] = self._heads[args[0]]
        return made

    def _knows(self, args: tuple[Any, ...]) -> bool:
        return bool(args) and isinstance(args[0], torch.Tensor) and args[0] in self._heads


def marking(tracer: LossTracer) -> LossMode:
    """A mode that marks for the planner the losses that a loss head could compute."""
    return _Marking(tracer)


def exact_head(is_wanted: Callable[[], bool]) -> LossMode:
    """A mode that computes cross entropies row by row, if `is_wanted` says so at the call."""
    from . import cross_entropy

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


class _Chunking(LossMode):
    """Defers linear layers whose output may be logits. If a cross entropy takes such an output unchanged, it is
    computed by chunks. The exact head computes the others."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        exact = exact_head(is_wanted)
        super().__init__(exact._compute)
        self._is_wanted = is_wanted

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and self._is_wanted():
            operands = can_defer(args, kwargs)
            if operands is not None:
                return deferred(operands)
        if func is F.cross_entropy:
            loss = _by_chunks(args, kwargs) if self._is_wanted() else None
            if loss is not None:
                return loss
            args, kwargs = with_values(args), with_values(kwargs)
        return super().__torch_function__(func, types, args, kwargs)


def _by_chunks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The cross entropy of deferred logits; None if it needs the logits."""
    from . import linear_cross_entropy

    logits = kwargs.get("input", args[0] if args else None)
    if type(logits) is not LazyLogits or logits.product.is_made:
        return None
    found = _rows_of(args, kwargs, (LazyLogits,))
    if found is None or found.reduction not in _SUMMED or logits.dtype not in _WIDE:
        return None
    hidden, weight, bias = logits.product.check()
    with logits.product.autocast():
        return linear_cross_entropy(
            hidden.reshape(-1, hidden.shape[-1]),
            weight,
            found.labels,
            bias,
            ignore_index=found.ignore_index,
            label_smoothing=found.label_smoothing,
            num_items_in_batch=None if found.reduction == "mean" else 1,
        )


def chunked_head(is_wanted: Callable[[], bool]) -> LossMode:
    """A mode that computes loss and gradients by chunks of tokens, without the logits, if `is_wanted` says so at
    the call. Any other use of the logits computes them."""
    return _Chunking(is_wanted)
