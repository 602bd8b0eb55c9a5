"""Runs a layer again in backward, to make the tensors that its forward did not keep.

A record is made before the layer's forward and travels with the handles of what
autograd saved in it. The C side says which tensors are needed, takes them as the
replay saves them, compares them with what the forward saved, and stops the replay when
it has them all.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..base.arguments import Arguments
from ..base.aside import replaying
from ..base.environment import Environment
from ..base.walk import first_output
from ..errors import IntegrationError

if TYPE_CHECKING:
    from ..techniques.tiles import Tiles
    from .module_state import LayerState

__all__ = ["ReplayRecord", "replay"]


class ReplayRecord:
    """What is needed to make one call of a layer again."""

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
        self.state = layer.take(module)
        self.environment = Environment()
        self.lock = lock
        self.tiles = tiles
        self.before: ReplayRecord | None = None  # of the layer that makes the first argument again
        self.nesting = 0  # in which run inside a run; 0: that layer's own replay gives it
        self.region: weakref.ref[Any] | None = None  # of this call, once it has one

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
        """The record of a call that is about to be made, with modules in `tiles` if any; None where
        it can't be repeated."""
        arguments = Arguments.freeze(args, kwargs)
        if arguments is None or not arguments.has_tensors:
            return None
        return cls(layer, module, arguments, lock, tiles)

    def join(self, before: ReplayRecord, nesting: int) -> None:
        """The first argument is what the call of `before` gave: it is let go of. `nesting` as in
        `Region.nesting`."""
        self.before = before
        self.nesting = nesting
        self.arguments.drop_first()

    def _bring_first(self) -> None:
        """Makes the first argument again; of layers that run again as one, those of all of them."""
        joined = [self]
        while joined[-1].arguments.lacks_first and joined[-1].nesting == 0 and joined[-1].before is not None:
            joined.append(joined[-1].before)
        while joined[-1].arguments.lacks_first and joined[-1].before is not None:
            joined[-1]._run_up_to()
        for record, before in zip(reversed(joined[:-1]), reversed(joined), strict=False):
            record.arguments.put_first(before._replayed(), record.name)

    def _run_up_to(self) -> None:
        """Runs the layers before, from the nearest that has its first argument, up to the last of
        the least nesting, this one at the latest. Of the arguments made, those of this nesting stay."""
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
        """Makes the call again to its end, for the saved tensors it lacks and for its first result."""
        region = self.region() if self.region is not None else None
        if region is None or region.missing == 0:
            return self.give()
        first = first_output(self._call(region, True))
        if first is None:
            raise _no_tensor(self.name)
        return first.detach()

    def give(self) -> torch.Tensor:
        """Makes the call again for its first result; nothing else of it stays.

        Raises:
            IntegrationError: it gives no tensor now.
        """
        first: torch.Tensor | None = _core.guarded(self._give)
        if first is None:
            raise _no_tensor(self.name)
        return first.detach()

    def _give(self, undo: Any) -> torch.Tensor | None:
        args, kwargs = self.arguments.thaw(self.name, _fetch)
        self._put(undo)
        # With grad, as in forward (without, other kernels may be chosen), and with a graph that
        # holds what it saves: the layer may differentiate inside itself. It goes at once.
        undo.own_hooks()
        return first_output(self.environment.call(self.module, *args, **kwargs))

    def _put(self, undo: Any) -> None:
        """All is as it was before the call, until `undo` puts it back."""
        self.environment.put(undo)
        self.state.put(undo)
        if self.tiles is not None:
            self.tiles.put(undo)

    def run(self, region: Any) -> None:
        """Makes the call again, for the saved tensors that `region` is missing."""
        self._bring_first()
        self._call(region, False)

    def _call(self, region: Any, whole: bool) -> Any:
        """The result, if `whole`; otherwise the call may end as soon as nothing is missing."""
        return _core.guarded(self._capture, region, whole)

    def _capture(self, undo: Any, region: Any, whole: bool) -> Any:
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
        IntegrationError: the layer did not save again what it saved in forward.
    """
    record = region.payload
    undo.hold(record.lock)
    if region.missing == 0:
        return  # another thread made them meanwhile
    replaying(undo)
    record.run(region)
