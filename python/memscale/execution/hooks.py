"""The hooks on a model, which run before and after the root and its layers.

A hooked module has these hooks, functions that copy and pickle it, and, if it is the root, a
reference to the executor. Copies and pickles of a hooked module have none of them.
"""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import IntegrationError

if TYPE_CHECKING:
    import torch

    from .module_state import LayerState

__all__ = ["LayerHooks", "RootHooks"]

EXECUTOR_ATTRIBUTE = "_memscale_executor"

# Functions in a hooked module's instance dictionary. torch.jit.script looks for the last one.
_ASKED_FOR = ("__getstate__", "__deepcopy__", "__reduce_ex__", "__prepare_scriptable__")
_OURS = (EXECUTOR_ATTRIBUTE, *_ASKED_FOR)

_HOOK_DICTS = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
}


class RootWatcher(Protocol):
    """The methods that the root's hooks call; see `Executor`."""

    def before_root(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None: ...

    def after_root(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None: ...


class LayerWatcher(Protocol):
    """The methods that a layer's hooks call; see `LayerCalls`."""

    def before(
        self, layer: LayerHooks, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def after(self, layer: LayerHooks, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...


class _Hook:
    """A hook callable. Its copies, made with a hook dictionary, do nothing."""

    __slots__ = ("__weakref__", "_call")

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __deepcopy__(self, memo: Any) -> Any:
        return _Hook(_nothing)

    def __reduce__(self) -> Any:
        return (_Hook, (_nothing,))


def _nothing(*args: Any) -> None:
    return None


class _HookedModule:
    """The hooks of one module, and the functions that copy and pickle it without them."""

    def __init__(self, module: torch.nn.Module, before: Any, after: Any) -> None:
        self._module = weakref.ref(module)
        self._handles = [
            module.register_forward_pre_hook(_Hook(before), prepend=True, with_kwargs=True),
            module.register_forward_hook(_Hook(after), with_kwargs=True, always_call=True),
        ]
        # These are attributes of the instance, because copy and pickle look there for the state
        # and for functions that copy or reduce.
        module.__dict__["__getstate__"] = self._state
        module.__dict__["__deepcopy__"] = self._copied
        module.__dict__["__reduce_ex__"] = self._reduced
        module.__dict__["__prepare_scriptable__"] = self._refuse_script

    def _state(self) -> Any:
        module = self._module()
        return _without_hooks(type(module).__getstate__(module)) if module is not None else None

    def _copied(self, memo: dict[int, Any]) -> Any:
        """A deep copy, made as the unhooked module would make it."""
        module = self._module()
        own: Any = getattr(type(module), "__deepcopy__", None)
        if module is None:
            return None
        if own is None:
            return self._copied_by_state(module, memo)
        # A class with a copy function of its own (parametrized modules, torch.fx) copies the
        # instance's dictionary. Our attributes are passed through uncopied, then removed from the copy.
        attributes: dict[str, Any] = module.__dict__
        memo.update((id(attributes[name]), attributes[name]) for name in _OURS if name in attributes)
        made = own(module, memo)
        if made is not module and type(getattr(made, "__dict__", None)) is dict:
            clean = _without_hooks(made.__dict__)
            for name in _OURS:
                made.__dict__.pop(name, None)
            made.__dict__.update(clean)
        return made

    def _copied_by_state(self, module: torch.nn.Module, memo: dict[int, Any]) -> Any:
        """The default deep copy, which calls `__getstate__`."""
        del module.__dict__["__deepcopy__"]
        try:
            return copy.deepcopy(module, memo)
        finally:
            module.__dict__["__deepcopy__"] = self._copied

    def _reduced(self, protocol: int) -> Any:
        """The value for pickle. A class with its own reduce function runs it with our attributes removed."""
        module = self._module()
        kind: Any = type(module)
        if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
            return object.__reduce_ex__(module, protocol)
        attributes: dict[str, Any] = module.__dict__ if module is not None else {}
        ours = {name: attributes.pop(name) for name in _OURS if name in attributes}
        try:
            return kind.__reduce_ex__(module, protocol)
        finally:
            attributes.update(ours)

    def _refuse_script(self) -> Any:
        """Refuses TorchScript, which would compile our hooks and can't. It is not given an unhooked
        copy either, because torch would put that copy into the caller's model.

        Raises:
            IntegrationError: always.
        """
        raise IntegrationError(
            f"torch.jit.script: {type(self._module()).__name__} is wrapped by memscale, whose hooks can't be compiled; "
            "script copy.deepcopy(model), which comes without them, or memscale.detach(model) first"
        )

    def remove(self) -> None:
        """Removes the hooks and the functions."""
        for handle in self._handles:
            handle.remove()
        module = self._module()
        attributes: dict[str, Any] = module.__dict__ if module is not None else {}
        for name in _ASKED_FOR:
            if getattr(attributes.get(name), "__self__", None) is self:
                del attributes[name]


class RootHooks(_HookedModule):
    """The hooks around the forward of the wrapped model."""

    def __init__(self, module: torch.nn.Module, executor: RootWatcher) -> None:
        super().__init__(module, executor.before_root, executor.after_root)
        module.__dict__[EXECUTOR_ATTRIBUTE] = executor

    def remove(self) -> None:
        super().remove()
        module = self._module()
        if module is not None:
            module.__dict__.pop(EXECUTOR_ATTRIBUTE, None)


class LayerHooks(_HookedModule):
    """The hooks around every call of a layer."""

    def __init__(self, module: torch.nn.Module, number: int, state: LayerState, calls: LayerWatcher) -> None:
        self.number = number
        self.state = state
        self._calls = calls
        super().__init__(module, self._before, self._after)

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.before(self, module, args, kwargs)

    def is_first(self, module: torch.nn.Module) -> bool:
        """Whether no other pre-hook ran before ours. An earlier one may have changed the arguments,
        and would change them again in a replay. If the module's own hooks came first, ours is moved
        to the front for the next call."""
        from torch.nn.modules import module as of_all

        hooks: Any = module._forward_pre_hooks  # an OrderedDict, declared as a dict
        number = self._handles[0].id
        is_first = number not in hooks or next(iter(hooks)) == number  # replicas lack the number
        if not is_first:
            hooks.move_to_end(number, last=False)
        return is_first and not of_all._global_forward_pre_hooks

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._calls.after(self, args, kwargs, output)


def _without_hooks(state: Any) -> Any:
    """A module's state without our hooks, executor and functions, for a copy."""
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict):
        return (_without_hooks(state[0]), state[1])
    if not isinstance(state, dict):
        return state
    clean = {key: value for key, value in state.items() if key not in _OURS}
    for name, companions in _HOOK_DICTS.items():
        hooks = clean.get(name)
        ours = {key for key, hook in hooks.items() if isinstance(hook, _Hook)} if hooks else set()
        if not ours:
            continue
        for table in (name, *companions):
            if clean.get(table):
                clean[table] = type(clean[table])(
                    (key, value) for key, value in clean[table].items() if key not in ours
                )
    return clean
