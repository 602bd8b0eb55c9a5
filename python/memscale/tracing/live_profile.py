"""Profiles a real training step while it runs, for models that can't be traced.

The executor makes a profile for each warm-up step and passes on its hooks' events. The step runs under
the plan of the warm-up steps, and the profile does not disturb it. If a step can't be followed, it
continues without a profile.
"""

from __future__ import annotations

import sys
import threading
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..base.after_backward import in_backward
from ..base.arguments import plain_tensors
from ..base.aside import is_replaying
from ..base.composites import Without
from ..base.modes import retire
from ..base.signature import describe_arguments
from ..base.weak import weak_method
from ..errors import MemScaleError, ProfileError
from ..model.placement import Placement, name_on
from ..techniques.loss_mode import marking
from .tracer import NO_NODE, LiveTracer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LiveProfile"]


# Of a graph without tokens: the local variable that is asked about, and the call that asks.
_OWN_REFERENCES = 2

_OF_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


class _Events:
    """The C tracer's events. The first one that C refuses ends the reports, not the user's step."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._errors: list[MemScaleError] = []

    @property
    def error(self) -> MemScaleError | None:
        return self._errors[0] if self._errors else None

    def refuse(self, error: Exception) -> None:
        """Ends the reports. The error is kept without its traceback, whose frames hold the step's tensors."""
        own = error if isinstance(error, MemScaleError) else ProfileError(f"{type(error).__name__}: {error}")
        self._errors.append(own.with_traceback(None))

    def __getattr__(self, name: str) -> Any:
        report, errors, refuse = getattr(self._trace, name), self._errors, weak_method(self, "refuse")

        def guarded(*values: Any) -> Any:
            if not errors:
                try:
                    return report(*values)
                except Exception as error:  # C refuses; or an unusual tensor, whose sizes are not numbers
                    refuse(error)
            return (NO_NODE, 0) if name == "saved" else NO_NODE

        self.__dict__[name] = guarded  # without a reference to this object: it would wait for the garbage collector
        return guarded


class _StepTracer(LiveTracer):
    """A tracer that does not report replays, because they belong to the warm-up's plan and not to the step."""

    def __init__(self, model: str, signature: str, placement: Placement | None, elsewhere: frozenset[str]) -> None:
        super().__init__(model, signature, "empirical", None, placement, elsewhere)
        self._events = _Events(self._trace)
        self._trace = self._events  # type: ignore[assignment]  # has every method of a Trace

    @property
    def refused(self) -> MemScaleError | None:
        """The error that ended the reports; None if there was none."""
        return self._events.error

    def _report(self, *operator: Any) -> None:
        if self._events.error is None:
            try:
                super()._report(*operator)
            except Exception as error:  # the user's step continues
                self._events.refuse(error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_replaying():
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, _with_tensors(func, args), kwargs)


class _Graph:
    """The autograd graph of a profiled forward: it dies with the last token of a tensor that the graph has saved."""

    __slots__ = ("__weakref__",)


