"""The streamed parameters of a model, by layer.

`memscale.stream()` makes them. Their bytes can be read and written at any time. The executor announces each layer
before it runs, so that C makes its parameters resident; the session plans with the sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from .layers import find_layers

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

__all__ = ["StreamedLayers"]


class StreamedLayers:
    """The layers of one model with streamed parameters. Streamed parameters outside of layers are kept resident.

    Args:
        model: the root module.

    Attributes:
        total_bytes: bytes of all streamed parameters and buffers; 0 if none stream.
        sums: total_bytes, the smallest sensible window, the bytes that are trained, those in a checkpoint's own files,
            and the directory of the others' files.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        layers = find_layers(model)
        self._numbers = {id(module): number for number, (_, module) in enumerate(layers)}
        self._order = _core.streamed_layers_new()
        inside: set[int] = set()
        for _, module in layers:
            addresses = _addresses(_tensors(module))
            inside.update(addresses)
            _core.streamed_layers_add(self._order, addresses)
        everything = _addresses(_tensors(model))
        kept = [address for address in everything if address not in inside]
        trained = _addresses(value for value in model.parameters() if value.requires_grad)
        # What is written leaves its checkpoint's file: written pages of that can't leave memory.
        _core.streamed_own(trained, False)
        _core.streamed_own(everything, True)
        self.total_bytes = _core.streamed_bytes(everything)
        least = _core.streamed_bytes(kept) + _core.streamed_layers_least_bytes(self._order)
        self.sums = (
            self.total_bytes,
            min(least, self.total_bytes),
            _core.streamed_bytes(trained),
            *_core.streamed_source(everything),
        )
        if self.total_bytes > 0:
            _core.streamed_keep(kept)

    @classmethod
    def of(cls, model: torch.nn.Module) -> StreamedLayers | None:
        """The streamed layers of `model`; None if none of its parameters stream."""
        if _core.streamed_stats()["blocks"] == 0:
            return None
        found = cls(model)
        return found if found.total_bytes > 0 else None

    def enter(self, module: torch.nn.Module) -> None:
        """Called when `module` is about to run. Returns when its parameters are resident."""
        import torch

        number = self._numbers.get(id(module))
        if number is not None:
            _core.streamed_layers_enter(self._order, number, torch._C._current_graph_task_id() != -1)

    def watch_backward(self, module: torch.nn.Module, output: torch.Tensor | None) -> None:
        """Enters `module` again when backward reaches it through `output`, which it has just returned."""
        number = self._numbers.get(id(module))
        node = None if output is None else output.grad_fn
        if number is not None and node is not None:
            order = self._order
            node.register_prehook(lambda gradients: _core.streamed_layers_enter(order, number, True))


def _tensors(module: torch.nn.Module) -> Iterable[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _addresses(tensors: Iterable[Any]) -> list[int]:
    """The addresses of the tensors' storages, without repeats. Skips tensors that have no storage on the host."""
    import torch

    found: dict[int, None] = {}
    for tensor in tensors:
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            found[tensor.untyped_storage().data_ptr()] = None
    return list(found)
