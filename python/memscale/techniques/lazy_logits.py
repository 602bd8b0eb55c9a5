"""Logits that are computed only if they are used.

If the plan uses the chunked loss head, a model's call of a linear layer returns a `LazyLogits`
(`deferred`), and the model's cross entropy reads the layer's operands from it. Other code can use it as
the logits: the first use computes the layer as torch would have, gradients included. Reading shapes and
types, and operators that keep rows (`keeps_rows`), do not compute it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from ..base.walk import mapped, version_of
from ..device import ACCELERATORS
from ..errors import IntegrationError

__all__ = ["LazyLogits", "Operands", "can_defer", "deferred", "keeps_rows", "with_values"]

_Tensor: Any = torch.Tensor


class Operands(NamedTuple):
    """The linear layer's `hidden` (..., width), `weight` (vocabulary, width) and `bias`."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None


# Views and casts that may keep row i as token i with all its classes.
_SAME_ROWS = (_Tensor.view, _Tensor.reshape, _Tensor.flatten, _Tensor.contiguous, _Tensor.float, _Tensor.to)

# Properties and methods that a stand-in answers without the values.
_PROPERTIES = (
    *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_sparse", "is_meta"),
    *(f"is_{kind.name}" for kind in ACCELERATORS),
)
_FREE = {
    *(getattr(_Tensor, name).__get__ for name in _PROPERTIES),
    *(_Tensor.size, _Tensor.dim, _Tensor.ndimension, _Tensor.numel, _Tensor.nelement, _Tensor.stride),
    *(_Tensor.element_size, _Tensor.is_floating_point, _Tensor.is_complex, _Tensor.is_contiguous, _Tensor.__len__),
}


def can_defer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operands | None:
    """The operands of a call of `torch.nn.functional.linear` that may make logits; None for other calls. Such a
    call takes plain tensors and an input that needs a gradient, and its output is wider than its input."""
    given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    hidden: Any = given.get("input")
    weight: Any = given.get("weight")
    bias: Any = given.get("bias")
    if not (_is_plain(hidden) and _is_plain(weight) and (bias is None or _is_plain(bias))):
        return None
    if hidden.dim() < 2 or weight.dim() != 2 or not weight.shape[0] > weight.shape[1] == hidden.shape[-1]:
        return None
    if not hidden.requires_grad or not torch.is_grad_enabled() or hidden.device != weight.device:
        return None
    if hidden.dtype is not weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        return None
    return Operands(hidden, weight, bias)


def _is_plain(value: Any) -> bool:
    is_known = type(value) in (torch.Tensor, torch.nn.Parameter) or isinstance(value, FakeTensor)
    return is_known and not value.is_nested  # a nested one may have no shape


def keeps_rows(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: torch.Tensor, made: Any) -> bool:
    """Whether ``made = func(*args, **kwargs)`` is a view or cast of `given`, its first argument, with the same
    rows and classes on the same device, in the same type or in fp32."""
    if func not in _SAME_ROWS or not isinstance(made, torch.Tensor) or kwargs.get("copy"):
        return False
    if any(isinstance(value, torch.Tensor) for value in (*args[1:], *kwargs.values())):
        return False
    same = made.shape[-1:] == given.shape[-1:] and made.numel() == given.numel() and made.device == given.device
    return same and made.dtype in (given.dtype, torch.float32)


class _Product:
    """A linear layer's result, computed at its first use and shared by all its stand-ins."""

    def __init__(self, operands: Operands) -> None:
        self.operands: Operands | None = operands
        self.autocast = _autocast_of(operands.hidden.device.type)
        self._versions = [version_of(value) for value in operands]
        self._value: torch.Tensor | None = None

    @property
    def is_made(self) -> bool:
        return self._value is not None

    def check(self) -> Operands:
        """Returns the operands, which must be unchanged since the call.

        Raises:
            IntegrationError: an operand was changed in place.
        """
        operands = self.operands
        if operands is None or self._versions != [version_of(value) for value in operands]:
            raise IntegrationError(
                "the chunked loss head keeps no logits, and they can't be computed any more, because the weight or "
                "its input has changed: use them before optimizer.step(), or set enable_tiling=False"
            )
        return operands

    def value(self) -> torch.Tensor:
        """The result, with its graph."""
        if self._value is None:
            operands = self.check()
            with torch.inference_mode(False), torch.enable_grad(), self.autocast():
                self._value = F.linear(*operands)
        return self._value


def _detached(operands: Operands) -> list[Any]:
    return [value.detach() if value is not None else None for value in operands]


