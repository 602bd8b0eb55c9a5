"""The hooks on a model, which run before and after the root and its layers.

A hooked module has these hooks, functions that copy and pickle it, and, if it is the root, a
reference to the executor. Copies and pickles of a hooked module have none of them.
"""

from __future__ import annotations

import copy
import sys
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.modules import module as of_all

from ..base.compiler import COMPILED_CALL, calling_module, is_compiled, original_of
from ..errors import IntegrationError
from .around import FORWARD, Around, place_of, restore

if TYPE_CHECKING:
    from .module_state import LayerState

__all__ = ["LayerHooks", "RootHooks", "Surrounded"]

EXECUTOR_ATTRIBUTE = "_memscale_executor"

# Functions in a hooked module's instance dictionary. torch.jit.script looks for the fourth one, torch.compile for the
# last two.
_ASKED_FOR = (
    "__getstate__",
    "__deepcopy__",
    "__reduce_ex__",
    "__prepare_scriptable__",
    "_replicate_for_data_parallel",
    "compile",
    "_initialize_hook",
    "_infer_parameters",
)
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

    def root_compiled(self, around: torch.nn.Module | None) -> None: ...


class LayerWatcher(Protocol):
    """The methods that a layer's hooks call; see `LayerCalls`."""

    gathers: bool

    def gathered(self, module: torch.nn.Module) -> None: ...

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
        if torch.compiler.is_compiling():  # the module is a part of what is compiled; no more is traced than this
            return None
        return self._call(*args)

    def __deepcopy__(self, memo: Any) -> Any:
        return _Hook(_nothing)

    def __reduce__(self) -> Any:
        return (_Hook, (_nothing,))


def _nothing(*args: Any) -> None:
    return None


class _HookedModule:
    """The hooks of one module, and the functions that copy and pickle it without them.

    Args:
        module: the module.
        before, after: the hooks.
        place: the attribute that they surround instead, if any; see `around.py`.
    """

    def __init__(self, module: torch.nn.Module, before: Any, after: Any, place: str | None) -> None:
        self._module = weakref.ref(module)
        self.place = place
        self._handles: list[Any] = (
            [Around(module, before, after, place)]
            if place is not None
            else [
                module.register_forward_pre_hook(_Hook(before), prepend=True, with_kwargs=True),
                module.register_forward_hook(_Hook(after), with_kwargs=True, always_call=True),
            ]
        )
        # These are attributes of the instance, because copy and pickle look there for the state
        # and for functions that copy or reduce.
        module.__dict__["__getstate__"] = self._state
        module.__dict__["__deepcopy__"] = self._copied
        module.__dict__["__reduce_ex__"] = self._reduced
        module.__dict__["__prepare_scriptable__"] = self._refuse_script
        if place is not None:
            module.__dict__["_replicate_for_data_parallel"] = self._replicated

    @property
    def module(self) -> torch.nn.Module | None:
        """The module; None if it does not exist any more."""
        return self._module()

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
        passed = [attributes[name] for name in (*_OURS, "forward") if name in attributes]
        memo.update((id(value), value) for value in passed)
        made = own(module, memo)
        if made is not module and type(getattr(made, "__dict__", None)) is dict:
            clean = _without_hooks(made.__dict__)
            made.__dict__.clear()
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

    def _replicated(self) -> Any:
        """The replica for `torch.nn.DataParallel`, which must run its own forward."""
        module: Any = self._module()
        replica = type(module)._replicate_for_data_parallel(module)
        for name in _ASKED_FOR:
            replica.__dict__.pop(name, None)
        restore(replica.__dict__)
        return replica

    def _refuse_script(self) -> Any:
        """Refuses TorchScript, which can't compile our hooks. It does not get an unhooked copy instead,
        because torch would put that copy into the caller's model.

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
    """The hooks around the forward of the wrapped model, and functions that tell the executor if it is compiled.

    The result of `torch.compile(module)` calls `_infer_parameters()` of a module that has an `_initialize_hook` (a lazy
    one) before it calls the module.
    """

    def __init__(self, module: torch.nn.Module, executor: RootWatcher, place: str | None = None) -> None:
        super().__init__(module, executor.before_root, executor.after_root, place)
        module.__dict__[EXECUTOR_ATTRIBUTE] = executor
        self._executor = weakref.ref(executor)
        if "compile" not in module.__dict__:
            module.__dict__["compile"] = self._compile
        module.__dict__["_initialize_hook"] = self._initialize
        module.__dict__["_infer_parameters"] = self._infer

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        """`Module.compile()`."""
        module, executor = self._module(), self._executor()
        if module is None or executor is None:
            return
        type(module).compile(module, *args, **kwargs)
        try:
            executor.root_compiled(None)
        except BaseException:
            module.__dict__.pop(COMPILED_CALL, None)
            raise

    def _initialize(self, *_: Any) -> None:
        """Only has to exist."""

    def _infer(self, *_: Any) -> None:
        """An `OptimizedModule` is about to call the module."""
        executor = self._executor()
        outside = calling_module(sys._getframe(1))
        if executor is not None and outside is not None and original_of(outside) is self._module():
            executor.root_compiled(outside)

    def remove(self) -> None:
        super().remove()
        module = self._module()
        if module is not None:
            module.__dict__.pop(EXECUTOR_ATTRIBUTE, None)


class LayerHooks(_HookedModule):
    """The hooks around every call of a layer."""

    def __init__(
        self, module: torch.nn.Module, number: int, state: LayerState, calls: LayerWatcher, place: str | None = None
    ) -> None:
        self.number = number
        self.state = state
        self._calls = calls
        super().__init__(module, self._before, self._after, place)
        self.is_compiled = is_compiled(module)
        if calls.gathers and place is None:
            self._handles.append(module.register_forward_pre_hook(_Hook(self._gathered)))  # after FSDP's own

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._calls.before(self, module, args, kwargs)

    def _gathered(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        self._calls.gathered(module)

    def is_first(self, module: torch.nn.Module) -> bool:
        """Whether no other pre-hook ran before ours. An earlier one may have changed the arguments,
        and would change them again in a replay. If the module's own hooks came first, ours is moved
        to the front for the next call."""
        hooks: Any = module._forward_pre_hooks  # an OrderedDict, declared as a dict
        if self.place == COMPILED_CALL:
            return True  # the module's own hooks lie inside
        if self.place is not None:
            return not hooks and not of_all._global_forward_pre_hooks
        number = self._handles[0].id
        is_first = number not in hooks or next(iter(hooks)) == number  # replicas lack the number
        if not is_first:
            hooks.move_to_end(number, last=False)
        return is_first and not of_all._global_forward_pre_hooks

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._calls.after(self, args, kwargs, output)


class Surrounded(_HookedModule):
    """What surrounds a module that may take a fast path, or is compiled, and is neither root nor layer."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module, _nothing, _nothing, place_of(module) or FORWARD)


def _without_hooks(state: Any) -> Any:
    """A module's state without our hooks, executor and functions, for a copy."""
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict):
        return (_without_hooks(state[0]), state[1])
    if not isinstance(state, dict):
        return state
    clean = {key: value for key, value in state.items() if key not in _OURS}
    restore(clean)
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
