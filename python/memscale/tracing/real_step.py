"""The graph of one real step of an unwrapped model, for comparison with its trace.

`memscale.trace_diff` calls it. Autograd gets copies of the tensors that it saves, so that storages live exactly as
long as something other than autograd holds them, as in a trace under fake tensors. The step therefore takes up to
twice the memory of a plain one. It gives the same events as the trace, unless the trace is wrong.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import torch

from ..base.arguments import plain_tensors
from ..base.signature import describe_arguments
from ..model.caches import without_cache
from ..model.layers import find_layers
from .loss import loss_of_traced_forward
from .tracer import LiveTracer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["trace_real_step"]


class _Copy:
    """Autograd holds this instead of a saved tensor. It has the tensor if that stays anyway, else a copy."""

    __slots__ = ("geometry", "node", "serial", "storage", "tensor", "tracer")

    def __init__(
        self, tracer: LiveTracer, node: int, serial: int, tensor: torch.Tensor, storage: torch.UntypedStorage | None
    ) -> None:
        self.tracer, self.node, self.serial, self.storage = tracer, node, serial, storage
        self.tensor = (tensor if tensor.grad_fn is None else tensor.detach()) if storage is None else None
        self.geometry = tensor.dtype, tensor.device, tensor.storage_offset(), tensor.shape, tensor.stride()

    def __del__(self) -> None:
        self.tracer.dropped(self.node, self.serial)


class _RealStep:
    def __init__(self, model: torch.nn.Module, signature: str) -> None:
        self._model = model
        self._tracer = LiveTracer(type(model).__name__, signature, "empirical")
        self._copies: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> str:
        tracer, parameters = self._tracer, list(self._model.parameters())
        tracer.resident_batch(plain_tensors((args, dict(kwargs))))
        tracer.resident_parameters(parameters)
        tracer.resident_buffers(self._model.buffers())
        with ExitStack() as stack:
            for name, layer in find_layers(self._model):
                for handle in self._hook(name, layer):
                    stack.callback(handle.remove)
            for handle in tracer.watch_gradients(parameters):
                stack.callback(handle.remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
            tracer.start()
            stack.callback(tracer.stop)
            loss = loss_of_traced_forward(tracer, self._model, args, kwargs)
            if loss is not None:
                loss.backward()
            tracer.gradients(parameters)
            tracer.phase("optimizer")
            optimizer.step()
            tracer.phase("done")
            del loss  # not earlier, because a caller holds it through the step
        return tracer.finish()

    def _hook(self, name: str, layer: torch.nn.Module) -> tuple[Any, Any]:
        def before(module: Any, args: Any, kwargs: Any) -> None:
            self._tracer.enter(name, module, args, kwargs)

        def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            self._tracer.leave(args, kwargs, output)

        return (
            layer.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            layer.register_forward_hook(after, with_kwargs=True, always_call=True),
        )

    def _pack(self, tensor: torch.Tensor) -> _Copy:
        node, serial = self._tracer.saved(tensor)
        storage = self._copy_of(serial, tensor) if serial else None
        return _Copy(self._tracer, node, serial, tensor, storage)

    def _copy_of(self, serial: int, tensor: torch.Tensor) -> torch.UntypedStorage:
        known = self._copies.get(serial)
        storage = known() if known is not None else None
        if storage is None:
            with torch._C._DisableTorchDispatch():
                storage = tensor.untyped_storage().clone()
            self._copies[serial] = weakref.ref(storage)
        return storage

    def _unpack(self, copy: _Copy) -> torch.Tensor:
        if copy.storage is None:
            self._tracer.unpacked(copy.node, 0)
            return cast("torch.Tensor", copy.tensor)
        self._tracer.unpacked(copy.node, copy.serial, copy.storage)
        dtype, device, offset, size, stride = copy.geometry
        with torch._C._DisableTorchDispatch():
            return torch.empty(0, dtype=dtype, device=device).set_(copy.storage, offset, size, stride)


def trace_real_step(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: torch.optim.Optimizer
) -> str:
    """Trains `model` for one step, as a wrapped model would be trained.

    Returns:
        The step's graph as JSON (docs/formats/graph.schema.json).

    Raises:
        MemScaleError: the events do not make a graph.
    """
    kwargs = without_cache(model, args, kwargs)
    return _RealStep(model.train(), describe_arguments(args, kwargs)).run(args, kwargs, optimizer)
