"""Modules that torch.compile has compiled.

`module.compile()` leaves a function in the attribute `_compiled_call_impl`; `torch.compile(module)` returns an
`OptimizedModule` around the module. torch's compiler is never loaded here: as long as it is not, nothing is compiled.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import _core
from ..device import refusal_of_graphs

if TYPE_CHECKING:
    import torch

__all__ = [
    "COMPILED_CALL",
    "calling_module",
    "compiled_parts",
    "compiler_of",
    "compiles_backwards",
    "has_compiled_code",
    "is_compiled",
    "original_of",
    "refusal_of",
    "running_eagerly",
]

COMPILED_CALL = "_compiled_call_impl"
"""The attribute of a module compiled in place."""

_ORIGINAL = "_orig_mod"
_FRAMES = "torch._dynamo.eval_frame"

Result = TypeVar("Result")


def _is_optimized(module: Any) -> bool:
    frames: Any = sys.modules.get(_FRAMES)
    return frames is not None and isinstance(module, frames.OptimizedModule)


def original_of(module: Any) -> Any:
    """The module inside what `torch.compile()` returned; any other object is returned as it is."""
    while _is_optimized(module):
        module = module._modules[_ORIGINAL]
    return module


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether a call of this very module runs compiled code. An `OptimizedModule` may call its module as written."""
    attributes = module.__dict__
    if attributes.get(COMPILED_CALL) is not None:
        return True
    called = attributes.get("_forward", attributes.get("forward"))
    return _is_optimized(module) and called is not attributes["_modules"][_ORIGINAL]


def has_compiled_code(module: torch.nn.Module) -> bool:
    """Whether the module or a part of it is compiled."""
    return any(is_compiled(inner) for inner in module.modules())


def compiled_parts(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The compiled modules, from `module` on inwards, that lie in no other compiled one."""
    if is_compiled(module):
        yield module
        return
    for child in module.children():
        yield from compiled_parts(child)


def compiler_of(module: torch.nn.Module) -> Any:
    """torch's object that compiles the calls of a compiled module, with backend, mode and options; None if this torch
    keeps it elsewhere."""
    if _is_optimized(module):
        return module.dynamo_ctx
    function = module.__dict__[COMPILED_CALL]
    while hasattr(function, "inner"):  # memscale's own code around it
        function = function.inner
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(function, "__closure__", None) or (), strict=False))
    return cells["self"].cell_contents if "self" in cells else None


def refusal_of(module: torch.nn.Module) -> str | None:
    """The reason why a compiled module can't be trained with memscale; None if it can."""
    backend: Any = getattr(compiler_of(module), "callback", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return refusal_of_graphs(backend)


def compiles_backwards() -> bool:
    """Whether compiled autograd is on, which traces backwards and the hooks that they call."""
    settings: Any = sys.modules.get("torch._dynamo.config")
    backwards: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    is_asked = getattr(settings, "compiled_autograd", False)
    return bool(is_asked or (backwards is not None and getattr(backwards, "compiled_autograd_enabled", False)))


def calling_module(frame: Any) -> torch.nn.Module | None:
    """The `OptimizedModule` whose method runs in this Python frame, if one does."""
    module = frame.f_locals.get("self")
    return cast("torch.nn.Module", module) if _is_optimized(module) else None


# ---- compiled code in traces ------------------------------------------------------------------


class _Eager:
    """A stance of torch's compiler (see `torch.compiler.set_stance`): on one thread compiled code runs as written,
    and on others as before. It does not compile anything, and does not look at caches."""

    def __init__(self, before: Any, seen: Callable[[], None]) -> None:
        self._before = before
        self._seen = seen
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)

    @property
    def stance(self) -> str:
        """torch reads this at every call of compiled code, and of code that it never compiles: no callback."""
        if threading.get_ident() != self._thread:
            return cast("str", self._before.stance)
        if sys._getframe(1).f_locals.get("callback") not in (None, False):
            self._seen()
        return "force_eager"


def running_eagerly(function: Callable[[], Result], seen: Callable[[], None] = lambda: None) -> Result:
    """Calls `function()`. Compiled code that it calls on this thread runs eagerly, after a call of `seen()`.

    Under a dispatch mode, such as a trace, torch's compiler would give up on the code that it meets, and run it eagerly
    in all later steps as well.
    """
    return cast("Result", _core.guarded(_running_eagerly, function, seen))


def _running_eagerly(undo: Any, function: Callable[[], Result], seen: Callable[[], None]) -> Result:
    frames = sys.modules.get(_FRAMES)
    if frames is not None:
        undo.slot(vars(frames), "_stance")
        frames._stance = _Eager(frames._stance, seen)  # type: ignore[attr-defined]
    return function()
