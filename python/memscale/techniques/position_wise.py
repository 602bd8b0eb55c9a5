"""Finds position-wise modules: each row of the result depends on one row of the input only, as in the
MLP of a transformer's layer.

They are found by a trial, not by name. A candidate runs once on a fake tensor, with a number of rows that
no other size has, and every operator must keep rows apart. No real tensor is computed. Profiler and
executor both call this module, so they agree on the modules.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _core
from ..base.compiler import has_compiled_code
from ..base.environment import without_modes
from ..base.walk import is_training, leaves_of, tensors_of
from ..model.isolation import Snapshot
from ..model.layers import find_layers
from .row_mode import RowMode

__all__ = ["find_position_wise", "has_hooked_parts"]

# torch logs each operator that refuses its fake arguments, with a traceback. In a trial that is an answer.
_torch_log = logging.getLogger("torch._subclasses.fake_tensor")

_ROWS = 1009
"""The number of rows of the fake input. It is a prime, so that no product of other sizes is mistaken for it."""


def find_position_wise(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The outermost position-wise modules inside the layers of a model.

    Args:
        model: the root module. It computes nothing and is not changed.

    Returns:
        Pairs of qualified name and module; none contains another.
    """
    known: dict[Any, bool] = {}
    found: list[tuple[str, torch.nn.Module]] = []
    for name, layer in find_layers(model):
        if has_compiled_code(layer):
            continue  # a tiled forward would be compiled too
        found.extend(_inside(name, layer, known))
    return found


def has_hooked_parts(module: torch.nn.Module) -> bool:
    """Whether a hook would see the calls of a part of the module."""
    from torch.nn.modules import module as of_all

    everywhere = (
        of_all._global_forward_hooks,
        of_all._global_forward_pre_hooks,
        of_all._global_backward_hooks,
        of_all._global_backward_pre_hooks,
    )
    return any(everywhere) or any(
        inner._forward_hooks or inner._forward_pre_hooks or inner._backward_hooks or inner._backward_pre_hooks
        for inner in module.modules()
        if inner is not module
    )


def _inside(name: str, module: torch.nn.Module, known: dict[Any, bool]) -> Iterator[tuple[str, torch.nn.Module]]:
    for child_name, child in module.named_children():
        full = f"{name}.{child_name}"
        if _is_position_wise(child, known):
            yield full, child
        else:
            yield from _inside(full, child, known)


def _is_position_wise(module: torch.nn.Module, known: dict[Any, bool]) -> bool:
    parameters = list(module.parameters())
    matrices = [p for p in parameters if p.dim() == 2]
    # A single linear layer has no intermediate result to save.
    if not matrices or len(list(module.children())) < 2 or any(True for _ in module.buffers()):
        return False
    if has_hooked_parts(module):
        return False
    if any(type(p) is not torch.nn.Parameter or _ROWS in p.shape for p in parameters):
        return False
    key = (*_structure(module), *(tuple(p.shape) for p in parameters))
    if key not in known:
        widths = dict.fromkeys((matrices[0].shape[1], matrices[0].shape[0]))
        known[key] = any(_passes(module, width, matrices[0]) for width in widths)
    return known[key]


def _structure(module: torch.nn.Module) -> Iterator[Any]:
    """Yields the class of each inner module and the settings in its repr (sizes, probabilities)."""
    for inner in module.modules():
        yield type(inner), inner.extra_repr(), is_training(inner)


def _passes(module: torch.nn.Module, width: int, like: torch.Tensor) -> bool:
    return bool(_core.guarded(_try, module, width, like))


def _try(undo: Any, module: torch.nn.Module, width: int, like: torch.Tensor) -> bool:
    undo.signals()  # what their handlers raise could end the process inside of fake tensors
    Snapshot(module, undo)
    without_modes(undo)
    undo.slot(_torch_log.__dict__, "disabled")
    _torch_log.disabled = True
    modes = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with torch.enable_grad(), torch.inference_mode(False), modes:
            rows = torch.empty((1, _ROWS, width), dtype=like.dtype, device=like.device, requires_grad=True)
            twins = {id(p): torch.empty_like(p, requires_grad=p.requires_grad) for p in module.parameters()}
            with _Watch(rows), RowMode(twins, None):
                made = module.forward(rows)
            # A gradient that bypasses the twins would be lost.
            return _place(made) and {id(leaf) for leaf in leaves_of(made)} <= {id(rows), *map(id, twins.values())}
    except Exception:  # an unsuitable module may raise anything
        return False


def _place(value: Any) -> bool:
    """Whether a tensor has its rows in the expected dimension: the first, or one after dimensions of size 1."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    sizes = [size for size in value.shape if size != 1]
    return bool(sizes) and sizes[0] == _ROWS and sizes.count(_ROWS) == 1


class _Mixed(Exception):
    """An operator may mix rows."""


class _Watch(TorchDispatchMode):
    """Raises at the first operator that may mix rows of the input."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._input = rows.untyped_storage()._cdata
        self._rows: dict[int, Any] = {self._input: rows.untyped_storage()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "prim":
            return result
        given = list(tensors_of((*args, *(kwargs or {}).values())))
        made = list(tensors_of((result,)))
        if any(self._is_row(value) for value in given):
            self._check(func, args, given, made)
            for value in made:
                storage = value.untyped_storage()
                self._rows[storage._cdata] = storage
        elif func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
            raise _Mixed(str(func))
        return result

    def _is_row(self, value: torch.Tensor) -> bool:
        return value.untyped_storage()._cdata in self._rows

    def _check(self, func: Any, args: tuple[Any, ...], given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        rows = [value for value in given if self._is_row(value)]
        kind = _core.operator_row_kind(str(func), torch.Tag.pointwise in func.tags)
        fits = all(map(_place, (*rows, *made))) and torch.Tag.nondeterministic_seeded not in func.tags
        if func._schema.is_mutable:
            target = args[0]
            fits = fits and self._is_row(target) and target.untyped_storage()._cdata != self._input
        if kind == "each":
            fits = fits and len({value.dim() - value.shape.index(_ROWS) for value in (*rows, *made)}) == 1
        elif kind == "product":
            left = args[1] if "addmm" in str(func) else args[0]
            fits = fits and len(rows) == 1 and self._is_row(left)
        elif kind == "seen":
            fits = fits and len(rows) == 1
        else:
            fits = False
        if not fits:
            raise _Mixed(str(func))
