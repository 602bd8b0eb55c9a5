"""8-bit state inside the caller's own optimizer, for `wrap()` with `use_8bit_optimizer`.

`wrap()` gets no optimizer. So the first AdamW that steps the wrapped model's parameters changes its class to the one
with 8-bit state, its state moves over, and its step goes on as that class's. It stays the same object, with the same
groups, so schedulers, trainers and hooks that hold it work on. `close()` changes it back, with moments in fp32.
Called by the session, on the thread that steps.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import ConfigError, IntegrationError, MemScaleError
from .adamw import AdamW
from .replace import successor_with_8bit_state, take_over

__all__ = ["EightBitInPlace"]

_log = logging.getLogger("memscale")

# A learning-rate scheduler puts its own step() on the optimizer, with this mark.
_BY_SCHEDULER = "_wrapped_by_lr_sched"

_TORCH_STATE = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class EightBitInPlace:
    """Watches for the optimizer of a model, and gives it 8-bit state at its first step.

    Args:
        model: the wrapped model. It is not kept alive.
        is_apart: whether memscale itself steps, a copy of an optimizer under fake tensors for example.
    """

    def __init__(self, model: torch.nn.Module, is_apart: Callable[[], bool]) -> None:
        self._model = weakref.ref(model)
        self._is_apart = is_apart
        self._judged: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._changed: list[_Changed] = []
        self._hook: Any = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """Stops watching, and gives each changed optimizer its class and fp32 state again."""
        self._hook.remove()
        while self._changed:
            self._changed.pop().undo()

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A hook of torch, called before any step. Returns the arguments with which the step goes on."""
        if self._is_apart() or optimizer in self._judged or not self._steps_our_parameters(optimizer):
            return None
        self._judged.add(optimizer)
        changed = self._change(optimizer)
        if changed is None:
            return None
        self._changed.append(changed)
        # torch is inside the old class's step(), which goes on with its first argument.
        return (_Through(optimizer), *args[1:]), kwargs

    def _steps_our_parameters(self, optimizer: torch.optim.Optimizer) -> bool:
        model = self._model()
        ours = {id(p) for p in model.parameters()} if model is not None else set()
        return any(id(p) in ours for group in optimizer.param_groups for p in group["params"])

    def _change(self, optimizer: torch.optim.Optimizer) -> _Changed | None:
        try:
            own_step = optimizer.__dict__.get("step")
            if own_step is not None and not hasattr(own_step, _BY_SCHEDULER):
                raise IntegrationError("use_8bit_optimizer: other code has replaced this optimizer's step()")
            if isinstance(optimizer, AdamW) and optimizer._releases_now():
                raise IntegrationError("use_8bit_optimizer: this optimizer updates in backward; use AdamW8bit instead")
            successor = successor_with_8bit_state(optimizer)
        except (IntegrationError, ConfigError) as error:
            _log.warning("%s; it trains on with its own state", error)
            return None
        if successor is optimizer:
            return None
        changed = _Changed(optimizer, own_step)
        _log.info(
            "use_8bit_optimizer: %s has 8-bit state from this step on, as %s.%s",
            type(optimizer).__name__,
            type(successor).__module__.split(".")[0],
            type(successor).__name__,
        )
        _become(optimizer, successor)
        if own_step is not None:
            optimizer.__dict__["step"] = _as_by_scheduler(optimizer)
        return changed


def _become(optimizer: torch.optim.Optimizer, successor: torch.optim.Optimizer) -> None:
    """Gives an optimizer the class, the parts and the state of `successor`. Its groups and hooks stay."""
    take_over(successor, optimizer, refuses=False)
    parts = {name: value for name, value in successor.__dict__.items() if name not in optimizer.__dict__}
    optimizer.__class__ = type(successor)
    optimizer.__dict__.update(parts)
    for name in ("_place", "_releasing"):  # a memscale AdamW has parts of the old form
        if name in successor.__dict__:
            optimizer.__dict__[name] = successor.__dict__[name]
    optimizer.state = successor.state


def _as_by_scheduler(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """The class's step(), counted as a scheduler's wrapper counts it. The wrapper itself calls the old class's."""
    reference = weakref.ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        alive = reference()
        alive._opt_called = True  # type: ignore[union-attr]
        return type(alive).step(alive, *args, **kwargs)  # type: ignore[union-attr,arg-type]

    setattr(step, _BY_SCHEDULER, True)
    return step


class _Through:
    """Stands for the optimizer in the step() of its old class, which is already running. That step evaluates the
    closure and then asks for the groups; this lets the new class update, and has no groups of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.defaults = optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_health_check"):  # of torch's classes; its name differs between versions
            return lambda: None
        raise AttributeError(name)

    @property
    def param_groups(self) -> list[Any]:
        """Of torch's classes."""
        self._step_all()
        return []

    _releasing = SimpleNamespace(release=None)

    def _refuse_interrupted(self) -> None:
        """Of memscale's."""

    def _step_all(self) -> None:
        # The hooks around step() run around the old one's.
        step = type(self._optimizer).step
        getattr(step, "__wrapped__", step)(self._optimizer)


class _Changed:
    """What an optimizer was before."""

    def __init__(self, optimizer: torch.optim.Optimizer, own_step: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._class = type(optimizer)
        self._own_step = own_step
        self._own = dict(optimizer.__dict__)

    def undo(self) -> None:
        """Restores class, parts and step; moments become fp32 again."""
        optimizer = self._optimizer()
        as_torch = getattr(optimizer, "torch_state_dict", None)
        if optimizer is None or as_torch is None:
            return  # gone, or bitsandbytes' state, which no other class reads
        try:
            given, groups = as_torch(), optimizer.param_groups
        except MemScaleError as error:  # a step was interrupted: only this class can finish it
            _log.warning("%s; the optimizer keeps its 8-bit state", error)
            return
        optimizer.__class__ = self._class
        for name in [name for name in optimizer.__dict__ if name not in self._own]:
            del optimizer.__dict__[name]
        for name in ("step", "_place", "_releasing"):
            if name in self._own:
                optimizer.__dict__[name] = self._own[name]
        states = {index: {n: v for n, v in s.items() if n in _TORCH_STATE} for index, s in given["state"].items()}
        optimizer.load_state_dict({**given, "state": states})
        optimizer.param_groups = groups
