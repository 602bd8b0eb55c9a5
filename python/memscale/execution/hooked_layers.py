"""The hooks on the layers of one wrapped model, and what surrounds its other parts.

The executor puts them on when a plan or the loop needs them, and takes them off again. `compilation.py` follows what is
compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..base.compiler import compiled_parts
from ..model.layers import find_layers
from ..model.shards import has_shards
from .around import FORWARD, place_of
from .compilation import Compilation, refuse_compiled_on_several
from .fast_paths import outermost, unhookable
from .hooks import LayerHooks, Surrounded
from .module_state import LayerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from .. import _core
    from ..model.placement import Placement
    from .layer_calls import LayerCalls
    from .notices import Notices

__all__ = ["HookedLayers"]


class HookedLayers:
    """The layers of one model, hooked or not. Only the thread that runs the model's forward uses it.

    Args:
        core: the C side of the execution, which numbers the layers.
        calls: is told of their calls.
        notices: logs what the user should know of compiled parts.
        wait_until_alone: called before hooks go, because a layer that runs on another thread needs its hook to end.
        placement: the device whose layers are hooked, if the model lies on several.
    """

    def __init__(
        self,
        core: _core.Execution,
        calls: LayerCalls,
        notices: Notices,
        wait_until_alone: Callable[[], bool],
        placement: Placement | None,
    ) -> None:
        self._core = core
        self._calls = calls
        self._wait_until_alone = wait_until_alone
        self._placement = placement
        self._layers: list[LayerHooks] = []
        self._surrounded: list[Surrounded] = []
        self._compilation = Compilation(notices)

    def put(self, model: torch.nn.Module, wanted: bool) -> None:
        """Hooks the layers, or takes the hooks off. Does nothing if they are as wanted."""
        if wanted == bool(self._layers):
            return
        if not wanted:
            self._wait_until_alone()
            for layer in self._layers:
                layer.remove()
            self._layers = []
            self.surround(model, True)
            return
        self.surround(model, False)
        around = unhookable(model)
        self._calls.gathers = has_shards(model)
        found = find_layers(model) if self._placement is None else self._placement.layers(model)
        self._layers = [
            LayerHooks(
                module,
                self._core.add_layer(name),
                LayerState(name),
                self._calls,
                place_of(module) or (FORWARD if id(module) in around else None),
            )
            for name, module in found
        ]
        self.surround(model, True)

    def surround(self, model: torch.nn.Module | None, wanted: bool) -> None:
        """Surrounds the modules that may take a fast path or are compiled, and are neither root nor layers, or leaves
        them alone. `model`: None if it does not exist any more."""
        for module in self._surrounded:
            module.remove()
        self._surrounded = []
        if model is None or not wanted:
            return
        if self._placement is None or self._placement.leads:
            hooked = {id(model), *(id(layer.module) for layer in self._layers)}
            if self._placement is not None:
                hooked |= self._placement.hooked_by_all(model)
            alone = [*outermost(model), *compiled_parts(model)]
            self._surrounded = [Surrounded(module) for module in alone if id(module) not in hooked]
        self._compilation.note(model)

    def take_over_compiled(self, model: torch.nn.Module, around: torch.nn.Module | None = None) -> None:
        """Lets layers be compiled in place of compiled modules that contain them; `around` as in `Executor.attach()`.

        Raises:
            IntegrationError: they can't be.
        """
        if self._placement is not None:
            refuse_compiled_on_several(model, around)
        self._compilation.take_over(model, around)

    def follow_compilation(self, model: torch.nn.Module) -> bool:
        """Hooks the layers again if some were compiled or replaced. Returns whether they were."""
        if not self._compilation.has_changed():
            return False
        self.take_over_compiled(model)
        hooked = bool(self._layers)
        self.put(model, False)
        self.surround(model, True)
        self.put(model, hooked)
        return True

    def remove(self, model: torch.nn.Module | None) -> None:
        """Takes everything off, and lets the caller's own compiled code run again."""
        if model is not None:
            self.put(model, False)
        self.surround(model, False)
        self._compilation.put_back()
