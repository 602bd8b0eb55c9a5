"""Runs a layer again in backward, to make the tensors that its forward did not keep.

A record is made before the layer's forward and travels with the handles of what
autograd saved in it. The C side says which tensors are needed, takes them as the
replay saves them, compares them with what the forward saved, and stops the replay when
it has them all.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..errors import IntegrationError
from .arguments import Arguments
from .environment import Environment
from .tracer import first_output

if TYPE_CHECKING:
    from .module_state import LayerState

__all__ = ["ReplayRecord", "is_replaying", "replay"]

_local = threading.local()


def is_replaying() -> bool:
    """Whether this thread is inside a replay: our hooks on its modules do nothing then."""
    return getattr(_local, "depth", 0) > 0


class ReplayRecord:
    """What is needed to make one call of a layer again."""

    __slots__ = ("__weakref__", "arguments", "before", "environment", "lock", "module", "name", "state")

    def __init__(
        self,
        layer: LayerState,
        module: torch.nn.Module,
        arguments: Arguments,
        lock: threading.RLock,
    ) -> None:
        self.name = layer.name
        self.module = module
        self.arguments = arguments
        self.state = layer.take(module)
        self.environment = Environment(arguments.tensors())
        self.lock = lock
        self.before: ReplayRecord | None = None  # of the layer that makes the first argument again

    @classmethod
    def take(
        cls,
        layer: LayerState,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lock: threading.RLock,
    ) -> ReplayRecord | None:
        """The record of a call that is about to be made; None where it can't be repeated."""
        arguments = Arguments.freeze(args, kwargs)
        if arguments is None or not arguments.has_tensors:
            return None
        return cls(layer, module, arguments, lock)

    def join(self, before: ReplayRecord) -> None:
        """The first argument is what the call of `before` gave: it is let go of."""
        self.before = before
        self.arguments.drop_first()

    def _bring_first(self) -> None:
        """Makes the first argument again, and those of the layers before that lack theirs. They
        stay until their layers were run again."""
        lacking = [self]
        while lacking[-1].arguments.lacks_first and lacking[-1].before is not None:
            lacking.append(lacking[-1].before)
        for record, before in zip(reversed(lacking[:-1]), reversed(lacking), strict=False):
            record.arguments.put_first(before.give(), record.name)

    def give(self) -> torch.Tensor:
        """Makes the call again for its first result; nothing else of it stays.

        Raises:
            IntegrationError: it gives no tensor now.
        """
        args, kwargs = self.arguments.thaw(self.name, _fetch)
        # With grad, as in forward (without, other kernels may be chosen), and with a graph that
        # holds what it saves: the layer may differentiate inside itself. It goes at once.
        with self.environment.restored(), self.state.rebound(), torch.enable_grad(), _own_graph():
            first = first_output(self.module(*args, **kwargs))
        if first is None:
            raise IntegrationError(f"layer {self.name}: it gave a tensor in forward and none when it ran again")
        return first.detach()

    def run(self, region: Any) -> None:
        """Makes the call again, for the saved tensors that `region` is missing."""
        self._bring_first()
        args, kwargs = self.arguments.thaw(self.name, _fetch)
        with self.environment.restored(), self.state.rebound(), torch.enable_grad():
            region.begin_replay()
            failed = True
            try:
                self.module(*args, **kwargs)
                failed = False
            except _core.ReplayStop:
                failed = False
            finally:
                region.end_replay(failed)


def _own_graph() -> Any:
    """What is saved belongs to no layer's call, also where this runs inside one."""
    return torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, torch.Tensor.detach)


def _fetch(handle: Any) -> torch.Tensor:
    return _core.unpack_input(handle)


def replay(region: Any) -> None:
    """Called from C when a saved tensor of a recomputed layer is asked for.

    Raises:
        IntegrationError: the layer did not save again what it saved in forward.
    """
    record = region.payload
    with record.lock:
        if region.missing == 0:
            return  # another thread made them meanwhile
        _local.depth = getattr(_local, "depth", 0) + 1
        try:
            record.run(region)
        finally:
            _local.depth -= 1
