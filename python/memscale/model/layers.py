"""Finds the layers of a model: the modules that a plan treats one by one.

Profiler and executor must agree on the layers, so both hook the modules that `find_layers()` returns,
under its names. The search reads structure only: which module holds which, their classes, and
the shapes of their parameters. It knows only torch's own containers by name, and never calls a module.

How layers are found
    A *container* (`ModuleList`, `ModuleDict`, `Sequential`, or a module whose parameters are mostly
    in two or more equal composite children) contributes its children.
    The walk starts at the root and stops at the first container on every path, so
    layers never nest. Two corrections follow:

    - If only a few layers were found, some are replaced by their children: each unique layer that holds
      torch containers of similar composite modules (the stages of a vision model, a model in a list of
      one). Equal layers are never opened, because they hold parts such as experts.
    - Containers of bare leaves (a `Sequential` of a linear and an activation) count only if nothing
      larger was found. Beside transformer blocks they are part of the root's own work; in a plain
      perceptron they are the layers.

    Without any container, the root's direct children that have parameters are taken. So they are if only leaves that
    hold less than half of the parameters were found, and blocks are beside them: the time embedding of a U-Net whose
    blocks differ in size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.compiler import original_of

if TYPE_CHECKING:
    import torch

    Named = tuple[str, torch.nn.Module]

__all__ = ["find_layers"]

_FEW_LAYERS = 6
"""If fewer layers were found, stages are opened, since vision models have four stages of many blocks."""


def find_layers(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The layers of a model, in the order in which the model holds them.

    Args:
        model: the root module. It is neither called nor changed.

    Returns:
        Pairs of qualified name (as in `named_modules()`) and module. No layer
        contains another, and no module appears twice. A scripted module is not a layer. The list is
        empty if the model has no children; then everything is the root's own work.
    """
    finder = _Finder()
    layers = _without_leaf_groups(finder.walk("", model))
    while len(layers) < _FEW_LAYERS:
        opened = finder.open_stages(layers)
        if len(opened) == len(layers):
            break
        layers = opened
    children = _with_parameters(_children("", model))
    if not layers or (_are_small_leaves(layers, model) and _has_other_blocks(layers, children)):
        layers = children
    return _unique(layers)


class _Finder:
    """The walk, with the signatures computed so far."""

    def __init__(self) -> None:
        self._signatures: dict[int, tuple[Any, ...]] = {}

    def walk(self, name: str, module: torch.nn.Module, torch_only: bool = False) -> list[Named]:
        """Layers below `module`, which is not a layer itself. With `torch_only`, only those in torch's containers."""
        children = _children(name, module)
        if _is_container(module):
            return [
                layer
                for child in children
                for layer in ([child] if _is_callable(child[1]) else self.walk(*child, torch_only))
            ]
        below = [layer for child in children for layer in self.walk(*child, torch_only)]
        if torch_only or any(_is_composite(layer) for _, layer in below):
            return below
        if self._has_equal_children(module):
            return [(name, child) for name, child in children if _is_callable(child) and _is_composite(child)]
        return below

    def open_stages(self, layers: list[Named]) -> list[Named]:
        """The layers, with every stage replaced by the layers in it."""
        counts: dict[tuple[Any, ...], int] = {}
        for _, layer in layers:
            counts[self.signature(layer)] = counts.get(self.signature(layer), 0) + 1
        result = []
        for name, layer in layers:
            inner = [pair for pair in self.walk(name, layer, True) if _is_composite(pair[1])]
            is_stage = counts[self.signature(layer)] == 1 and len(inner) > 1 and _alike(inner)
            result.extend(inner if is_stage else [(name, layer)])
        return result

    def _has_equal_children(self, module: torch.nn.Module) -> bool:
        """Whether equal composite children hold more than half of the parameters."""
        total = _parameter_count(module)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for _, child in _children("", module):
            if _is_composite(child) and _is_callable(child):
                groups.setdefault(self.signature(child), []).append(_parameter_count(child))
        return any(len(group) > 1 and 2 * sum(group) > total > 0 for group in groups.values())

    def signature(self, module: torch.nn.Module) -> tuple[Any, ...]:
        """Class, own parameter shapes and the children's signatures: equal for equal structure."""
        known = self._signatures.get(id(module))
        if known is None:
            given, module = module, original_of(module)
            own = tuple(tuple(parameter.shape) for parameter in module._parameters.values() if parameter is not None)
            inner = tuple(self.signature(child) for _, child in module.named_children())
            known = (type(module), own, inner)
            self._signatures[id(given)] = known
        return known


