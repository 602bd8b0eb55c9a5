"""Follows what torch.compile does to one wrapped model, before `wrap()` and after it.

Saved-tensor hooks can stand around compiled code but not inside. So a layer may be compiled (its hooks stand outside of
it, see `around.py`), and a module that contains layers may not: while the model is wrapped, the layers are compiled in
its place, by the same compiler object, that is with the same backend, mode and options. `put_back()` undoes that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..base.compiler import (
    COMPILED_CALL,
    compiled_parts,
    compiler_of,
    compiles_backwards,
    is_compiled,
    original_of,
    refusal_of,
)
from ..errors import IntegrationError
from ..model.layers import find_layers

if TYPE_CHECKING:
    import torch

    from .notices import Notices

__all__ = ["Compilation", "refuse_compiled_autograd", "refuse_compiled_on_several"]

_MISSING = object()
_FORWARDS = ("forward", "_forward")
"""The attributes by which an `OptimizedModule` calls its compiled code. The second one exists if torch took the module
inside for a lazy one, as it does a wrapped one; see `RootHooks`."""


class Compilation:
    """The compiled modules of one model.

    Args:
        notices: logs what is compiled otherwise than the caller asked for.
    """

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._noted: list[tuple[dict[str, Any], str, Any]] = []

    def take_over(self, model: torch.nn.Module, around: torch.nn.Module | None = None) -> None:
        """Lets the layers of `model` be compiled in place of the modules that contain them, `around` included, which
        is what `torch.compile(model)` returned.

        Raises:
            IntegrationError: the model can't be compiled so, or not in the mode that was asked for.
        """
        layers = [layer for _, layer in find_layers(model)]
        if around is not None:
            self._compile_apart(around, layers, model)
        while True:
            parts = list(compiled_parts(model))
            refused = next(filter(None, map(refusal_of, parts)), None)
            if refused is not None:
                raise IntegrationError(f"{type(model).__name__} was compiled by torch.compile {refused}")
            ids = {id(layer) for layer in layers}
            whole = next((part for part in parts if id(part) not in ids and (part is model or _below(part, ids))), None)
            if whole is None:
                return
            self._compile_apart(whole, layers, model)

    def put_back(self) -> None:
        """Lets the caller's own compiled code run again. What was compiled since then stays."""
        for attributes, name, before, ours in reversed(self._replaced):
            if attributes.get(name, _MISSING) is ours:
                _set(attributes, name, before)
        self._replaced = []
        self._noted = []

    def note(self, model: torch.nn.Module) -> None:
        """Remembers which layers there are, and what they and the modules around them are compiled to."""
        self._noted = []
        for name, layer in find_layers(model):
            parts = name.split(".")
            for depth in range(len(parts)):
                parent = model.get_submodule(".".join(parts[:depth]))
                self._noted.append((parent._modules, parts[depth], parent._modules[parts[depth]]))
                self._noted.append((parent.__dict__, COMPILED_CALL, parent.__dict__.get(COMPILED_CALL)))
            self._noted.append((layer.__dict__, COMPILED_CALL, layer.__dict__.get(COMPILED_CALL)))

    def has_changed(self) -> bool:
        """Whether a layer, or a module around one, was compiled or replaced since `note()`."""
        return any(attributes.get(name) is not value for attributes, name, value in self._noted)

    def _compile_apart(self, whole: torch.nn.Module, layers: list[torch.nn.Module], model: torch.nn.Module) -> None:
        """Lets the layers inside `whole` be compiled, and `whole` itself run as written."""
        name = type(original_of(whole)).__name__
        compiler = compiler_of(whole)
        inside = {id(module) for module in whole.modules()}
        mine = [layer for layer in layers if id(layer) in inside and layer is not original_of(whole)]
        refused = _obstacle(compiler, mine) or refusal_of(whole)
        if refused is not None:
            raise IntegrationError(f"{name} was compiled by torch.compile as a whole {refused}")
        compiled = [layer for layer in mine if not is_compiled(layer)]
        for layer in compiled:
            self._replace(layer.__dict__, COMPILED_CALL, compiler(layer._call_impl))
        if whole.__dict__.get(COMPILED_CALL) is not None:
            self._replace(whole.__dict__, COMPILED_CALL, _MISSING)
        else:
            for place in _FORWARDS:
                if place in whole.__dict__:
                    self._replace(whole.__dict__, place, whole._modules["_orig_mod"])
        self._notices.say(
            f"whole {name}",
            logging.INFO,
            f"{name} was compiled as a whole; while it is wrapped, its {len(mine)} layers are compiled instead, one by "
            "one, with the same backend, mode and options, because memscale acts between layers. Losses and gradients "
            "have the bits of layers compiled so; those of the whole compiled model may differ in the last bits, and "
            "dropout draws other masks",
        )

    def _replace(self, attributes: dict[str, Any], name: str, value: Any) -> None:
        self._replaced.append((attributes, name, attributes.get(name, _MISSING), value))
        _set(attributes, name, value)


def refuse_compiled_on_several(model: torch.nn.Module, around: torch.nn.Module | None) -> None:
    """Raises IntegrationError if a part of `model`, which lies on several devices, or the module `around` it is
    compiled: each device's executor would have to stand around the same compiled code."""
    if around is not None or next(iter(compiled_parts(model)), None) is not None:
        raise IntegrationError(
            f"{type(model).__name__} lies on several devices and was compiled by torch.compile; memscale plans for one "
            "or the other: leave it uncompiled, or put it on one device"
        )


def refuse_compiled_autograd(name: str) -> None:
    """Raises IntegrationError if backwards are compiled: saved tensors would be asked for while they are traced."""
    if compiles_backwards():
        raise IntegrationError(
            f"compiled autograd is on, which traces backwards, and with them the hooks of memscale on {name}; switch "
            "torch._dynamo.config.compiled_autograd off (the layers' backwards stay compiled)"
        )


def _below(module: torch.nn.Module, wanted: set[int]) -> bool:
    """Whether the module contains one of these."""
    own = original_of(module)
    return any(id(inner) in wanted for inner in module.modules() if inner is not module and inner is not own)


def _obstacle(compiler: Any, layers: list[torch.nn.Module]) -> str | None:
    """The reason why these layers can't be compiled in place of the module that contains them."""
    if not layers:
        return "and has no layers that could be compiled one by one; wrap the original module and train it uncompiled"
    if compiler is None:
        return (
            "and this version of torch does not tell how; compile its layers one by one: for layer in layers: "
            "layer.compile()"
        )
    if getattr(compiler, "fullgraph", False):
        return (
            "with fullgraph=True, which demands one graph of it, and memscale acts between layers; compile its layers "
            "one by one: for layer in layers: layer.compile(fullgraph=True)"
        )
    return None


def _set(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        attributes.pop(name, None)
    else:
        attributes[name] = value
