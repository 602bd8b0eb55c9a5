"""Writes a model without its weights to a file, which a trial in another process loads.

Large floating-point tensors are stored as shapes and loaded as small random values. Small tensors,
indices and masks are stored with their values. Tensors that are shared stay shared.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

__all__ = ["dump", "load"]

_WHOLE_ELEMENTS = 1 << 14


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() <= _WHOLE_ELEMENTS:
            return None
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
            return None
        is_parameter = isinstance(value, torch.nn.Parameter)
        return (id(value), tuple(value.shape), str(value.dtype), str(value.device), value.requires_grad, is_parameter)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._made: dict[int, Any] = {}

    def persistent_load(self, described: Any) -> Any:
        import torch

        key, shape, dtype, device, requires_grad, is_parameter = described
        if key not in self._made:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=device)
            tensor.normal_(0.0, 0.02)
            if is_parameter:
                tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
            self._made[key] = tensor
        return self._made[key]


def dump(value: Any, file: BinaryIO) -> None:
    """Writes `value` (anything that can be pickled)."""
    _Pickler(file, protocol=5).dump(value)


def load(file: BinaryIO) -> Any:
    """Reads a file that `dump()` wrote."""
    return _Unpickler(file).load()
