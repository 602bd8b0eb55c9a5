"""Runs position-wise modules in tiles, some rows at a time, and again in backward.

A module in tiles saves its input and nothing else. Its forward runs one tile after the other. Its
backward runs each tile again, with a graph that is freed before the next tile. So the module's
intermediate results (the wide activations of an MLP) never exist for all rows. Sums over rows have
another order than without tiles, so results agree to rounding. Dropout drops the same elements as
without tiles.

`Tiles` puts its own forward on the instances, because hooks can't run a part of a call. Copies and
pickles of the modules do not have that forward.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _core
from ..base.aside import is_replaying, is_tracing
from ..base.environment import Environment, leave_inference_mode
from .position_wise import find_position_wise, has_hooked_parts
from .row_mode import RowMode, WholeMasks

__all__ = ["Tiles"]

_local = threading.local()


class Tiles:
    """The position-wise modules of one model.

    Args:
        model: the root module. Its position-wise modules are found at the first use.
        is_apart: whether memscale itself runs the model on the calling thread, other than in a
            replay of a layer.
        traced: whether modules run in tiles in traces only; if not, in real forwards while `is_on`.
    """

    def __init__(self, model: torch.nn.Module, is_apart: Callable[[], bool], traced: bool = False) -> None:
        self._model = weakref.ref(model)
        self._is_apart = is_apart
        self._traced = traced
        self._forwards: list[_TiledForward] | None = None
        self.is_on = traced

    def set(self, is_on: bool) -> None:
        """Lets modules run in tiles, or whole, from the next forward on."""
        self.is_on = is_on
        for forward in self._found() if is_on else self._forwards or ():
            if is_on:
                forward.install()
            else:
                forward.remove()

    def _found(self) -> list[_TiledForward]:
        model = self._model()
        if self._forwards is None:
            found = find_position_wise(model) if model is not None else []
            self._forwards = [_TiledForward(module, self) for _, module in found]
        return self._forwards

    @property
    def is_wanted(self) -> bool:
        """Whether this call of a module should run in tiles."""
        if self._traced or is_tracing():
            return self._traced
        if is_replaying():
            return getattr(_local, "replayed", None) is self
        return self.is_on and not self._is_apart()

    def put(self, undo: Any) -> None:
        """Lets a layer that ran in tiles run in tiles again, until `undo` runs, whatever has changed since its
        forward. Tiles of other models stay off on this thread meanwhile."""
        undo.slot(_local.__dict__, "replayed")
        _local.replayed = self
        for forward in self._found():
            if not forward.is_installed:
                forward.note(undo)
                forward.install()


class _TiledForward:
    """The forward of one module, in its instance's dictionary."""

    def __init__(self, module: torch.nn.Module, tiles: Tiles) -> None:
        self._module = weakref.ref(module)
        self._tiles = tiles
        self._before: Any = None  # a forward that the instance had

    @property
    def is_installed(self) -> bool:
        module = self._module()
        return module is not None and module.__dict__.get("forward") is self

    def note(self, undo: Any) -> None:
        """Makes `undo` restore everything that `install()` changes."""
        module = self._module()
        for name in ("forward", "__getstate__") if module is not None else ():
            undo.slot(module.__dict__, name)

    def install(self) -> None:
        """Puts this forward on the module, if it is not there."""
        module = self._module()
        if module is None or self.is_installed:
            return
        self._before = module.__dict__.get("forward")
        module.__dict__["forward"] = self
        module.__dict__.setdefault("__getstate__", self._state)

    def remove(self) -> None:
        """Restores the module's forward, unless other code has replaced it since."""
        module = self._module()
        if module is None:
            return
        if self.is_installed:
            del module.__dict__["forward"]
            if self._before is not None:
                module.__dict__["forward"] = self._before
        if getattr(module.__dict__.get("__getstate__"), "__self__", None) is self:
            del module.__dict__["__getstate__"]

    def _state(self) -> Any:
        """The module's state with its own forward, for a copy."""
        module = self._module()
        if module is None:
            return None
        state = type(module).__getstate__(module)
        if isinstance(state, dict):
            state = {key: value for key, value in state.items() if key != "__getstate__"}
            if state.get("forward") is self:
                del state["forward"]
                if self._before is not None:
                    state["forward"] = self._before
        return state

    def _original(self, module: torch.nn.Module) -> Callable[..., Any]:
        forward: Callable[..., Any] = type(module).forward.__get__(module) if self._before is None else self._before
        return forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if module is None:
            raise RuntimeError("a module's forward was called after the module was gone")
        forward = self._original(module)
        given = [*args, *kwargs.values()]
        if len(given) != 1 or not self._tiles.is_wanted or not _can_tile(module, given[0]):
            return forward(*args, **kwargs)
        rows = given[0].numel() // given[0].shape[-1]
        size = _core.tile_rows(rows)
        if size >= rows:
            return forward(*args, **kwargs)
        pinned = _Pin.apply(given[0])  # type: ignore[no-untyped-call]
        run = _Run(forward, module, pinned.grad_fn, rows, size, given[0])
        return _InTiles.apply(run, pinned, *run.parameters)  # type: ignore[no-untyped-call]


