"""Runs code before and after a module's forward, or before and after its compiled call, without a hook.

Two kinds of module can't have hooks. torch's encoders choose other kernels if they have some (see `fast_paths.py`).
And a hook on a compiled module would be compiled with it: the code has to stand outside of the compiled region.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..base.compiler import COMPILED_CALL, is_compiled
from ..base.modes import DISPATCH, FUNCTION, is_ours, without
from ..base.walk import is_training

__all__ = ["FORWARD", "Around", "place_of", "restore"]

FORWARD = "forward"


def place_of(module: torch.nn.Module) -> str | None:
    """The attribute of a compiled module at which code stands outside of what was compiled; None if the module is not
    compiled."""
    if module.__dict__.get(COMPILED_CALL) is not None:
        return COMPILED_CALL
    return FORWARD if is_compiled(module) else None


class Around:
    """Calls `before` and `after` around a call, as a pre-hook with keyword arguments and a hook that is always called
    are called, but torch does not find it among the hooks. It is an attribute of the module.

    torch's compiler guards on the modes that are on, and traces them, so memscale's own are off in compiled code. Only
    the mode of a static trace stays on: that runs the code as written, and has to see its operators.

    Args:
        module: the module. It may have a function of its own in this place already, which then runs inside.
        before: returns other arguments, or None.
        after: gets the output, or None if the call raised.
        place: the attribute: `FORWARD`, or that of a compiled call.
    """

    __slots__ = ("__weakref__", "_after", "_before", "_is_compiled", "_module", "_place", "inner")

    def __init__(self, module: torch.nn.Module, before: Any, after: Any, place: str = FORWARD) -> None:
        self._module = weakref.ref(module)
        self._before = before
        self._after = after
        self._place = place
        self._is_compiled = place == place_of(module)
        self.inner: Any = module.__dict__.get(place)
        module.__dict__[place] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        call = self.inner if self.inner is not None else type(module).forward.__get__(module)  # type: ignore[union-attr]
        if self._before is None or module is None:
            return call(*args, **kwargs)
        output = None
        try:
            args, kwargs = self._before(module, args, kwargs) or (args, kwargs)
            if self._is_compiled:
                with without(FUNCTION, is_ours), without(DISPATCH, _is_unwanted):
                    output = call(*args, **kwargs)
            elif is_training(module):
                output = call(*args, **kwargs)
            else:
                with without(FUNCTION, is_ours):
                    output = call(*args, **kwargs)
        finally:
            if self._after is not None:
                self._after(module, args, kwargs, output)
        return output

    @property
    def is_in_place(self) -> bool:
        """Whether the module still calls this object. Compiling the module again replaces it."""
        module = self._module()
        return module is not None and module.__dict__.get(self._place) is self

    def remove(self) -> None:
        """Leaves the module as it was. If other code has replaced the attribute since, that code may still call this
        object, which then only calls on."""
        self._before = self._after = None
        module = self._module()
        if module is not None and self.is_in_place:
            del module.__dict__[self._place]
            if self.inner is not None:
                module.__dict__[self._place] = self.inner


def _is_unwanted(mode: Any) -> bool:
    """Whether a dispatch mode has to be off in compiled code."""
    return is_ours(mode) and not getattr(mode, "runs_code_as_written", False)


def restore(attributes: dict[str, Any]) -> None:
    """Puts back what a module had before any of these into a copy of its attributes."""
    for place in (FORWARD, COMPILED_CALL):
        around = attributes.get(place)
        if not isinstance(around, Around):
            continue
        del attributes[place]
        inner = around.inner
        while isinstance(inner, Around):  # of another device's executor
            inner = inner.inner
        if inner is not None:
            attributes[place] = inner
