"""Finds operands of a type that their operator does not accept.

Many fake kernels ignore types; only the real kernels know which types they accept. So the static tracer
tries each combination of operator and types that a caller's input leads to, once, on tensors of one element.
Whether a kernel raises matters; the text of its error does not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from ..base.walk import mapped, tensors_of
from .misfit import Misfit

__all__ = ["OperandTypes"]

_FILLS = (0, 1)

# One element may not fit an operator's other arguments, so operands of up to this many elements in all are
# also tried at full size.
_FEW_ELEMENTS = 1 << 16

_TRUSTING = frozenset(
    {
        torch.ops.aten._ctc_loss,
        torch.ops.aten._embedding_bag,
        torch.ops.aten._embedding_bag_forward_only,
        torch.ops.aten.segment_reduce,
    }
)
"""Operators that take places in memory from an operand's values unchecked: made-up values could crash the process."""


class OperandTypes:
    """The inputs of one trace, the tensors of the same type that follow from them, and the tried combinations."""

    def __init__(self) -> None:
        # By the address of a storage, which a later storage may take; so with a reference to the storage that is meant.
        self._names: dict[int, tuple[weakref.ref[torch.UntypedStorage], str | None]] = {}
        self._tried: set[Any] = set()

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Records that a tensor of the trace stands for the caller's argument `name`."""
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            self._put(tensor, name)

    def check(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Iterable[torch.Tensor]) -> None:
        """Checks an operator after it ran on fake tensors, or refused them.

        Raises:
            Misfit: the real kernel refuses an input in its own type and accepts it in another.
        """
        if not self._names:
            return
        operands = list(tensors_of((*args, *kwargs.values())))
        inputs = [value for value in operands if self._is_input(value)]
        if not inputs:
            return
        types = {value.dtype for value in inputs}
        for result in results:
            if result.layout is torch.strided and result.dtype in types and not self._is_input(result):
                self._put(result, None)
        if func.namespace != "aten" or func.overloadpacket in _TRUSTING:
            return
        if func.is_view or torch.Tag.nondeterministic_seeded in func.tags:
            return
        key = (func, *((value.dtype, value.dim()) for value in operands))
        if key in self._tried or any(value.device.type != "cpu" for value in operands):
            return
        self._tried.add(key)
        with torch._C._DisableTorchDispatch():
            self._try(func, args, kwargs, inputs, operands, True)
            if sum(value.numel() for value in operands) <= _FEW_ELEMENTS:
                self._try(func, args, kwargs, inputs, operands, False)

    def _put(self, tensor: torch.Tensor, name: str | None) -> None:
        storage = tensor.untyped_storage()
        self._names[storage._cdata] = weakref.ref(storage), name

    def _is_input(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        known = self._names.get(tensor.untyped_storage()._cdata)
        return known is not None and known[0]() is not None

    def _name_of(self, tensor: torch.Tensor) -> str:
        """The argument that an input stands for."""
        return self._names[tensor.untyped_storage()._cdata][1] or "what is computed from it"

    def _try(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[torch.Tensor],
        operands: list[torch.Tensor],
        is_small: bool,
    ) -> None:
        refusal = _refusal(func, args, kwargs, {}, is_small)
        if refusal is None:
            return
        for tensor in inputs:
            for other in _other_types(tensor, operands):
                if _refusal(func, args, kwargs, {id(tensor): other}, is_small) is None:
                    found, wanted = _short(tensor.dtype), _short(other)
                    raise Misfit(f"{self._name_of(tensor)} is {found}, but {func.name()} takes {wanted} ({refusal})")


def _other_types(tensor: torch.Tensor, operands: list[torch.Tensor]) -> list[torch.dtype]:
    """Types that the caller may have meant: those of indices and masks, or of another operand. A floating type that
    no operand has is left out, unless all are integers, because its kernels may refuse small shapes."""
    floating = [value.dtype for value in operands if value.dtype.is_floating_point]
    wanted = [*floating, torch.int64, torch.bool]
    if not (floating or tensor.dtype.is_floating_point):
        wanted.append(torch.float32)
    return [dtype for dtype in dict.fromkeys(wanted) if dtype is not tensor.dtype]


def _refusal(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], types: dict[int, torch.dtype], is_small: bool
) -> str | None:
    """The kernel's error for operands of zeros, then of ones; None if it accepts them."""
    said = None
    for fill in _FILLS:

        def filled(value: torch.Tensor, fill: int = fill) -> torch.Tensor:
            size = (1,) * value.dim() if is_small else value.shape
            return torch.full(size, fill, dtype=types.get(id(value), value.dtype))

        try:
            func(*mapped(args, torch.Tensor, filled), **mapped(kwargs, torch.Tensor, filled))
        except Exception as error:
            said = said or " ".join(str(error).split())[:200]
        else:
            return None
    return said


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
