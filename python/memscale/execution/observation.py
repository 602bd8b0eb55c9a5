"""Observes the training loop from outside the model.

The observations are: whether the caller holds the outputs through the backward, whether
gradients exist during the forward, and which optimizers step. The executor collects them
and passes them to the planner when a step has ended. Only weak references are kept.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from .. import _core
from ..base.after_backward import after_backward
from ..base.arguments import plain_tensors
from ..base.divided import part_of
from ..base.walk import parameters_of
from ..model.optimizers import state_tensors
from ..techniques.lazy_logits import LazyLogits

__all__ = ["StepWatch"]


class StepWatch:
    """Watches one model's steps.

    Args:
        core: the C side of the execution.
        device: the device whose bytes of optimizer state count, if the model lies on several.
    """

    def __init__(self, core: Any, device: torch.device | None = None) -> None:
        self._core = core
        self._device = device
        self._outputs: list[weakref.ref[torch.Tensor]]
        self._last_outputs: list[weakref.ref[torch.Tensor]]
        self.more_bytes: int
        self.waiting_forwards: int
        self._state_bytes: int
        self._outputs_held: bool | None
        self._gradients_live: bool | None
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer]
        self._ended_by: weakref.ref[torch.optim.Optimizer] | None
        self.has_new_optimizer: bool
        self.has_seen_backward: bool
        self._judged: weakref.WeakKeyDictionary[Any, bool]
        self._forwards_since_step: int
        self._sums: bool
        self._live: int | None
        self._is_cleared: bool
        self._is_added_to: bool
        self.forget()

    def forget(self) -> None:
        """Discards every observation."""
        self._outputs = self._last_outputs = []
        self.more_bytes = 0  # of tensors that the forward under way found beyond those of earlier steps
        self.waiting_forwards = 0  # of its step, for their backward, which hold these bytes
        self._state_bytes = 0  # in maps, of the optimizers that have stepped
        self._outputs_held = None
        self._gradients_live = None
        self._optimizers = weakref.WeakSet()
        self._ended_by = None
        self.has_new_optimizer = self.has_seen_backward = False
        self._judged = weakref.WeakKeyDictionary()
        self._forwards_since_step = 0
        self._sums = False
        self._live = None  # id of a parameter whose gradient lives in the forward under way
        self._is_cleared = self._is_added_to = False
        self._versions: list[int] | None = None  # of the parameters, when the last backward began
        self._gradients_before: list[tuple[int, object] | None] | None = None
        self._reaches: bool | None = None  # None: no observed backward is under way

    def forward_begins(self, model: torch.nn.Module, batch: list[torch.Tensor]) -> bool:
        """The root is about to run. Returns whether gradients live in its forward for the first time."""
        self._look_at_outputs()
        trained = [p for p in parameters_of(model) if p.is_leaf and p.grad is not None]
        gradients = [p.grad for p in trained if p.grad is not None]
        outputs = [tensor for output in self._last_outputs if (tensor := output()) is not None]
        known_bytes = _map_bytes([*batch, *gradients, *outputs])
        self.more_bytes, self.waiting_forwards = self._core.forward_begins(known_bytes, self._state_bytes)
        self._outputs = []
        were_live = self._gradients_live
        if self.has_seen_backward:  # before it, a second forward of the first step tells nothing of the loop
            parameter = next(iter(trained), None)
            self._live = None if parameter is None else id(parameter)  # torch swaps no tensor with weak references
            self._gradients_live = parameter is not None
            self._sums |= self._gradients_live and self._forwards_since_step > 0
        self._forwards_since_step += 1
        return bool(self._gradients_live) and not were_live

    def forward_ended(self, output: Any) -> None:
        """The root has run; its result goes to the caller."""
        self._outputs = [weakref.ref(tensor) for tensor in plain_tensors(output) if tensor.dim() > 0]
        self._last_outputs = self._outputs
        if not self._outputs and self._outputs_held is None:
            self._outputs_held = False  # the model returns a loss alone, so there is nothing to hold

    def expect_backward(self, model: torch.nn.Module, output: Any) -> None:
        """Hooks the outputs to notice their backward. If no layer has hooks, nothing else shows it."""
        tensors = [tensor for tensor in plain_tensors(output) if not isinstance(tensor, LazyLogits)]
        functions = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        if functions and self._core.expect_backward():
            for function in functions:
                function.register_prehook(_Begins(self, model))

    def backward_begins(self, model: torch.nn.Module) -> None:
        """A backward begins. Until an optimizer has stepped, the backward's effect on gradients shows whether it
        belongs to an inner step."""
        self.has_seen_backward = True
        self._look_at_gradients(model)
        if not self._optimizers:
            versions = [parameter._version for parameter in parameters_of(model)]
            was_written = self._versions is not None and versions != self._versions
            self._versions = versions
            self._gradients_before = None if was_written else _gradients_of(model)
            self._reaches = was_written

    def backward_ended(self, model: torch.nn.Module | None) -> None:
        """A backward is over: outputs that still live are held by the caller."""
        self._look_at_outputs()
        before, self._gradients_before = self._gradients_before, None
        if self._reaches is not None and model is not None:
            self._core.backward_reached(self._reaches or _gradients_of(model) != before)
        self._reaches = None

    def _look_at_gradients(self, model: torch.nn.Module) -> None:
        """A backward begins: gradients that lived in its forward are added to, or were cleared between the two."""
        live, self._live = self._live, None
        if live is None:
            return
        parameter = next((p for p in parameters_of(model) if id(p) == live), None)
        if parameter is not None:
            self._is_added_to |= parameter.grad is not None
            self._is_cleared = not self._is_added_to

    def _look_at_outputs(self) -> None:
        if self._outputs:
            self._outputs_held = any(output() is not None for output in self._outputs)
            self._outputs = []

    def holds_ours(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> bool:
        """Whether `optimizer` updates a parameter of the model."""
        if model is None:
            return False
        known = self._judged.get(optimizer)
        if known is None:
            ours = {id(parameter) for parameter in parameters_of(model)}
            known = any(id(p) in ours for group in optimizer.param_groups for p in group["params"])
            self._judged[optimizer] = known
        if known and optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.has_new_optimizer = True
        return known

    def is_another(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the last step was ended by an optimizer other than this one."""
        return self._ended_by is not None and self._ended_by() is not optimizer

    def step_ended_by(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer` has ended a step."""
        self._forwards_since_step = 0
        self._ended_by = weakref.ref(optimizer)

    def observation(self, ended: dict[str, int]) -> dict[str, Any]:
        """The observations of the step that has ended, with those of C in `ended` (its number, time
        and memory). Optimizers have no keys until one of them has stepped."""
        self._look_at_outputs()
        seen: dict[str, Any] = dict(ended)
        loop_seen = self._outputs_held is not None and self._gradients_live is not None
        seen["loop_seen"] = loop_seen
        seen["outputs_held"] = bool(self._outputs_held)
        seen["gradients_live_in_forward"] = bool(self._gradients_live)
        seen["gradients_cleared"] = self._is_cleared
        optimizers = list(self._optimizers)
        if optimizers:
            seen["gradients_released"] = all(_says(optimizer, "_releases_by_itself") for optimizer in optimizers)
            # If gradients are released, only the optimizer knows which backward is the last.
            sums = self._sums and not any(_says(optimizer, "_releases_now") for optimizer in optimizers)
            seen["gradients_needed"] = sums or any(_says(optimizer, "_needed_gradients") for optimizer in optimizers)
            state = [tensor for optimizer in optimizers for tensor in state_tensors(optimizer)]
            if self._device is not None:
                state = [tensor for tensor in state if tensor.device == self._device]
            self._state_bytes = _map_bytes(state)
            seen["optimizer_state_bytes"] = _core.storage_bytes(state) + sum(map(_moved_state_bytes, optimizers))
        self.has_new_optimizer = False
        return seen


class _Begins:
    """A hook that reports the backward of an output, if the model is still wrapped then."""

    def __init__(self, watch: StepWatch, model: torch.nn.Module) -> None:
        self._watch = weakref.ref(watch)
        self._model = weakref.ref(model)

    def __call__(self, gradients: Any) -> None:
        watch, model = self._watch(), self._model()
        if watch is not None and model is not None:
            watch._core.backward_begins()
            watch.backward_begins(model)
            after_backward(self._ended)

    def _ended(self) -> None:
        watch = self._watch()
        if watch is not None:
            watch.backward_ended(self._model())


def _gradients_of(model: torch.nn.Module) -> list[tuple[int, object] | None]:
    """The gradients' identities and versions. A backward that adds to one of them changes this list. Inference tensors
    have no version: they always count as changed."""
    gradients = [parameter.grad if parameter.is_leaf else None for parameter in parameters_of(model)]
    return [
        None if gradient is None else (gradient._cdata, object() if gradient.is_inference() else gradient._version)
        for gradient in gradients
    ]


def _says(optimizer: torch.optim.Optimizer, name: str) -> bool:
    """Whether `optimizer` is one of memscale's and its method `name` returns true."""
    method = getattr(optimizer, name, None)
    return method is not None and method()


def _map_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes in maps of the allocator. A rank holds its part of a tensor that is divided among ranks."""
    return _core.map_bytes(list(map(part_of, tensors)))


def _moved_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the state that a plan moved away, which is still the optimizer's."""
    moved = getattr(optimizer, "_planned_bytes", None)
    return 0 if moved is None else moved()
