"""The locks and messages that the executors of one model share. A model on several devices has an executor for each.

A model on one device has an executor alone, whose `Siblings` has nobody else.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

__all__ = ["Siblings"]

# A thread that must plan waits this long for forwards on other threads to end.
_ALONE_SECONDS = 10.0


class _Executor(Protocol):
    """The messages of a sibling to an `Executor`."""

    def hear_of_backward(self) -> None: ...


class _LayerCalls(Protocol):
    """The messages of a sibling to a `LayerCalls`."""

    def sibling_enters(
        self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def sibling_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...


class Siblings:
    """The locks that all executors of a model take, and these executors, which it does not keep alive.

    Attributes:
        replay_lock: held while a layer runs again or saved tensors are made again. Both put states of the process in
            place, such as the generators', and autograd runs each device's backward on a thread of its own.
        planning: held while a plan is made, which swaps the model's tensors for a moment.
    """

    def __init__(self) -> None:
        self.replay_lock = threading.RLock()
        self.planning = threading.Condition(threading.RLock())
        self._forwards: set[int] = set()  # threads inside the model's forward; guarded by `planning`
        self._executors: list[weakref.ref[_Executor]] = []
        self._layer_calls: list[weakref.ref[_LayerCalls]] = []

    def add(self, executor: _Executor, calls: _LayerCalls) -> None:
        """An executor of the model is made."""
        self._executors.append(weakref.ref(executor))
        self._layer_calls.append(weakref.ref(calls))

    def executors_beside(self, executor: _Executor) -> Iterator[_Executor]:
        """The others."""
        return (other for known in self._executors if (other := known()) is not None and other is not executor)

    def calls_beside(self, calls: _LayerCalls) -> Iterator[_LayerCalls]:
        """The others' `LayerCalls`. Asked at every call of a layer."""
        if len(self._layer_calls) == 1:
            return iter(())
        return (other for known in self._layer_calls if (other := known()) is not None and other is not calls)

    def forward_begins(self) -> None:
        """This thread, which holds `planning`, is about to enter the model's forward."""
        self._forwards.add(threading.get_ident())

    def forward_ended(self) -> None:
        """This thread has left the model's forward."""
        with self.planning:
            self._forwards.discard(threading.get_ident())
            self.planning.notify_all()

    def wait_until_alone(self) -> bool:
        """Waits until no other thread is inside the model's forward; False if that takes too long. This thread holds
        `planning`."""

        def is_alone() -> bool:
            others = self._forwards & sys._current_frames().keys()  # a thread may have ended inside
            return not others - {threading.get_ident()}

        return self.planning.wait_for(is_alone, _ALONE_SECONDS)
