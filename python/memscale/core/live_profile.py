"""Profiles a real training step while it runs, for models that can't be traced without.

The executor makes one for each warm-up step and passes on what its hooks see. The step
runs under the plan of the warm-up steps; autograd and the model are not disturbed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from .. import _core
from ..errors import MemScaleError
from .arguments import plain_tensors
from .profiler import describe_arguments
from .replay import is_replaying
from .tracer import LiveTracer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LiveProfile"]


class _StepTracer(LiveTracer):
    """Does not report what replays compute: they belong to the warm-up's plan, not to the step."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_replaying():
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Token:
    """Stands with the handle of one saved tensor and dies with it."""

    __slots__ = ("_node", "_serial", "_tracer")

    def __init__(self, tracer: LiveTracer, node: int, serial: int) -> None:
        self._tracer = weakref.ref(tracer)
        self._node = node
        self._serial = serial

    def unpacked(self) -> None:
        tracer = self._tracer()
        if tracer is not None and self._serial:
            tracer.unpacked(self._node, self._serial)

    def __del__(self) -> None:
        tracer = self._tracer()
        if tracer is not None:
            tracer.dropped(self._node, self._serial)


class LiveProfile:
    """One profiled step, from the root's forward to the point after the optimizer.

    Args:
        model: the root module.
        args, kwargs: arguments of the forward that begins.
        observe: takes a function from saved tensor to token, or None to end.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observe: Callable[[Any], None],
    ) -> None:
        self._observe = observe
        self._parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        self._phase = "forward"
        tracer = _StepTracer(type(model).__name__, describe_arguments(args, kwargs), "empirical")
        tracer.resident_parameters(model.parameters())
        tracer.resident_buffers(model.buffers())
        tracer.resident_batch(plain_tensors((args, kwargs)))
        self._tracer = tracer
        observe(self._token)
        tracer.start()

    def _token(self, tensor: torch.Tensor) -> _Token:
        return _Token(self._tracer, *self._tracer.saved(tensor))

    def enter(self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A layer's call begins."""
        self._tracer.enter(name, module, args, kwargs)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """It ends."""
        self._tracer.leave(args, kwargs, output)

    def forward_ended(self, output: Any) -> None:
        """The root's forward returned `output`."""
        if self._phase == "forward":
            self._tracer.outputs(output)
            self._advance("loss")

    def backward_began(self) -> None:
        """Autograd asks for the first saved tensor."""
        if self._phase == "loss":
            self._advance("backward")

    def backward_ended(self) -> None:
        """Gradients are there; what comes until the end is the optimizer's."""
        if self._phase == "backward":
            self._tracer.gradients(p for p in (reference() for reference in self._parameters) if p is not None)
            self._advance("optimizer")

    def _advance(self, phase: str) -> None:
        self._phase = phase
        self._tracer.phase(phase)

    def finish(self, has_stepped: bool) -> str | None:
        """Ends the profile; the graph, or None where no whole step was seen."""
        self._observe(None)
        self._tracer.stop()
        if self._phase != "optimizer":
            return None
        try:
            if not has_stepped:
                self._tracer.optimizer_unknown()
            self._advance("done")
            graph = self._tracer.finish()
            _core.graph_check(graph)
            return graph
        except MemScaleError:
            return None
