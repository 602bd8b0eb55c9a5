"""Calls of layers in the training forward: begun and ended here, by the hooks.

What a call needs for its layer to run again, or for single tensors of it to be made
again, is taken before it and handed to C, which decides what becomes of each tensor.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..base.aside import is_replaying, is_tracing
from ..base.walk import first_output
from .replay import ReplayRecord
from .tape import Remade, Tape

if TYPE_CHECKING:
    from ..techniques.loss_mode import LossMode
    from ..techniques.tiles import Tiles
    from ..tracing.live_profile import LiveProfile
    from .hooks import LayerHooks
    from .notices import Notices

__all__ = ["LayerCalls", "OnThread"]

# How far up the stack the frame lies that calls a layer's forward: hook callables of
# hooks.py lie in between.
_CALLER = 3

_ASKED_MOST = 64


class OnThread(threading.local):
    """What a thread is in the middle of, of one executor. Nothing where it makes no forward."""

    is_busy = False
    """Inside memscale's own work: what runs meanwhile is no forward of the caller's."""
    caller: Any = None
    """The frame that called the root's forward."""
    precision: contextlib.ExitStack | None = None
    losses: LossMode | None = None
    layer_depth = 0
    tape: tuple[Tape, Any] | None = None
    """The tape of the layer that runs, and its region."""
    record: ReplayRecord | None = None
    """Of the layer that runs, where it is recomputed."""
    before: tuple[Any, int, Any] | None = None
    """Of the recomputed layer that ended last: its first output (weakly), the version of that,
    and its record (weakly)."""

    _has_number = False
    _asked = 0

    @property
    def has_number(self) -> bool:
        """Whether torch computes on this thread with the number of threads that `set_num_threads()` named.
        A thread takes that over at its first operator that torch divides; products before it are
        made with another number, and have other last bits. What is made in such a moment can't be made
        again, and asking torch here would end it: a helper asks. Not for ever: who sets OpenMP's number
        beside torch's, as threadpoolctl does, leaves them different."""
        if not self._has_number and self._asked < _ASKED_MOST:
            self._asked += 1
            asked: list[int] = []
            helper = threading.Thread(target=lambda: asked.append(torch.get_num_threads()), daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had
                helper.start()
                helper.join()
            self._has_number = _core.team_threads() in (0, *asked)
        return self._has_number or self._asked == _ASKED_MOST

    @property
    def stands_aside(self) -> bool:
        """Whether a forward on this thread is none of ours: a replay, a trace of ours or of torch's,
        one without gradients."""
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        return self.is_apart or is_traced or not torch.is_grad_enabled()

    @property
    def is_transformed(self) -> bool:
        """Whether tensors stand for others here, of a transform of `torch.func`: what is saved of
        them has no storage that could move, and no layer can be run again from them."""
        return torch._C._functorch.maybe_current_level() is not None

    @property
    def is_apart(self) -> bool:
        """Whether it is memscale itself that runs the model here."""
        return is_replaying() or is_tracing() or self.is_busy


class LayerCalls:
    """Begins and ends calls of the layers of one model, on any thread.

    Args:
        core: the C side of the execution.
        thread: what the calling thread is in the middle of.
        notices: for what the user should know of a call.
        replay_lock: held while a layer runs again.
        tiles: the modules that may run in tiles.
    """

    def __init__(
        self,
        core: _core.Execution,
        thread: OnThread,
        notices: Notices,
        replay_lock: threading.RLock,
        tiles: Tiles,
    ) -> None:
        self._core = core
        self._thread = thread
        self._notices = notices
        self._replay_lock = replay_lock
        self._tiles = tiles
        self._remade = Remade()
        self.profile: LiveProfile | None = None
        """Of the step under way, if it is profiled; set by the executor."""

    def before(self, layer: LayerHooks, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`layer` is about to be called."""
        thread = self._thread
        if thread.stands_aside or thread.is_transformed:
            return
        thread.layer_depth += 1
        self.end_tape()  # of a call that was broken off, or that this one lies in
        record = None
        technique = self._core.peek(layer.number)
        runs_again = technique.replays or technique.set > 0
        can_run_again = not runs_again or self._can_run_again(layer)
        if can_run_again and technique.replays:
            record = self._record(layer, module, args, kwargs)
        profile = self.own_profile()
        if profile is not None:
            profile.enter(layer.state.name, module, args, kwargs)
            if record is not None:
                record.arguments.copy_first()  # nobody knows yet whether the layer writes to it
        region = self._core.enter(layer.number, record is not None, sys._getframe(_CALLER))
        if isinstance(region, str):
            self._notices.say_obstacle(region)
        elif region is not None and record is not None and region.technique.replays:
            self._begin_recompute(region, record, args)
        elif region is not None and can_run_again and region.technique.set > 0:
            self._begin_tape(region)

    def after(self, layer: LayerHooks, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The call of `layer` has given `output`, None where it raised."""
        thread = self._thread
        if thread.stands_aside or thread.is_transformed:
            return
        thread.layer_depth = max(0, thread.layer_depth - 1)
        profile = self.own_profile()
        if profile is not None:
            profile.leave(args, kwargs, output)
        self.end_tape()
        record, thread.record, thread.before = thread.record, None, None
        if record is not None:
            record.state.settle()
            first = first_output(output)
            if first is not None and not first.is_inference():
                thread.before = weakref.ref(first), first._version, weakref.ref(record)
        self._core.leave(thread.caller)

    def end_tape(self) -> None:
        """The tape of the layer that this thread is in, if any, has heard all."""
        if self._thread.tape is not None:
            (tape, region), self._thread.tape = self._thread.tape, None
            region.payload = None
            tape.end()

    def own_profile(self) -> LiveProfile | None:
        """The profile, where the step under way is made by this thread."""
        profile = self.profile
        return profile if profile is not None and profile.is_mine else None

    def release(self) -> None:
        """Lets go of tensors that were made again; who asks once more gets them made once more."""
        self._remade.release()

    def _begin_recompute(self, region: Any, record: ReplayRecord, args: tuple[Any, ...]) -> None:
        region.payload = record
        record.region = weakref.ref(region)
        if region.technique.moves_input:
            record.arguments.offload(region.offload_input)
        elif region.technique.is_chained:
            self._join(record, args, region.technique.nesting)
        self._thread.record = record

    def _begin_tape(self, region: Any) -> None:
        tape = Tape(self._core.is_resident, lambda: region.is_running, self._remade)
        region.payload = tape
        self._thread.tape = (tape, region)
        tape.begin()

    def _join(self, record: ReplayRecord, args: tuple[Any, ...], nesting: int) -> None:
        """Lets the record do without its first argument, if that is what the layer before gave, the
        same object and not written to, and the layer before can be run again."""
        before, self._thread.before = self._thread.before, None
        if before is None or not args:
            return
        given, version, maker = before
        tensor, source = given(), maker()
        if tensor is None or source is None or tensor is not args[0] or tensor._version != version:
            return
        if type(tensor) is not torch.Tensor:  # who knows what its operators are
            return
        if record.arguments.is_first(tensor):
            record.join(source, nesting)

    def _can_run_again(self, layer: LayerHooks) -> bool:
        if self._thread.has_number:
            return True
        self._notices.say(
            "threads",
            logging.INFO,
            f"layer {layer.state.name}: torch computes on this thread with another number of threads than "
            "set_num_threads() named, until the first operator that it divides; what is called before that is not "
            "computed again",
        )
        return False

    def _record(
        self, layer: LayerHooks, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ReplayRecord | None:
        """What a replay of this call needs; None, with a line in the log, where there can be none."""
        if not layer.is_first(module):
            self._notices.say(
                f"hooked {layer.state.name}",
                logging.INFO,
                f"layer {layer.state.name}: a forward-pre hook runs before the one of memscale and could change "
                "the arguments twice; this call is not recomputed",
            )
            return None
        obstacle = layer.state.obstacle(module)
        if obstacle is not None:
            self._core.hold(layer.number)
            self._notices.say(
                f"obstacle {layer.state.name}",
                logging.WARNING,
                f"layer {layer.state.name}: {obstacle}, which would happen once more if it ran again; it is not "
                "recomputed, and what it saves stays in memory",
            )
            return None
        record = ReplayRecord.take(
            layer.state, module, args, kwargs, self._replay_lock, self._tiles if self._tiles.is_on else None
        )
        if record is None:
            self._notices.say(
                f"opaque {layer.state.name}",
                logging.INFO,
                f"layer {layer.state.name}: it gets an object whose state running it again could change "
                "(or no tensor); it is not recomputed",
            )
        return record
