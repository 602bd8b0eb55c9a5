"""Calls of compiled layers with other shapes than calls whose replay is still to come.

torch's compiler compiles a layer's code again for a second shape, or for any shape, and looks up the newest code
first. A replay after that may therefore meet other code than its forward, with other last bits and saved tensors.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ..base.arguments import plain_tensors
from ..base.compiler import original_of

if TYPE_CHECKING:
    import torch

    from .replay import ReplayRecord

__all__ = ["CompiledShapes"]


class CompiledShapes:
    """The shapes with which compiled code was called last, and the records of those calls that may still be replayed.
    Equal layers share their code. Used on the thread that runs the forward."""

    def __init__(self) -> None:
        self._last: dict[Any, tuple[Any, weakref.WeakSet[ReplayRecord]]] = {}

    def with_other_shapes(self, module: torch.nn.Module, args: Any, kwargs: Any) -> list[ReplayRecord]:
        """The records that a call of `module` with these arguments would make unrepeatable."""
        shapes, records = self._last.get(_code_of(module), (None, ()))
        return [] if not records or shapes == _shapes_of(args, kwargs) else list(records)

    def add(self, record: ReplayRecord, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Notes a call that is about to be made."""
        code, shapes = _code_of(module), _shapes_of(args, kwargs)
        if code not in self._last or self._last[code][0] != shapes:
            self._last[code] = shapes, weakref.WeakSet()
        self._last[code][1].add(record)


def _code_of(module: torch.nn.Module) -> Any:
    return getattr(type(original_of(module)).forward, "__code__", type(module))


def _shapes_of(args: Any, kwargs: Any) -> Any:
    return [tensor.shape for tensor in plain_tensors((args, kwargs))]