def _children(name: str, module: torch.nn.Module) -> list[Named]:
    """A module's children, without those that compute its parameters (weight norm and similar)."""
    from torch.nn.utils.parametrize import is_parametrized

    original = original_of(module)
    prefix = f"{name}." if name else ""
    if original is not module:
        prefix, module = f"{prefix}_orig_mod.", original
    skipped = module.parametrizations if is_parametrized(module) else None
    return [(prefix + child_name, child) for child_name, child in module.named_children() if child is not skipped]


def _is_container(module: torch.nn.Module) -> bool:
    import torch

    containers = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
    module = original_of(module)
    return isinstance(module, containers) and len(module) > 0


def _is_callable(module: torch.nn.Module) -> bool:
    """Whether the module has a forward of its own: lists and dictionaries have none."""
    import torch

    # Not by getattr: a scripted module's class has no such attribute.
    owner = next(cls for cls in type(original_of(module)).__mro__ if "forward" in cls.__dict__)
    return owner is not torch.nn.Module


def _is_composite(module: torch.nn.Module) -> bool:
    return bool(_children("", module))


def _alike(layers: list[Named]) -> bool:
    """Whether most of them are of one class, as the blocks of a stage are."""
    classes: dict[type, int] = {}
    for _, layer in layers:
        kind = type(original_of(layer))
        classes[kind] = classes.get(kind, 0) + 1
    return 2 * max(classes.values()) > len(layers)


def _with_parameters(children: list[Named]) -> list[Named]:
    return [pair for pair in children if _is_callable(pair[1]) and any(True for _ in pair[1].parameters())]


def _are_small_leaves(layers: list[Named], model: torch.nn.Module) -> bool:
    """Whether these are leaves that hold less than half of the model's parameters."""
    held = sum(_parameter_count(layer) for _, layer in layers)
    return not any(_is_composite(layer) for _, layer in layers) and 2 * held < _parameter_count(model)


def _has_other_blocks(layers: list[Named], children: list[Named]) -> bool:
    """Whether a child is a block that contains none of the layers."""
    return any(
        _is_composite(child) and not any(layer.startswith(f"{name}.") for layer, _ in layers)
        for name, child in children
    )


def _parameter_count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _without_leaf_groups(layers: list[Named]) -> list[Named]:
    """Drops leaves if at least two composite layers were found."""
    composite = [pair for pair in layers if _is_composite(pair[1])]
    return composite if len(composite) > 1 else layers


def _unique(layers: list[Named]) -> list[Named]:
    """Each module once, without modules that lie inside another of the list."""
    seen: set[int] = set()
    result = []
    for name, layer in layers:
        if id(layer) not in seen:
            seen.add(id(layer))
            result.append((name, layer))
    inside = {id(inner) for _, layer in result for inner in layer.modules() if inner is not layer}
    return [(name, layer) for name, layer in result if id(layer) not in inside and not _is_scripted(layer)]


def _is_scripted(module: torch.nn.Module) -> bool:
    """Whether TorchScript is part of the module: scripted modules accept no hooks, and save other
    tensors once the interpreter has optimized them, so their runs do not repeat."""
    import torch

    return any(isinstance(inner, torch.jit.ScriptModule) for inner in module.modules())
