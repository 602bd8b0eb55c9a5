"""The hooks on a model: what is called before and after the root and its layers.

Hooks are the only thing that memscale puts on a module, beside the attribute that
names the executor. Copies and pickles of a hooked module come out without them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .executor import Executor
    from .layer_calls import LayerCalls
    from .module_state import LayerState

__all__ = ["LayerHooks", "RootHooks"]

EXECUTOR_ATTRIBUTE = "_memscale_executor"

_HOOK_DICTS = {
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
}


class _Hook:
    """A hook callable. A copy of one (with a hook dictionary) does nothing."""

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
    """The hooks of one module, and its state without them for copies."""

    def __init__(self, module: torch.nn.Module, before: Any, after: Any) -> None:
        self._module = weakref.ref(module)
        self._handles = [
            module.register_forward_pre_hook(_Hook(before), prepend=True, with_kwargs=True),
            module.register_forward_hook(_Hook(after), with_kwargs=True, always_call=True),
        ]
        # An attribute of the instance: copy and pickle ask the instance for its state.
        module.__dict__["__getstate__"] = self._state

    def _state(self) -> Any:
        module = self._module()
        return _without_hooks(type(module).__getstate__(module)) if module is not None else None

    def remove(self) -> None:
        """Everything is as before."""
        for handle in self._handles:
            handle.remove()
        module = self._module()
        if module is not None and getattr(module.__dict__.get("__getstate__"), "__self__", None) is self:
            del module.__dict__["__getstate__"]


class RootHooks(_HookedModule):
    """Around the forward of the wrapped model."""

    def __init__(self, module: torch.nn.Module, executor: Executor) -> None:
        super().__init__(module, executor._before_root, executor._after_root)
        module.__dict__[EXECUTOR_ATTRIBUTE] = executor

    def remove(self) -> None:
        super().remove()
        module = self._module()
        if module is not None:
            module.__dict__.pop(EXECUTOR_ATTRIBUTE, None)


class LayerHooks(_HookedModule):
    """Around every call of a layer."""

    def __init__(self, module: torch.nn.Module, number: int, state: LayerState, calls: LayerCalls) -> None:
        self.number = number
        self.state = state
        self._calls = calls
        super().__init__(module, self._before, self._after)

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.before(self, module, args, kwargs)

    def is_first(self, module: torch.nn.Module) -> bool:
        """Whether no other pre-hook ran before ours: one may have changed the arguments, and
        would change them again in a replay. From the next call on it is, as far as the
        module's own hooks go."""
        from torch.nn.modules import module as of_all

        hooks: Any = module._forward_pre_hooks  # an OrderedDict, declared as a dict
        number = self._handles[0].id
        is_first = number not in hooks or next(iter(hooks)) == number  # a replica has no handle's number
        if not is_first:
            hooks.move_to_end(number, last=False)
        return is_first and not of_all._global_forward_pre_hooks

    def _after(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self._calls.after(self, args, kwargs, output)


def _without_hooks(state: Any) -> Any:
    """A module's state for a copy: no hooks, executor or state function of ours."""
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict):
        return (_without_hooks(state[0]), state[1])
    if not isinstance(state, dict):
        return state
    clean = {key: value for key, value in state.items() if key not in (EXECUTOR_ATTRIBUTE, "__getstate__")}
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