def _with_tensors(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an operator, with tensors for numbers if only tensors will do: constants of TorchScript reach a
    mode as numbers, which torch refuses to pass on."""
    if not any(type(value) in _OF_NUMBERS for value in args):
        return args
    places = _tensor_places(func)
    return tuple(
        torch.scalar_tensor(value, dtype=_OF_NUMBERS[type(value)])
        if place in places and type(value) in _OF_NUMBERS
        else value
        for place, value in enumerate(args)
    )


@cache
def _tensor_places(func: Any) -> frozenset[int]:
    """The places of the arguments of an operator that must be tensors."""
    schema = getattr(func, "_schema", None)
    if schema is None or torch._C._should_allow_numbers_as_tensors(func.overloadpacket.__name__):
        return frozenset()
    return frozenset(i for i, argument in enumerate(schema.arguments) if isinstance(argument.type, torch.TensorType))


class _Token:
    """The token of one saved tensor, which lives as long as the tensor's handle."""

    __slots__ = ("_graph", "_node", "_serial", "_tracer")

    def __init__(
        self, tracer: Callable[[], LiveTracer | None], node: int, serial: int, graph: _Graph | None = None
    ) -> None:
        self._tracer = tracer
        self._node = node
        self._serial = serial
        self._graph = graph

    def unpacked(self) -> None:
        """Autograd asks for the tensor. What is done until it is given belongs to the plan of the warm-up."""
        tracer = self._tracer()
        if tracer is not None:
            if self._serial:
                tracer.unpacked(self._node, self._serial)
            tracer.pause()

    def given(self, tensor: torch.Tensor | None) -> None:
        """Autograd gets the tensor, or None if it could not be brought back. A tensor in another storage than the saved
        one stands for it until it dies."""
        tracer = self._tracer()
        if tracer is None:
            return
        tracer.resume()
        if tensor is not None and self._serial:
            tracer.given(self._node, self._serial, tensor)

    def __del__(self) -> None:
        tracer = self._tracer()
        if tracer is not None:
            tracer.dropped(self._node, self._serial)


def _observer(profile: LiveProfile) -> Callable[[torch.Tensor], _Token]:
    """Makes the tokens of `profile`. C holds this function, and must not keep the profile alive: the garbage collector
    does not see what C holds."""
    known = weakref.ref(profile)

    def token(tensor: torch.Tensor) -> _Token:
        alive = known()
        return _Token(lambda: None, NO_NODE, 0) if alive is None else alive._token(tensor)

    return token


class LiveProfile:
    """One profiled step, from the root's forward to the point after the optimizer. It ends early if no backward can
    follow any more: the graph of the forward is gone, or the model is.

    Args:
        model: the root module.
        args, kwargs: arguments of the forward that begins, or of the first layer.
        observe: registers a function that returns a saved tensor's token; None unregisters it.
        placement: the device that is profiled, if the model lies on several.
        in_parts: whether the loop calls the layers by itself. Losses are then left unmarked, because no loss head can
            take their place, and the forward ends when the backward begins.
    """

    _is_over = True  # until modes are on

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observe: Callable[[Any], None],
        placement: Placement | None = None,
        in_parts: bool = False,
    ) -> None:
        self._observe = observe
        # Not to its parameters: a weak reference keeps torch from swapping them.
        self._model = weakref.ref(model, weak_method(self, "_comes_to_nothing"))
        self._graph: _Graph | None = _Graph()
        self._graph_ends: weakref.ref[_Graph] | None = None
        self._phase = "forward"
        self._in_parts = in_parts
        self._thread = threading.current_thread()
        self._here = threading.local()  # a thread's number may be reused
        self._here.is_mine = True
        elsewhere = frozenset[str]() if placement is None else placement.elsewhere(model)
        tracer = _StepTracer(name_on(model, placement), describe_arguments(args, kwargs), placement, elsewhere)
        tracer.resident_parameters(model.parameters())
        tracer.resident_buffers(model.buffers())
        tracer.resident_batch(plain_tensors((args, kwargs)))
        self._tracer = tracer
        self._composites = Without(tracer)
        observe(_observer(self))
        self._losses = None if in_parts else marking(tracer)
        self._is_over = False
        if self._losses is not None:
            self._losses.start()
        tracer.start()
        self._composites.start()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread runs the profiled step. Operators are seen on that thread only. What runs inside a
        backward neither belongs to the step nor ends it: modes that are left there come back when the backward ends."""
        return getattr(self._here, "is_mine", False) and not in_backward()

    @property
    def is_orphan(self) -> bool:
        """Whether the thread of the profiled step has ended; then the step can't be completed."""
        return not self._thread.is_alive()

    def discard(self) -> None:
        """Ends the profile without a graph. If another thread than the step's calls this, its modes report nothing, and
        stay on there until that thread's next forward of a wrapped model."""
        if not self.is_mine:
            self._tracer.pause()
        self._end()

    def _comes_to_nothing(self, gone: weakref.ref[Any]) -> None:
        """The model is gone, or the graph before its backward: the step can't be completed."""
        if not self._is_over and (gone is self._model or self._phase == "loss"):
            self.discard()

    def __del__(self) -> None:
        if not self._is_over and not sys.is_finalizing():
            self.discard()

    @property
    def refused(self) -> MemScaleError | None:
        """The reason why the step could not be followed; None if it could, or was incomplete."""
        return self._tracer.refused

    def _token(self, tensor: torch.Tensor) -> _Token:
        tracer = weakref.ref(self._tracer)
        if not self.is_mine:
            return _Token(tracer, NO_NODE, 0)
        if self._composites.is_off:
            self._tracer.born(tensor)
        return _Token(tracer, *self._tracer.saved(tensor), self._graph)

    def enter(self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A layer's call begins."""
        self._tracer.enter(name, module, args, kwargs)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """A layer's call ends."""
        self._tracer.leave(args, kwargs, output)

    def aside(self, call: Callable[[], Any]) -> None:
        """Calls a function of the executor, which is not a part of the step."""
        self._tracer.pause()
        try:
            call()
        finally:
            self._tracer.resume()

    def forward_ended(self, output: Any) -> None:
        """The root's forward returned `output`."""
        self._stop_marking()
        if self._phase == "forward":
            self._tracer.outputs(output)
            self._advance("loss")
            self._watch_graph()

    def _watch_graph(self) -> None:
        """From now on only its tokens hold the graph. A forward that saved nothing has none."""
        graph, self._graph = self._graph, None
        if graph is not None and sys.getrefcount(graph) > _OWN_REFERENCES:
            self._graph_ends = weakref.ref(graph, weak_method(self, "_comes_to_nothing"))

    def backward_began(self) -> None:
        """Backward has begun: autograd unpacks the first saved tensor."""
        self._composites.stop()
        if self._phase == "forward" and self._in_parts:
            self._advance("loss")
        if self._phase == "loss":
            self._advance("backward")

    def backward_ended(self) -> None:
        """Backward has ended. All later events belong to the optimizer."""
        if self._phase == "backward":
            model = self._model()
            self._tracer.gradients(() if model is None else model.parameters())
            self._advance("optimizer")

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._observe(None)
        for mode in (self._losses, self._composites, self._tracer):
            if mode is not None:
                retire(mode)

    def _stop_marking(self) -> None:
        if self._losses is not None:
            self._losses.stop()

    def _advance(self, phase: str) -> None:
        self._phase = phase
        self._tracer.phase(phase)

    def finish(self, has_stepped: bool) -> str | None:
        """Ends the profile; returns the graph, or None if no complete step was seen."""
        self._end()
        if self._phase != "optimizer" or self.refused is not None:
            return None
        try:
            if not has_stepped:
                self._tracer.optimizer_unknown()
            self._advance("done")
            graph = self._tracer.finish()
            if self.refused is not None:  # refused by the last call: no graph
                return None
            _core.graph_check(graph)
            return graph
        except MemScaleError:
            return None
