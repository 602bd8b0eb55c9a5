"""Gradient release: each parameter is updated inside backward, as soon as its gradient is final,
and the gradient is freed.

`GradientRelease` watches the gradients of one `AdamW`; the optimizer does the arithmetic. It raises on
anything that would change the result: a second gradient, clipped gradients, hyperparameters that change
between backward and step. It keeps gradients until step() if a GradScaler needs all of them first (it may
skip the step), or if more gradients follow (accumulation).
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from typing import Any, Protocol

import torch

from ..base.divided import has_several_processes
from ..errors import IntegrationError
from .gradient_use import listen
from .memory_update import Hyperparameters, hyperparameters

__all__ = ["GradientRelease", "Releasing", "name_of"]

_log = logging.getLogger("memscale")

_WITHOUT = 'release_gradients=False (mode="balanced", where a plan chose it)'


class Releasing(Protocol):
    """The interface that release uses of its optimizer; see `AdamW`."""

    param_groups: list[dict[str, Any]]
    defaults: dict[str, Any]
    _step_supports_amp_scaling: bool

    def _update_in_backward(self, index: int, p: torch.Tensor) -> None:
        """Updates a parameter of group `index`, whose gradient has just become final."""

    def _backward_failed(self, error: BaseException) -> None:
        """An update in backward ended with `error`: the step can't be finished."""

    def _refuse_interrupted(self) -> None:
        """Raises if a step was interrupted."""


