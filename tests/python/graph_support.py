"""Shared by the profiler's tests: a replay of a graph in plain Python, the live bytes of a real step
counted without the tracer, and a trace of a real step whose hooks keep no saved tensor."""

from __future__ import annotations

import contextlib
import gc
import json
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memscale.base.arguments import plain_tensors
from memscale.base.signature import describe_arguments
from memscale.model.layers import find_layers
from memscale.techniques.loss_mode import marking
from memscale.tracing.profiler import MemoryProfiler
from memscale.tracing.tracer import LiveTracer


def trace(model: torch.nn.Module, *args: Any, optimizer: Any = None, **kwargs: Any) -> dict[str, Any]:
    """The static graph of a model, as a dictionary."""
    return json.loads(MemoryProfiler().trace(model, args, kwargs, optimizer=optimizer))


def observe_loop(graph: dict[str, Any], outputs_held: bool = True) -> None:
    """Puts in the facts of a loop that was observed: it clears gradients before the forward and has no optimizer."""
    graph["loop"].update(
        outputs_held=outputs_held,
        gradients_live_in_forward=False,
        observed=True,
        optimizer_state_bytes=0,
        optimizer_transient_bytes=0,
    )


def layer_nodes(graph: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes that are calls of layers."""
    return [node for node in graph["nodes"] if node["kind"] == "layer"]


def without_workspaces(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph without the operators' workspaces: storages that are freed right after their allocation."""
    for profile in graph["profiles"]:
        for direction in ("forward", "backward"):
            kept: list[Any] = []
            for event in profile[direction]:
                if event[0] == "free" and kept and kept[-1] == ["alloc", event[1]]:
                    kept.pop()
                else:
                    kept.append(event)
            profile[direction] = kept
    return graph


# ---- small models -------------------------------------------------------------------------


class Plain(nn.Module):
    """A linear layer that accepts and ignores further arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        return self.linear(x)


class Layers(nn.Module):
    """Two layers that a function calls; the loss is the sum of the function's result."""

    def __init__(self, call: Any, layer: Any = Plain) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer() for _ in range(2)])
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.layers, x).sum()


class Returning(Plain):
    """Returns the result of a function of a linear layer's output."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.linear(x))


def chain(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """Applies each layer to the output of the one before."""
    for layer in layers:
        x = layer(x)
    return x


# ---- the keep plan, replayed -----------------------------------------------------------


class Replay:
    """Runs the programs of a graph with everything kept.

    Attributes:
        peak: the largest number of live bytes, without residents.
        end: live bytes after backward.
        saved: bytes that each node asks autograd to keep.
    """

    def __init__(self, graph: dict[str, Any], hold_outputs: bool = True) -> None:
        self._graph = graph
        self._hold_outputs = hold_outputs
        self._freed: set[Any] = set()
        self._holds: dict[Any, int] = {}
        self._live = 0
        self.peak = 0
        self.saved = [0] * len(graph["nodes"])
        for index in range(len(graph["nodes"])):
            self._run(index, "forward")
        for index in reversed(range(len(graph["nodes"]))):
            self._run(index, "backward")
        self.end = self._live

    def _run(self, index: int, which: str) -> None:
        node = self._graph["nodes"][index]
        profile = self._graph["profiles"][node["profile"]]
        for kind, *numbers in profile[which]:
            if kind == "work":
                continue
            local = numbers[0]
            is_external = local < profile["external_count"]
            key = ("external", node["externals"][local]) if is_external else (index, local)
            size = profile["storage_bytes"][local]
            is_output = is_external and self._graph["storages"][key[1]]["role"] == "output"
            if kind == "alloc":
                self._live += size
                self.peak = max(self.peak, self._live)
            elif kind == "free" and not (is_output and self._hold_outputs):
                self._freed.add(key)
                self._release(key, size)
            elif kind == "save":
                self.saved[index] += size
                self._holds[key] = self._holds.get(key, 0) + 1
            elif kind == "drop":
                self._holds[key] -= 1
                self._release(key, size)

    def _release(self, key: Any, size: int) -> None:
        if key in self._freed and not self._holds.get(key):
            self._live -= size


# ---- live bytes of a real step ----------------------------------------------------------


class LiveBytes(TorchDispatchMode):
    """Counts the live bytes of storages that operators allocated. If the first of two gradients dies right after
    their sum, they count as one storage: without a dispatch mode, torch writes the sum over the first."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}
        self.live = 0
        self.peak = 0
        self._first: int | None = None  # storage of a sum's first operand, until it dies

    def _settle(self) -> None:
        self._first = None
        self.peak = max(self.peak, self.live)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._settle()
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled() and not args[0]._is_view():
            alike = isinstance(args[1], torch.Tensor) and args[0].untyped_storage().nbytes() == result.nbytes
            self._first = args[0].untyped_storage()._cdata if alike else None
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        if self._first is None:
            self._settle()

        def died() -> None:
            if key != self._first:
                self._settle()
            self._first = None
            self._seen.discard(key)
            self.live -= size

        weakref.finalize(storage, died)