def _can_tile(module: torch.nn.Module, given: Any) -> bool:
    """Whether a call can run in tiles. Its input must be a plain tensor that needs a gradient, autocast must be
    off, and no hook may be on a part of the module, because it would see the tiles."""
    plain = isinstance(given, torch.Tensor) and (is_tracing() or type(given) is torch.Tensor)
    if not plain or given.dim() < 2 or not given.requires_grad or not torch.is_grad_enabled():
        return False
    if torch.is_autocast_enabled(given.device.type) or given.numel() == 0:
        return False
    return not has_hooked_parts(module)


class _Pin(torch.autograd.Function):
    """Saves the module's input before the module runs, so that a replay of the layer has recomputed
    all its saved tensors before it reaches the module."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given)
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Run:
    """One call of a module in tiles: the state needed to run it again."""

    def __init__(
        self,
        forward: Callable[..., Any],
        module: torch.nn.Module,
        pin: Any,
        rows: int,
        size: int,
        given: torch.Tensor,
    ) -> None:
        self._forward = forward
        self._pin = pin
        self.rows = rows
        self.size = size
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self._environment = None if is_tracing() else Environment()
        self._masks = WholeMasks(rows)

    def begin(self) -> None:
        """Begins a run over all tiles."""
        self._masks = WholeMasks(self.rows)

    def parts(self) -> Iterator[slice]:
        """The rows of each tile."""
        for begin in range(0, self.rows, self.size):
            yield slice(begin, min(begin + self.size, self.rows))

    def tile(self, rows: torch.Tensor, part: slice, twins: dict[int, torch.Tensor]) -> torch.Tensor:
        """The module's result for a tile of shape (1, rows, width)."""
        self._masks.tile(part)
        with RowMode(twins, self._masks):
            made: torch.Tensor = self._forward(rows)
        return made

    def given(self) -> torch.Tensor:
        """The module's saved input."""
        given: torch.Tensor = self._pin.saved_tensors[0]
        return given

    def as_then(self, function: Callable[[], None]) -> None:
        """Calls `function` in the environment of the module's call, its random state included."""
        _core.guarded(self._as_then, function)

    def _as_then(self, undo: Any, function: Callable[[], None]) -> None:
        leave_inference_mode(undo)
        if self._environment is None:
            undo.later(torch._C._set_grad_enabled, torch.is_grad_enabled())
            torch._C._set_grad_enabled(True)
            function()
        else:
            self._environment.put(undo)
            self._environment.call(function)

    def ended(self) -> None:
        """Frees the masks of the run."""
        self._masks = WholeMasks(self.rows)


class _InTiles(torch.autograd.Function):
    """A module's forward and backward, tile by tile."""

    @staticmethod
    def forward(ctx: Any, run: _Run, given: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.run = run
        rows = given.reshape(1, run.rows, given.shape[-1])
        made = given  # until the first tile gives the width
        run.begin()
        for part in run.parts():
            tile = run.tile(rows[:, part], part, {})
            if part.start == 0:
                made = tile.new_empty((1, run.rows, tile.shape[-1]))
            made[:, part] = tile
            del tile  # before the next tile is computed
        run.ended()
        return made.view(*given.shape[:-1], made.shape[-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        run: _Run = ctx.run
        given = run.given().detach()
        rows = given.reshape(1, run.rows, given.shape[-1])
        by_made = gradient.reshape(1, run.rows, gradient.shape[-1])
        by_rows = rows  # until the first tile needs it
        twins = {id(p): p.detach().requires_grad_() for p in run.parameters}

        def differentiate() -> None:
            nonlocal by_rows
            by_rows = torch.empty_like(rows)
            run.begin()
            for part in run.parts():
                tile = rows[:, part].detach().requires_grad_()
                torch.autograd.backward(run.tile(tile, part, twins), by_made[:, part])
                with torch.no_grad():
                    by_rows[:, part].copy_(tile.grad)  # type: ignore[arg-type]
            run.ended()

        run.as_then(differentiate)
        return None, by_rows.view(given.shape), *(twins[id(p)].grad for p in run.parameters)
