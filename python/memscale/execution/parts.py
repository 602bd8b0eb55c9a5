"""Notices steps of a model whose own forward the loop doesn't call.

An agent runs through `get_value`, an autoencoder through `encode` and `decode`, a backbone and a head are called one
after the other, a submodule trains alone. Such a step can't be traced before it runs, because no single call makes
it: it begins with the first call of a layer and ends with the optimizer. It is profiled while it runs under the
plan of the warm-up; from then on its layers follow a plan. What the loop computes between layers is in the profile, but
can't be moved or recomputed, since no call of memscale's surrounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..base.after_backward import in_backward

if TYPE_CHECKING:
    from .evaluation import Evaluation

__all__ = ["Parts"]


class _Thread(Protocol):
    """The part of the calling thread's state (`OnThread`) that `Parts` reads."""

    @property
    def is_apart(self) -> bool: ...

    @property
    def stands_aside(self) -> bool: ...

    @property
    def is_transformed(self) -> bool: ...


class Parts:
    """Watches the layers of one model for calls outside of its forward, until that runs with gradients.

    Args:
        core: the C side of the execution.
        thread: the executor's state on the calling thread.
        evaluation: learns of calls without gradients.
        begin: called with the layer's name, arguments and keyword arguments when a step begins; returns whether
            memscale acts in it.
    """

    def __init__(
        self,
        core: Any,
        thread: _Thread,
        evaluation: Evaluation,
        begin: Callable[[str, tuple[Any, ...], dict[str, Any]], bool],
    ) -> None:
        self._core = core
        self._thread = thread
        self._evaluation = evaluation
        self._begin = begin
        self._is_open = False
        self.has_begun = False
        """Whether memscale has acted in a step of parts."""

    def layer_called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The layer `name` is about to be called."""
        if self._is_open or self._thread.is_apart or self._core.in_root():
            return
        if not torch.is_grad_enabled():
            self._evaluation.part_begins(args, kwargs)
        elif not (self._thread.stands_aside or self._thread.is_transformed or in_backward()):
            self._is_open = bool(self._begin(name, args, kwargs))
            self.has_begun |= self._is_open

    def forwards_ended(self) -> None:
        """A backward begins, or an optimizer has stepped: the next call begins a step."""
        self._is_open = False
