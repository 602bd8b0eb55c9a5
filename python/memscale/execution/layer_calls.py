"""Begins and ends the calls of layers in the training forward; the hooks call this module.

Before a call, this module records everything that is needed to run the layer again or to
recompute single tensors of it. C gets the record and decides for each saved tensor whether
it stays, moves or is recomputed.
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
from ..base.walk import first_output, parameters_of
from .compiled_shapes import CompiledShapes
from .replay import ReplayRecord, replay
from .siblings import Siblings
from .tape import Remade, Tape

if TYPE_CHECKING:
    from ..model.streamed import StreamedLayers
    from ..techniques.loss_mode import LossMode
    from ..techniques.tiles import Tiles
    from ..tracing.live_profile import LiveProfile
    from .hooks import LayerHooks
    from .notices import Notices
    from .parts import Parts

__all__ = ["LayerCalls", "OnThread"]

# Number of stack frames from LayerCalls.before() up to the frame that calls the layer's
# forward. The hook callables of hooks.py lie in between.
_CALLER = 3

# A thread is asked at most this often for its number of threads; see OnThread.has_number.
_ASKED_MOST = 64


class OnThread(threading.local):
    """The state of one executor on one thread. Every field is empty while the thread runs no forward."""

    is_busy = False
    """Whether memscale itself runs the model now; the caller has not asked for these forwards."""
    caller: Any = None
    """The frame that called the root's forward, or its address in a list; see `frames.watch()`."""
    nested_roots = 0
    """Calls of the root that are under way inside its own forward."""
    precision: contextlib.ExitStack | None = None
    losses: LossMode | None = None
    layer_depth = 0
    tape: tuple[Tape, Any] | None = None
    """The tape of the layer that runs, and its region."""
    record: ReplayRecord | None = None
    """The record of the layer that runs, if it is recomputed."""
    before: tuple[Any, int, Any] | None = None
    """A weak reference to the first output of the recomputed layer that ended last, the version of
    that output, and a weak reference to the layer's record."""

    _has_number = False
    _asked = 0

    @property
    def has_number(self) -> bool:
        """Whether torch computes on this thread with the number of threads that `set_num_threads()` named.

        A thread adopts that number at the first operator that torch divides among threads. Matrix
        products before that use another number and have other last bits, so that a replay could not
        repeat them. A helper thread reads torch's number, because reading it here would make this
        thread adopt it. After `_ASKED_MOST` attempts the answer is always yes, because the two numbers
        may differ for good: callers such as threadpoolctl set OpenMP's number but not torch's.
        """
        if not self._has_number and self._asked < _ASKED_MOST:
            self._asked += 1
            asked: list[int] = []
            helper = threading.Thread(target=lambda: asked.append(torch.get_num_threads()), daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be started
                helper.start()
                helper.join()
            self._has_number = _core.team_threads() in (0, *asked)
        return self._has_number or self._asked == _ASKED_MOST

    @property
    def stands_aside(self) -> bool:
        """Whether memscale ignores a forward on this thread, because it is a replay, a trace of
        memscale's or torch's, or without gradients."""
        if self.is_apart or not torch.is_grad_enabled():
            return True
        return torch.compiler.is_compiling() or torch._C._is_tracing()

    @property
    def is_transformed(self) -> bool:
        """Whether a transform of `torch.func` is active. Its tensors only wrap others, so a saved one
        has no storage that could move, and no layer can run again from them."""
        return torch._C._functorch.maybe_current_level() is not None

    @property
    def is_apart(self) -> bool:
        """Whether memscale itself runs the model on this thread."""
        return is_replaying() or is_tracing() or self.is_busy


class LayerCalls:
    """Begins and ends calls of the layers of one model, on any thread.

    Args:
        core: the C side of the execution.
        thread: the executor's state on the calling thread.
        notices: logs what the user should know about a call.
        siblings: the executors of the model's other devices, if there are any.
        tiles: the modules that may run in tiles.
    """

    def __init__(
        self,
        core: _core.Execution,
        thread: OnThread,
        notices: Notices,
        siblings: Siblings,
        tiles: Tiles,
    ) -> None:
        self._core = core
        self._thread = thread
        self._notices = notices
        self._siblings = siblings
        self._tiles = tiles
        self._remade = Remade(siblings.replay_lock)
        self._shapes = CompiledShapes()
        self.profile: LiveProfile | None = None
        """The profile of the step under way, if it is profiled. The executor sets it."""
        self.streamed: StreamedLayers | None = None
        """The layers whose parameters stream, if any do. The executor sets it."""
        self.gathers = False
        """Whether FSDP gathers the layers' parameters as they are called. The executor sets it."""
        self.parts: Parts | None = None
        """Learns of every call until the root's forward has run with gradients. The executor sets it."""

    def gathered(self, module: torch.nn.Module) -> None:
        """FSDP has put gathered tensors in the place of the layer's parameters. They don't move: FSDP frees them."""
        if not (self._thread.stands_aside or self._thread.is_transformed):
            self._core.add_residents(parameters_of(module))

    def before(self, layer: LayerHooks, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """`layer` is about to be called."""
        thread = self._thread
        if self.streamed is not None and not is_tracing():
            self.streamed.enter(module)
        if self.parts is not None:
            self.parts.layer_called(layer.state.name, args, kwargs)
        if thread.stands_aside or thread.is_transformed:
            return
        for sibling in self._siblings.calls_beside(self):
            sibling.sibling_enters(layer.state.name, module, args, kwargs)
        self._enter_layer()
        record = None
        if layer.is_compiled:
            self._settle_other_shapes(layer, module, args, kwargs)
        technique = self._core.peek(layer.number)
        runs_again = technique.replays or technique.set > 0
        can_run_again = not runs_again or self._can_run_again(layer)
        if can_run_again and technique.replays:
            record = self._record(layer, module, args, kwargs)
            if record is not None and layer.is_compiled:
                self._shapes.add(record, module, args, kwargs)
        profile = self.own_profile()
        if profile is not None:
            profile.enter(layer.state.name, module, args, kwargs)
            if record is not None:
                profile.aside(record.arguments.copy_first)  # before it shows whether the layer writes to it
        caller = sys._getframe(_CALLER)
        # A frame that is held holds those around it, and the root's must be free to end.
        region = self._core.enter(
            layer.number, record is not None, [id(caller)] if type(thread.caller) is list else caller
        )
        if isinstance(region, str):
            self._notices.say_obstacle(region)
        elif region is not None and record is not None and region.technique.replays:
            self._begin_recompute(region, record, args)
        elif region is not None and can_run_again and region.technique.set > 0:
            self._begin_tape(region)

    def after(self, layer: LayerHooks, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The call of `layer` has returned `output`, or None if it raised."""
        thread = self._thread
        if self.streamed is not None and layer.module is not None and not is_tracing():
            self.streamed.watch_backward(layer.module, first_output(output))
        if thread.stands_aside or thread.is_transformed:
            return
        self._leave_layer(args, kwargs, output)
        for sibling in self._siblings.calls_beside(self):
            sibling.sibling_leaves(args, kwargs, output)
        record, thread.record, thread.before = thread.record, None, None
        if record is not None:
            record.state.settle()
            first = first_output(output)
            if first is not None and not first.is_inference():
                thread.before = weakref.ref(first), first._version, weakref.ref(record)
        self._core.leave(thread.caller)

    def sibling_enters(self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The layer `name`, which computes on another device, is about to be called."""
        self._enter_layer()
        profile = self.own_profile()
        if profile is not None:
            profile.enter(name, module, args, kwargs)

    def sibling_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The call of that layer has returned `output`, or None if it raised."""
        self._leave_layer(args, kwargs, output)

    def _enter_layer(self) -> None:
        """A layer begins, on this device or another: what belongs to the root's work pauses."""
        thread = self._thread
        thread.layer_depth += 1
        if thread.losses is not None and thread.layer_depth == 1:
            thread.losses.pause()
        self.end_tape()  # the tape of a call that was interrupted, or of the call around this one

    def _leave_layer(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        thread = self._thread
        thread.layer_depth = max(0, thread.layer_depth - 1)
        if thread.losses is not None and thread.layer_depth == 0:
            thread.losses.resume()
        profile = self.own_profile()
        if profile is not None:
            profile.leave(args, kwargs, output)
        self.end_tape()

    def end_tape(self) -> None:
        """Ends the tape of the layer that this thread is in, if any."""
        if self._thread.tape is not None:
            tape, region = self._thread.tape
            region.payload = None
            tape.end()
            self._thread.tape = None  # last: an interrupt may come before, and the end is repeated

    def own_profile(self) -> LiveProfile | None:
        """The profile, if this thread runs the profiled step."""
        profile = self.profile
        return profile if profile is not None and profile.is_mine else None

    def release(self) -> None:
        """Releases recomputed tensors; a later request recomputes them."""
        self._remade.release()

    def _begin_recompute(self, region: Any, record: ReplayRecord, args: tuple[Any, ...]) -> None:
        region.payload = record
        record.region = weakref.ref(region)
        if region.technique.moves_input:
            record.arguments.offload(region.offload_input)
        elif region.technique.is_chained:
            self._join(record, args, region.technique.nesting)
        self._thread.record = record

    def _settle_other_shapes(self, layer: LayerHooks, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Runs the replays that are still to come before this call compiles other code for its shapes, and holds the
        layer: its loop calls it with several shapes before one backward."""
        others = self._shapes.with_other_shapes(module, args, kwargs)
        for record in others:
            region = None if record.region is None else record.region()
            if region is not None and region.missing:
                _core.guarded(replay, region)
        if others:
            self._core.hold(layer.number)
            self._notices.say(
                f"shapes {layer.state.name}",
                logging.INFO,
                f"layer {layer.state.name}: it is compiled, and called with several shapes before one backward; a "
                "second run could meet other code than the first, so the layer is not recomputed from now on",
            )

    def _begin_tape(self, region: Any) -> None:
        tape = Tape(self._core.is_resident, lambda: region.is_running, self._remade)
        region.payload = tape
        self._thread.tape = (tape, region)
        tape.begin()

    def _join(self, record: ReplayRecord, args: tuple[Any, ...], nesting: int) -> None:
        """Joins the record to the layer before, so that it need not keep its first argument.

        The first argument must be the very tensor that the layer before returned, unchanged since,
        and the layer before must have a record of its own.
        """
        before, self._thread.before = self._thread.before, None
        if before is None or not args:
            return
        given, version, maker = before
        tensor, source = given(), maker()
        if tensor is None or source is None or tensor is not args[0] or tensor._version != version:
            return
        # A subclass may run other operators, and a nested tensor has no shape to compare.
        if type(tensor) is not torch.Tensor or tensor.is_nested:
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
            "set_num_threads() named, until the first operator that it divides among threads; layers called "
            "before that are not recomputed",
        )
        return False

    def _record(
        self, layer: LayerHooks, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ReplayRecord | None:
        """The record for a replay of this call; None, with a line in the log, if the call can't be repeated."""
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
                f"layer {layer.state.name}: {obstacle}, and memscale could not undo a second run; the layer is not "
                "recomputed, and its saved tensors stay in memory",
            )
            return None
        record = ReplayRecord.take(
            layer.state, module, args, kwargs, self._siblings.replay_lock, self._tiles if self._tiles.is_on else None
        )
        if record is None:
            self._notices.say(
                f"opaque {layer.state.name}",
                logging.INFO,
                f"layer {layer.state.name}: an argument has state that a second run could change, or no argument is "
                "a tensor; the layer is not recomputed",
            )
        return record