def _autocast_of(device: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


class LazyLogits(torch.Tensor):
    """A stand-in for the logits, or for a view or cast of them. `deferred` makes it."""

    product: _Product
    seen_as: tuple[Callable[[Any], Any], ...]
    _made: torch.Tensor | None

    @staticmethod
    def __new__(cls, like: torch.Tensor, product: _Product, seen_as: tuple[Any, ...]) -> LazyLogits:
        device = product.check().hidden.device
        self = _Tensor._make_wrapper_subclass(cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device)
        made: LazyLogits = self
        made.product, made.seen_as, made._made = product, seen_as, None
        return made

    def made(self) -> torch.Tensor:
        """The logits themselves, with their graph."""
        if self._made is None:
            value = self.product.value()
            with torch.inference_mode(False), torch.enable_grad():
                for step in self.seen_as:
                    value = step(value)
            self._made = value
        return self._made

    def _values(self) -> torch.Tensor:
        """The logits without a graph."""
        if self._made is not None:
            return self._made.detach()
        value = self.product._value
        if value is None:
            with self.product.autocast():
                value = F.linear(*_detached(self.product.check()))
        value = value.detach()
        for step in self.seen_as:
            value = step(value)
        return value

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, LazyLogits):
            if func in _FREE:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            seen = _seen_otherwise(func, first, args[1:], kwargs) if func in _SAME_ROWS else None
            if seen is not None:
                return seen
        return func(*with_values(args), **with_values(kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handles uses that bypass torch's Python functions, such as in a custom autograd function. The
        operator gets the values, and autograd reaches the layer through `_Stand`."""
        return func(*with_values(args, LazyLogits._values), **with_values(kwargs or {}, LazyLogits._values))


def with_values(value: Any, how: Callable[[LazyLogits], torch.Tensor] = LazyLogits.made) -> Any:
    """`value` with each stand-in replaced by the logits, also in lists, tuples and dictionaries."""
    return mapped(value, LazyLogits, how)


class _Stand(torch.autograd.Function):
    """Puts a stand-in into autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, lazy: Callable[[], Any]
    ) -> Any:
        made = lazy()
        ctx.product, ctx.seen_as = made.product, made.seen_as
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Runs the layer again for its gradients."""
        operands = _detached(ctx.product.check())
        asked = [index for index in range(3) if ctx.needs_input_grad[index]]
        for index in asked:
            operands[index].requires_grad_()
        with torch.inference_mode(False), torch.enable_grad(), ctx.product.autocast():
            value = F.linear(*operands)
            for step in ctx.seen_as:
                value = step(value)
        found: list[torch.Tensor | None] = [None] * 4
        given = torch.autograd.grad(value, [operands[index] for index in asked], with_values(gradient))
        for index, made in zip(asked, given, strict=True):
            found[index] = made
        return tuple(found)


def _stand_in(like: torch.Tensor, product: _Product, seen_as: tuple[Any, ...]) -> LazyLogits:
    made: LazyLogits = _Stand.apply(  # type: ignore[no-untyped-call]
        *product.check(), lambda: LazyLogits(like, product, seen_as)
    )
    return made


def _seen_otherwise(func: Any, lazy: LazyLogits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `func` on a stand-in, as another stand-in; None if `func` needs the values, or they exist."""
    if lazy.product.is_made or any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())):
        return None
    if func is _Tensor.to:
        own = lazy.device
        args = tuple(value for value in args if not _is_device(value, own))
        kwargs = {key: value for key, value in kwargs.items() if not (key == "device" and _is_device(value, own))}
        if any(isinstance(value, (str, torch.device)) for value in (*args, *kwargs.values())):
            return None
        if not args and not kwargs:
            return lazy
    like = torch.empty_strided(lazy.shape, lazy.stride(), dtype=lazy.dtype, device="meta")
    made = func(like, *args, **kwargs)
    if made is like:
        return lazy
    if not keeps_rows(func, (like, *args), kwargs, like, made):
        return None
    return _stand_in(made, lazy.product, (*lazy.seen_as, lambda value: func(value, *args, **kwargs)))


def _is_device(value: Any, own: torch.device) -> bool:
    return isinstance(value, (str, torch.device)) and torch.device(value) == own


def deferred(operands: Operands) -> LazyLogits:
    """A stand-in for ``torch.nn.functional.linear(*operands)``, which is not computed."""
    hidden, weight, _ = operands
    dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type) and dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(hidden.device.type)
    like = torch.empty((*hidden.shape[:-1], weight.shape[0]), dtype=dtype, device="meta")
    return _stand_in(like, _Product(operands), ())