class GradientRelease:
    """The hooks of one optimizer, and the parameters it has updated since its last step."""

    def __init__(self, optimizer: Releasing) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._handles: dict[torch.Tensor, Any] = {}
        self.accumulating = 0
        self._is_scaled = False  # a GradScaler has scaled a loss since the last step
        self.was_scaled = False  # a GradScaler had scaled a loss in the last step
        self.released: dict[torch.Tensor, int] = {}  # parameters with their group's index, in order of update
        self._rates: dict[int, Hyperparameters] = {}
        self._failure: str | None = None
        self._has_said = False
        listen(self)
        weakref.finalize(self, _take_away, self._handles)

    def attach(self) -> None:
        """Hooks every trainable parameter that has none yet."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.requires_grad and p.is_leaf and p not in self._handles:
                    # The parameter may outlive the optimizer, so its hook must not keep that alive.
                    hook = functools.partial(_gradient_is_final, weakref.ref(self))
                    self._handles[p] = p.register_post_accumulate_grad_hook(hook)

    def detach(self) -> None:
        """Removes the hooks."""
        _take_away(self._handles)

    # ---- backward ----------------------------------------------------------------------

    def gradient_is_final(self, p: torch.Tensor) -> None:
        """Updates the parameter and frees its gradient."""
        optimizer = self._optimizer()
        if optimizer is None or self.accumulating or self._is_scaled or _accelerate_accumulates():
            return
        self._check(optimizer, p)
        index = _group_index(optimizer.param_groups, p)
        rates = self._rates.setdefault(index, hyperparameters(optimizer, optimizer.param_groups[index]))
        self._check_rates(optimizer, index, rates)
        try:
            with torch.no_grad():
                optimizer._update_in_backward(index, p)
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            optimizer._backward_failed(error)
            raise
        self.released[p] = index
        p.grad = None

    def loss_is_scaled(self) -> None:
        """A GradScaler is about to scale a loss. Gradients are kept until step(), as without release."""
        optimizer = self._optimizer()
        if optimizer is None or self._is_scaled:
            return
        if not self._has_said:
            self._has_said = True
            _log.warning(
                "release_gradients: a GradScaler needs all gradients at once; they are kept until step(), and take "
                "their memory until then"
            )
        self._is_scaled = True
        optimizer._step_supports_amp_scaling = bool(optimizer.defaults["fused"])

    def gradients_are_clipped(self, parameters: list[torch.Tensor]) -> None:
        """Raises if gradients were released. torch's functions skip parameters without gradients, so the run
        would continue unclipped."""
        released = set(map(id, self.released))
        if any(id(p) in released for p in parameters):
            raise IntegrationError(
                "release_gradients: gradients can't be clipped after backward, they were used and freed in it. "
                f"Turn clipping off (Trainer: max_grad_norm=0) or use {_WITHOUT}"
            )

    def _check(self, optimizer: Releasing, p: torch.Tensor) -> None:
        optimizer._refuse_interrupted()
        if p in self.released:
            raise IntegrationError(
                f"release_gradients: a second gradient of {name_of(optimizer.param_groups, p)} arrived after its "
                "update. Backward ran twice before step(): run all but the last under `with "
                "optimizer.accumulate():`; or one backward made the gradient in several pieces "
                "(re-entrant checkpointing: use_reentrant=False). The parameters already updated stay so"
            )
        gradient = p.grad
        if gradient is not None and gradient.requires_grad:
            raise IntegrationError(
                "release_gradients: backward(create_graph=True) needs gradients that stay; use "
                f"torch.autograd.grad or {_WITHOUT}"
            )
        if has_several_processes():
            raise IntegrationError(
                f"release_gradients: gradients of several processes are not final in backward; use {_WITHOUT}"
            )

    def _check_rates(self, optimizer: Releasing, index: int, rates: Hyperparameters) -> None:
        if hyperparameters(optimizer, optimizer.param_groups[index]) != rates:
            raise IntegrationError(
                f"release_gradients: lr or another hyperparameter of group {index} was changed after updates "
                "were made in backward; change it before backward (schedulers: after step())"
            )

    # ---- step --------------------------------------------------------------------------

    def step_begins(self) -> None:
        """Raises if the step would need gradients that were released."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        # A GradScaler has set found_inf, and its scaling was not seen.
        if self.released and hasattr(optimizer, "found_inf"):
            optimizer.__dict__.pop("grad_scale", None)
            optimizer.__dict__.pop("found_inf")
            raise IntegrationError(
                "release_gradients: a GradScaler needs all gradients before it unscales them, and they were "
                "used in backward, still scaled: its scale() was called in a way that can't be seen. Use "
                f"{_WITHOUT} or bf16 without a scaler"
            )
        for index, rates in self._rates.items():
            self._check_rates(optimizer, index, rates)
        late = next((p for p in self.released if p.grad is not None), None)
        if late is not None:
            raise IntegrationError(
                f"release_gradients: {name_of(optimizer.param_groups, late)} was updated in backward and has a "
                f"gradient again; use {_WITHOUT} if you set gradients yourself"
            )

    def step_ended(self) -> list[torch.Tensor]:
        """Ends the round. Returns the parameters that backward updated, in order."""
        order = list(self.released)
        self.released.clear()
        self._rates.clear()
        self.was_scaled, self._is_scaled = self._is_scaled, False
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer._step_supports_amp_scaling = True  # a scaler that was not seen then reaches step()
        self.attach()
        return order

    def forget(self) -> None:
        """Discards the round, because a checkpoint was loaded."""
        self.step_ended()
        self._failure = None

    @property
    def failed_in_backward(self) -> bool:
        """Whether an update in backward failed, so that later gradients were never computed."""
        return self._failure is not None


def _group_index(groups: list[dict[str, Any]], p: torch.Tensor) -> int:
    for index, group in enumerate(groups):
        if any(p is q for q in group["params"]):
            return index
    raise IntegrationError("release_gradients: the parameter was taken out of its group")


def name_of(groups: list[dict[str, Any]], p: torch.Tensor) -> str:
    """The name of an optimizer's parameter in messages."""
    index = _group_index(groups, p)
    position = next(i for i, q in enumerate(groups[index]["params"]) if p is q)
    return f"parameter {position} of group {index}"


def _take_away(handles: dict[torch.Tensor, Any]) -> None:
    for handle in handles.values():
        handle.remove()
    handles.clear()


def _gradient_is_final(release: weakref.ref[GradientRelease], p: torch.Tensor) -> None:
    watcher = release()
    if watcher is not None:
        watcher.gradient_is_final(p)


def _accelerate_accumulates() -> bool:
    """Whether Accelerate, in a Trainer too, says that more micro-steps come before the step."""
    state = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    shared = getattr(state, "_shared_state", None)
    return isinstance(shared, dict) and shared.get("sync_gradients") is False
