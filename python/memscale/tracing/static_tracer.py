"""The tracer of a step under fake tensors, which knows the values of small integer tensors.

Models branch on values that do not depend on data, such as positions that they count themselves and
masks of ones. `StaticTracer` computes the real values of small integer and boolean tensors beside
their fake twins, if they follow from constants alone (or from inputs whose values the profiler
gives). The trace then takes such a branch as the real run does. All other values are unknown, and a
branch on one ends the trace.

Only the profiler uses this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .. import _core
from ..base.walk import tensors_of
from .operand_types import OperandTypes
from .tracer import LiveTracer

__all__ = ["StaticTracer", "know", "libraries_branch_on_values"]

_MOST_ELEMENTS = 1 << 20
_VALUE = "_memscale_value"
_DEVICE = torch.ops.prim.device.default
_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default


def know(twin: torch.Tensor, value: torch.Tensor) -> None:
    """Records the values of a fake tensor. `value` must not change afterwards."""
    setattr(twin, _VALUE, value)


class StaticTracer(LiveTracer):
    """A `LiveTracer` for fake tensors."""

    def __init__(self, model: str, signature: str) -> None:
        super().__init__(model, signature, "static", _kernels())
        self._types = OperandTypes()

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Records the caller's argument that a fake tensor stands for."""
        self._types.add_input(name, tensor)

    def assume_numbers(self) -> None:
        """From now on an unknown number that is read has any value: an optimizer reads its counts of steps, on which
        no size depends."""
        read = torch.ops.aten._local_scalar_dense.default
        self._kernels = {**self._kernels, read: _scalar_or_any}
        self._operators.pop(read, None)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the inherited method does

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # This operator runs thousands of times a step, so it bypasses the fake mode.
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            if self.is_forward and func not in self._kernels:
                self._types.check(func, args, kwargs or {}, ())
            raise
        if self.is_forward and func not in self._kernels:
            self._types.check(func, args, kwargs or {}, tensors_of(result))
        if func is _RECURRENT and not self._paused:
            self._trace.untouched(result[3].untyped_storage()._cdata, _workspace(args)[1])
        if type(result) is FakeTensor and not result.dtype.is_floating_point:
            _follow(func, args, kwargs or {}, result)
        return result


# ---- values -------------------------------------------------------------------------------


def _follow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: FakeTensor) -> None:
    """Computes the result's value if all operands' are known, else forgets it."""
    if result.is_complex() or result.numel() > _MOST_ELEMENTS or torch.Tag.nondeterministic_seeded in func.tags:
        return
    try:
        real_args = tuple(_real(value) for value in args)
        real_kwargs = {key: _real(value) for key, value in kwargs.items()}
        with torch._C._DisableTorchDispatch():
            value = func(*real_args, **real_kwargs)
        if value.shape != result.shape:
            raise _Unknown
        setattr(result, _VALUE, value)
    except Exception:
        _forget(func, args, result)


def _forget(func: Any, args: tuple[Any, ...], result: FakeTensor) -> None:
    """Makes the values unknown of the result, and of every tensor that shares a storage with one that the
    operator wrote to. To reach all of these, the storage of the known values is emptied."""
    for value in args if func._schema.is_mutable else ():
        known = getattr(value, _VALUE, None)
        if known is not None:
            known.untyped_storage().resize_(0)
    if hasattr(result, _VALUE):
        delattr(result, _VALUE)


class _Unknown(Exception):
    """An operand's value is not known."""


def _known(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's value; None if it is not, or no longer, known."""
    value: torch.Tensor | None = getattr(tensor, _VALUE, None)
    if value is None or (value.numel() > 0 and value.untyped_storage().nbytes() == 0):
        return None
    return value


def _real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        known = _known(value)
        if known is None:
            raise _Unknown
        return known
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(map(_real, value))
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _scalar_of(tensor: torch.Tensor) -> Any:
    """`tensor.item()`, for a tensor whose value is known."""
    known = _known(tensor)
    if known is None:
        return torch.ops.aten._local_scalar_dense.default(tensor)
    with torch._C._DisableTorchDispatch():
        return known.item()


def _scalar_or_any(tensor: torch.Tensor) -> Any:
    if _known(tensor) is not None:
        return _scalar_of(tensor)
    return 0.5 if tensor.dtype.is_floating_point else 1  # formulas divide by 1 - x


@contextmanager
def libraries_branch_on_values() -> Iterator[None]:
    """Lets transformers branch on values although the tensors are fake.

    transformers takes a fake tensor for a sign of compilation. It then builds attention masks that a
    real run does not need, of 4 bytes per pair of positions and layer.
    """
    library: Any = sys.modules.get("transformers.utils.import_utils")
    original = getattr(library, "is_fake_tensor", None)
    if original is None:
        yield
        return
    library.is_fake_tensor = _never
    try:
        yield
    finally:
        library.is_fake_tensor = original


def _never(value: Any) -> bool:
    return False


# ---- kernels ------------------------------------------------------------------------------


def _kernels() -> dict[Any, Callable[..., Any]]:
    """Replacements for operators that torch's fake mode would run wrongly.

    The fake kernel of grouped products refuses types that the CPU's real kernel takes. The fake kernel
    of the recurrent layer leaves out the workspace that is saved for backward.
    """
    aten = torch.ops.aten
    return {
        aten._local_scalar_dense.default: _scalar_of,
        aten._grouped_mm.default: _grouped_product,
        _RECURRENT: _recurrent_layer,
    }


def _grouped_product(left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    kernel = torch.ops.aten._grouped_mm.default
    if left.dtype is torch.bfloat16:
        made: torch.Tensor = kernel(left, right, *args, **kwargs)
        return made
    wide: torch.Tensor = kernel(left.bfloat16(), right.bfloat16(), *args, **kwargs)
    return wide.to(left.dtype)


def _recurrent_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    output, hidden, cell, workspace = _RECURRENT(*args)
    return output, hidden, cell, workspace.new_empty(_workspace(args)[0])


_workspaces: dict[tuple[Any, ...], tuple[int, int]] = {}


def _workspace(args: tuple[Any, ...]) -> tuple[int, int]:
    """The bytes of oneDNN's workspace, and how many of them it never touches. Only the library knows them, so
    they are measured in a run on zeros, once per shape."""
    tensors = tuple((tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None for value in args)
    key = (tensors, tuple(str(value) for value in args if not isinstance(value, torch.Tensor)))
    if key not in _workspaces:
        with torch._C._DisableTorchDispatch():
            real = [
                torch.zeros(value.shape, dtype=value.dtype, device="cpu") if isinstance(value, torch.Tensor) else value
                for value in args
            ]
            workspace = _RECURRENT(*real)[3]
            untouched = _core.hostmem_untouched(workspace.data_ptr(), workspace.nbytes)
            _workspaces[key] = (workspace.nbytes, untouched)
    return _workspaces[key]
