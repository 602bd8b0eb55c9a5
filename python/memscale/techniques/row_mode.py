"""Changes the torch calls of a position-wise module while it runs on some of its rows.

Tiles must not change the elements that dropout drops, and must not add gradients to the parameters.
`RowMode` sees the module's calls of torch functions and replaces the parameters by other tensors. It
drops from each tile the elements that dropout over all rows would have dropped.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["RowMode", "WholeMasks"]


class WholeMasks:
    """The dropout masks of one run of a module over all its rows.

    They are drawn for each run as torch draws them, under the random state of the module's call, and kept
    as bools until the run ends.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._masks: list[torch.Tensor] = []
        self._next = 0
        self._part = slice(0, 0)

    def tile(self, part: slice) -> None:
        """The module runs on these rows next."""
        self._part = part
        self._next = 0

    def drop(self, tile: torch.Tensor, p: float) -> torch.Tensor:
        """Applies the module's next dropout to the tile's rows."""
        if self._next == len(self._masks):
            self._masks.append(self._draw(tile, p))
        mask = self._masks[self._next]
        self._next += 1
        if p >= 1.0:
            return tile * 0
        kept = mask[self._part].view(tile.shape).to(tile.dtype)
        return tile * kept.div_(1 - p)

    def _draw(self, tile: torch.Tensor, p: float) -> torch.Tensor:
        rows = tile.new_empty((self._rows, *tile.shape[2:]))
        with torch.no_grad():
            if tile.device.type == "cpu":
                return rows.bernoulli_(1 - p) != 0
            return F.dropout(rows.fill_(1), p) != 0


class RowMode(TorchFunctionMode):
    """Replaces parameters by their twins, and dropout by `masks`, in calls of torch functions.

    Args:
        twins: the twins by the parameters' ids; the parameters must be alive.
        masks: the masks of dropout; None drops nothing.
    """

    def __init__(self, twins: dict[int, torch.Tensor], masks: WholeMasks | None) -> None:
        super().__init__()
        self._twins = twins
        self._masks = masks

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._twins:
            args = tuple(self._twin(value) for value in args)
            kwargs = {name: self._twin(value) for name, value in kwargs.items()}
        if func is F.dropout:
            return self._dropout(*args, **kwargs)
        return func(*args, **kwargs)

    def _twin(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._twins.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(self._twin(item) for item in value)
        return value

    def _dropout(
        self, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p <= 0.0 or self._masks is None:
            return input
        return self._masks.drop(input, p)
