"""Keeps memscale's dispatch modes from changing results.

Some of torch's composite functions compute in another way, with other last bits, while any dispatch mode is on
(`isTensorSubclassLike` in ATen). `Without` sees the calls of these functions and takes one mode of ours off for
each. A mode of the user's stays on, because it has the same effect without memscale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .modes import DISPATCH, begin_below, leave, without

__all__ = ["Without"]


class Without(TorchFunctionMode):
    """Takes `mode` off while one of these functions runs, between `start()` and `stop()`, on one thread."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        super().__init__()
        self._mode = mode
        self.is_off = False
        """Whether `mode` is off now."""

    def start(self) -> None:
        """Turns the function mode on. A mode of the caller's that is already on may end before `stop()`."""
        begin_below(self)

    def stop(self) -> None:
        """Turns it off. Modes that began later stay on. A second call does nothing."""
        leave(self)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        is_affected = _AFFECTED.get(func)
        if is_affected is None or not is_affected(args, kwargs):
            return func(*args, **kwargs)
        with without(DISPATCH, lambda mode: mode is self._mode):
            self.is_off = True
            try:
                return func(*args, **kwargs)
            finally:
                self.is_off = False


def _always(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return True


def _has_two_batches(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A product of three-dimensional tensors, one of which is repeated along the batch: it is folded into a matrix."""
    found = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.dim() == 3]
    return len(found) == 2 and found[0].shape[0] != found[1].shape[0]


def _smooths_with_weights(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A cross entropy with weights of classes and label smoothing: it sums the weights in another order."""
    weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
    return weight is not None and bool(kwargs.get("label_smoothing", args[7] if len(args) > 7 else 0.0))


def _table() -> dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], bool]]:
    """The functions, each with the condition under which a mode changes its result. Singular values and eigenvalues
    are computed with their vectors under a mode, and several norms and inverses are computed from them."""
    tensor, linalg = torch.Tensor, torch.linalg
    products = [torch.matmul, tensor.matmul, tensor.__matmul__, tensor.__rmatmul__, linalg.matmul]
    spectral = [
        *(linalg.svdvals, linalg.eigvals, linalg.eigvalsh, linalg.cond, linalg.norm, linalg.matrix_norm),
        *(linalg.matrix_rank, linalg.pinv, linalg.lstsq, torch.pinverse, tensor.pinverse),
        *(torch.norm, tensor.norm, torch.nuclear_norm),
    ]
    return {
        F.cross_entropy: _smooths_with_weights,
        **dict.fromkeys(products, _has_two_batches),
        **dict.fromkeys(spectral, _always),
    }


_AFFECTED = _table()