def measured_peak(model: torch.nn.Module, args: Any, kwargs: Any, loss_of: Any, autocast: Any = None) -> int:
    """The most live bytes in a real step that holds its outputs, without parameters, buffers and batch."""
    known = [*model.parameters(), *model.buffers(), *plain_tensors((args, kwargs))]
    counter = LiveBytes(known)
    gc.collect()
    gc.disable()
    try:
        with counter:
            with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
                output = model(*args, **kwargs)
            loss = loss_of(output)
            loss.backward()
            del output, loss
    finally:
        gc.enable()
        model.zero_grad(set_to_none=True)
    return counter.peak


# ---- a real step, traced -----------------------------------------------------------------


class _Token:
    """Replaces a saved tensor of a real step by a copy of its storage."""

    def __init__(self, tracer: LiveTracer, tensor: torch.Tensor) -> None:
        self.tracer = tracer
        self.node, self.serial = tracer.saved(tensor)
        self.tensor = None
        if self.serial == 0:
            self.tensor = tensor if tensor.grad_fn is None else tensor.detach()
            return
        tracer.pause()
        try:
            storage = tensor.untyped_storage().clone()
            self.copy = torch.empty(0, dtype=tensor.dtype).set_(
                storage, tensor.storage_offset(), tensor.shape, tensor.stride()
            )
        finally:
            tracer.resume()

    def unpack(self) -> torch.Tensor:
        if self.tensor is not None:
            self.tracer.unpacked(self.node, 0)
            return self.tensor
        self.tracer.unpacked(self.node, self.serial, self.copy.untyped_storage())
        return self.copy

    def __del__(self) -> None:
        self.tracer.dropped(self.node, self.serial)


def trace_live(model: torch.nn.Module, args: Any, kwargs: Any, loss_of: Any, autocast: Any = None) -> dict[str, Any]:
    """The graph of a real step in which autograd holds copies instead of the saved tensors."""
    tracer = LiveTracer(type(model).__name__, describe_arguments(args, kwargs), "empirical")
    tracer.resident_batch(plain_tensors((args, kwargs)))
    tracer.resident_parameters(model.parameters())
    tracer.resident_buffers(model.buffers())

    def enter(name: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            tracer.enter(name, module, args, kwargs)

        return hook

    def leave(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        tracer.leave(args, kwargs, output)

    gc.collect()
    gc.disable()
    with contextlib.ExitStack() as stack:
        stack.callback(gc.enable)
        for name, layer in find_layers(model):
            stack.callback(layer.register_forward_pre_hook(enter(name), prepend=True, with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(leave, with_kwargs=True, always_call=True).remove)
        for handle in tracer.watch_gradients(model.parameters()):
            stack.callback(handle.remove)
        stack.enter_context(
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Token(tracer, tensor), _Token.unpack)
        )
        tracer.start()
        stack.callback(tracer.stop)
        losses = marking(tracer)
        losses.start()
        stack.callback(losses.stop)
        with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
            output = model(*args, **kwargs)
        losses.stop()
        tracer.outputs(output)
        tracer.phase("loss")
        loss = loss_of(output)
        del output
        tracer.phase("backward")
        loss.backward()
        tracer.gradients(model.parameters())
        tracer.phase("done")
    model.zero_grad(set_to_none=True)
    return json.loads(tracer.finish())
