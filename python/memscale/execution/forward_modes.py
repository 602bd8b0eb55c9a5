"""The modes of torch that are on while the root's forward runs: autocast, and the loss head.

The executor begins them at the forward's start and ends them at its end, or when it finds that a forward was broken
off. They belong to the thread that runs the forward: their state is in `OnThread`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..techniques.loss_mode import LossMode
    from .layer_calls import OnThread

__all__ = ["ForwardModes"]


class ForwardModes:
    """Begins and ends the modes of one executor's forwards, on any thread.

    Attributes:
        loss_head: makes the mode in which cross entropies between layers are computed; None leaves them to torch.
    """

    def __init__(self, thread: OnThread) -> None:
        self._thread = thread
        self.loss_head: Callable[[Callable[[], bool]], LossMode] | None = None

    def begin_precision(self, chosen: contextlib.AbstractContextManager[None]) -> None:
        """Enters `chosen` until the end of the root's forward."""
        self._thread.precision = contextlib.ExitStack()
        self._thread.precision.enter_context(chosen)

    def end_precision(self) -> None:
        """Leaves what `begin_precision()` entered on this thread, if anything."""
        precision, self._thread.precision = self._thread.precision, None
        if precision is not None:
            precision.close()

    def begin_losses(self) -> None:
        """Lets the loss head compute cross entropies until the end of the root's forward."""
        self._thread.layer_depth = 0
        if self.loss_head is not None:
            self._thread.losses = self.loss_head(self._is_root_work)
            self._thread.losses.start()

    def end_losses(self) -> None:
        """Leaves cross entropies to torch again."""
        losses = self._thread.losses
        if losses is not None:
            losses.stop()
            self._thread.losses = None

    def end(self) -> None:
        """Ends every mode on this thread."""
        self.end_losses()
        self.end_precision()

    def _is_root_work(self) -> bool:
        """Whether this thread is between layers. Inside a layer the loss head stays off, because a replay of the layer
        must save the same tensors."""
        return self.loss_head is not None and self._thread.layer_depth == 0
