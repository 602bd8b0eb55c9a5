"""Runs a layer again in backward, to recompute the tensors that its forward did not keep.

A record is made before the layer's forward. The handles of the tensors that autograd
saved in the forward keep it alive. C knows which tensors are needed, receives them while
the replay saves them, compares them with those of the forward, and stops the replay when
none is missing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..base.arguments import Arguments
from ..base.aside import replaying
from ..base.environment import Environment, leave_inference_mode
from ..base.walk import first_output
from ..errors import IntegrationError

if TYPE_CHECKING:
    from ..techniques.tiles import Tiles
    from .module_state import LayerState

__all__ = ["ReplayRecord", "replay"]


class ReplayRecord:
    """Everything that is needed to repeat one call of a layer."""

    __slots__ = (
        "__weakref__",
        "arguments",
        "before",
        "environment",
        "lock",
        "module",
        "name",
        "nesting",
        "region",
        "state",
        "tiles",
    )

    def __init__(
        self,
        layer: LayerState,
        module: torch.nn.Module,
        arguments: Arguments,
        lock: threading.RLock,
        tiles: Tiles | None,
    ) -> None:
        self.name = layer.name
        self.module = module
        self.arguments = arguments
        self.environment = Environment()
        self.state = layer.take(module, self.environment.modes)
        self.lock = lock
        self.tiles = tiles
        self.before: ReplayRecord | None = None  # the layer whose output is the first argument
        self.nesting = 0  # as in technique.h; 0: the replay of `before` itself gives the argument
        self.region: weakref.ref[Any] | None = None  # the region of this call, once it has one

    @classmethod
    def take(
        cls,
        layer: LayerState,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lock: threading.RLock,
        tiles: Tiles | None = None,
    ) -> ReplayRecord | None:
        """The record of a call that is about to be made; None if it can't be repeated. If `tiles` is
        given, the replay runs in tiles, too."""
        arguments = Arguments.freeze(args, kwargs)
        if arguments is None or not arguments.has_tensors:
            return None
        return cls(layer, module, arguments, lock, tiles)

    def join(self, before: ReplayRecord, nesting: int) -> None:
        """Drops the first argument, because the call of `before` returned it. `nesting` comes from
        the region's technique."""
        self.before = before
        self.nesting = nesting
        self.arguments.drop_first()

    def _bring_first(self) -> None:
        """Recomputes the first argument, and those of all layers that are replayed together with this one."""
        joined = [self]
        while joined[-1].arguments.lacks_first and joined[-1].nesting == 0 and joined[-1].before is not None:
            joined.append(joined[-1].before)
        while joined[-1].arguments.lacks_first and joined[-1].before is not None:
            joined[-1]._run_up_to()
        for record, before in zip(reversed(joined[:-1]), reversed(joined), strict=False):
            record.arguments.put_first(before._replayed(), record.name)

    def _run_up_to(self) -> None:
        """Runs earlier layers, from the nearest that has its first argument up to the last layer of the
        least nesting, which may be this one. Only arguments of that nesting are kept."""
        lacking = [self]
        before = self.before
        while before is not None and before.arguments.lacks_first and before.before is not None:
            lacking.append(before)
            before = before.before
        nesting = min(record.nesting for record in lacking if record.nesting > 0)
        while lacking[0].nesting != nesting:
            del lacking[0]
        for record in reversed(lacking):
            source = record.before
            if source is None:
                return
            record.arguments.put_first(source.give(), record.name)
            if source is not before and source.nesting != nesting:
                source.arguments.drop_first()

    def _replayed(self) -> torch.Tensor:
        """Repeats the whole call: recomputes its missing saved tensors and returns its first result."""
        region = self.region() if self.region is not None else None
        if region is None or region.missing == 0:
            return self.give()
        first = first_output(self._call(region, True))
        if first is None:
            raise _no_tensor(self.name)
        return first.detach()

    def give(self) -> torch.Tensor:
        """Repeats the call and returns its first result; keeps nothing else of it.

        Raises:
            IntegrationError: the call returns no tensor this time.
        """
        first: torch.Tensor | None = self._watched(self._give)
        if first is None:
            raise _no_tensor(self.name)
        return first.detach()

    def _give(self, undo: Any) -> torch.Tensor | None:
        leave_inference_mode(undo)  # before tensors of arguments are made
        args, kwargs = self.arguments.thaw(self.name, _fetch)
        self._put(undo)
        # Grad mode is on as in forward, because torch may choose other kernels without it. The
        # graph keeps what it saves, because the layer may differentiate inside itself. The graph
        # is released as soon as this returns.
        undo.own_hooks()
        return first_output(self.environment.call(self.module, *args, **kwargs))

    def _put(self, undo: Any) -> None:
        """Restores the state before the call; `undo` puts the present state back."""
        left = self.environment.put(undo)
        self.state.put(undo, left)
        if self.tiles is not None:
            self.tiles.put(undo)

    def run(self, region: Any) -> None:
        """Repeats the call, for the saved tensors that `region` is missing."""
        self._bring_first()
        self._call(region, False)

    def _call(self, region: Any, whole: bool) -> Any:
        """Repeats the call. If `whole`, it runs to its end and its result is returned; otherwise it
        may stop as soon as nothing is missing."""
        return self._watched(self._capture, region, whole)

    def _watched(self, run: Callable[..., Any], *args: Any) -> Any:
        """Calls `run(undo, *args)`. If it is one of the layer's first replays, a witness looks for effects that `run`
        leaves. They are undone, and the layer is not recomputed again."""
        return _core.guarded(self.state.watched, run, *args) if self.state.is_watched() else _core.guarded(run, *args)

    def _capture(self, undo: Any, region: Any, whole: bool) -> Any:
        leave_inference_mode(undo)
        args, kwargs = self.arguments.thaw(self.name, _fetch)
        result = None
        self._put(undo)
        undo.later(region.abandon_replay)
        region.begin_replay(whole)
        failed = True
        try:
            result = self.environment.call(self.module, *args, **kwargs)
            failed = False
        except _core.ReplayStop:
            failed = False
        finally:
            region.end_replay(failed)
        return result


def _no_tensor(layer: str) -> IntegrationError:
    return IntegrationError(f"layer {layer}: it gave a tensor in forward and none when it ran again")


def _fetch(handle: Any) -> torch.Tensor:
    return _core.unpack_input(handle)


def replay(undo: Any, region: Any) -> None:
    """Called from C when a saved tensor of a recomputed layer is asked for.

    Raises:
        IntegrationError: the replay saved other tensors than the forward.
    """
    record = region.payload
    undo.hold(record.lock)
    if region.missing == 0:
        return  # another thread has recomputed them meanwhile
    replaying(undo)
    record.run(region)
