"""Scales the loss in the backward of FP16 forwards, and unscales the parameters' gradients.

FP16 has no numbers below 6e-8, and many gradients are smaller. While a `LossScaling` exists, a
`backward()` that reaches its model begins with the scale instead of 1. Each gradient is divided by the
scale before it is added to ``.grad``, so an unmodified loop clips, logs and accumulates gradients of the
usual size. Before an optimizer steps, its gradients are checked. If one is not finite, all of them are
dropped, and the step leaves its parameters and state unchanged. C chooses the scale
(`memscale/precision.h`), which all models of the process share.

Hooks on tensors between loss and parameters see scaled values, and so do gradients that `retain_grad()`
keeps. A backward with `inputs` that are not leaves is not scaled, nor is `torch.autograd.grad()`, nor a
backward whose loss the loop's own GradScaler has scaled.

`torch.autograd.backward` is replaced while a `LossScaling` exists, and restored afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import _core
from ..base.aside import is_tracing
from ..base.walk import functions_of, is_accumulation
from ..optim.gradient_use import listen, tell_of_scaling

__all__ = ["LossScaling"]

_log = logging.getLogger("memscale")

_REENTRANT = "CheckpointFunctionBackward"  # of torch.utils.checkpoint


class LossScaling:
    """Scales the losses of one model, from its first `autocast()` to `close()`.

    Construct it before the first step, so that a step whose closure runs the first forward is checked
    too. Only one thread may use it at a time.

    Args:
        model: the wrapped root module; not changed.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self.is_used = self._is_forward_open = False
        self.awaits_backward = False  # a forward has ended, its backward has not begun
        _process.join(self)

    @contextlib.contextmanager
    def autocast(self, device: str) -> Iterator[None]:
        """The context of a training forward. A step that is traced inside it includes the scaling."""
        self.is_used = self._is_forward_open = True
        try:
            with torch.autocast(device, torch.float16):
                yield
        finally:
            self._is_forward_open = False
            self.awaits_backward = True

    def close(self) -> None:
        """Stops scaling losses."""
        _process.leave(self)

    def parameters(self) -> list[torch.Tensor]:
        """The parameters that get gradients. Under re-entrant checkpointing the graph does not lead to them."""
        model = self._model()
        return [] if model is None else [p for p in model.parameters() if p.requires_grad]

    @property
    def is_traced(self) -> bool:
        """Whether this thread runs the backward of a trace of the model."""
        return self._is_forward_open and is_tracing()


class _UsersScaling:
    """A listener of gradient_use that knows whether the loop's own GradScaler has scaled a loss."""

    def __init__(self) -> None:
        self._has_scaled = False

    def loss_is_scaled(self) -> None:
        self._has_scaled = True

    def gradients_are_clipped(self, parameters: list[torch.Tensor]) -> None:
        """Does nothing, because gradients have their usual size."""

    def take(self) -> bool:
        """Whether a GradScaler has scaled a loss since the last call. Each backward calls this once."""
        has_scaled, self._has_scaled = self._has_scaled, False
        return has_scaled


class _Process:
    """The scale of the process, and the replacements in torch while there are members."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[LossScaling] = weakref.WeakSet()
        self._begin()

    def _begin(self) -> None:
        self._scale, self._finite_steps = _core.loss_scale_default()
        self._is_finite: bool | None = None  # all steps since the last scaled backward were finite; None: no step
        self._unchecked: set[int] = set()  # ids of leaves with gradients of scaled backwards that no step has checked
        self._user: _UsersScaling | None = None
        self._has_said = False
        self._backward: Any = None  # torch's own
        self._optimizer_hook: Any = None

    def join(self, member: LossScaling) -> None:
        if self._backward is None:
            self._begin()
            self._backward = torch.autograd.backward
            torch.autograd.backward = self._scaling(torch.autograd.backward)
            self._optimizer_hook = register_optimizer_step_pre_hook(self._before_step)
            self._user = _UsersScaling()
            listen(self._user)
        self._members.add(member)
        weakref.finalize(member, self._end_if_alone)

    def leave(self, member: LossScaling) -> None:
        self._members.discard(member)
        self._end_if_alone()

    def _end_if_alone(self) -> None:
        if list(self._members) or self._backward is None:  # the set still counts a member that is being destroyed
            return
        # Other code may have replaced backward since. It calls ours, which then only passes the call on.
        if getattr(torch.autograd.backward, "__wrapped__", None) is self._backward:
            torch.autograd.backward = self._backward  # type: ignore[assignment]
        self._optimizer_hook.remove()
        self._backward = self._user = None

    # -- backward -----------------------------------------------------------------------

    def _scaling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, inputs: Any = None, **kwargs: Any) -> Any:
            roots = _listed(tensors)
            leaves = self._leaves_to_unscale(roots, _listed(inputs))
            if not leaves:
                return original(tensors, grad_tensors, *args, inputs=inputs, **kwargs)
            if not is_tracing():
                self._backward_begins()
                self._unchecked.update(map(id, leaves))
            with self._unscaled(leaves):
                return original(tensors, self._scaled(roots, grad_tensors), *args, inputs=inputs, **kwargs)

        return backward

    def _leaves_to_unscale(self, roots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All tensors on which this backward may leave gradients; none if it must not be scaled."""
        if torch._C._current_graph_task_id() >= 0:
            return []  # inside another backward, which has already decided
        user_scales = self._user is not None and self._user.take()
        members = [member for member in self._members if member.is_used]
        if not members or user_scales or any(not tensor.is_leaf for tensor in inputs):
            return []
        functions = [function for root in roots for function in functions_of(root)]
        leaves = [function.variable for function in functions if is_accumulation(function)]
        if is_tracing():
            return leaves if any(member.is_traced for member in members) else []
        own = {id(p): p for member in members for p in member.parameters()}
        # Re-entrant checkpointing hides the graph below it.
        is_hidden = any(type(function).__name__ == _REENTRANT for function in functions)
        is_awaited = is_hidden and any(member.awaits_backward for member in members)
        if not is_awaited and not any(id(leaf) in own for leaf in leaves):
            return []
        for member in members:
            member.awaits_backward = False
        return list(({id(leaf): leaf for leaf in leaves} | own).values())

    def _backward_begins(self) -> None:
        if self._is_finite is not None:
            before = self._scale
            self._scale, self._finite_steps = _core.loss_scale_update(self._scale, self._finite_steps, self._is_finite)
            self._say(before, self._is_finite)
            self._is_finite = None
        tell_of_scaling(self._user)

    def _say(self, before: float, was_finite: bool) -> None:
        if self._scale != before:
            why = "many finite steps in a row" if was_finite else "gradients overflowed in FP16, the step was skipped"
            _log.info("use_mixed_precision: %s; the loss is scaled by %g from here on", why, self._scale)
        elif not was_finite and not self._has_said:
            self._has_said = True
            _log.warning(
                "use_mixed_precision: gradients are not finite although the loss is not scaled any more; these steps "
                "are skipped. If the loss itself is finite, the model needs BF16 or FP32"
            )

    def _scaled(self, roots: Sequence[torch.Tensor], gradients: Any) -> list[torch.Tensor]:
        given = _listed(gradients) or [None] * len(roots)
        return [
            (torch.ones_like(root) if gradient is None else gradient) * self._scale
            for root, gradient in zip(roots, given, strict=True)
        ]

    @contextlib.contextmanager
    def _unscaled(self, leaves: list[torch.Tensor]) -> Iterator[None]:
        """Divides the gradients of `leaves` before any other hook sees them."""
        inverse = 1 / self._scale
        handles = [leaf.register_hook(lambda gradient: gradient * inverse) for leaf in leaves]
        for leaf, handle in zip(leaves, handles, strict=True):
            _put_first(leaf._backward_hooks, handle.id)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    # -- the optimizer's step -----------------------------------------------------------

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if is_tracing():
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._drop_what_overflowed(optimizer)
            return None

        def checked() -> Any:
            loss = closure()
            self._drop_what_overflowed(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], checked, *args[2:]), kwargs
        return args, kwargs | {"closure": checked}

    def _drop_what_overflowed(self, optimizer: torch.optim.Optimizer) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        ids = set(map(id, held))
        if ids.isdisjoint(self._unchecked):
            return  # of another model, whose losses are not scaled
        self._unchecked -= ids
        is_finite = _are_finite([p.grad for p in held if p.grad is not None])
        self._is_finite = is_finite and self._is_finite is not False
        if not is_finite:
            for p in held:
                p.grad = None


def _put_first(hooks: dict[int, Any] | None, key: int) -> None:
    """Puts a hook first by inserting the others again, because autograd runs hooks in order of insertion."""
    for other in [other for other in hooks or {} if other != key]:
        assert hooks is not None
        hooks[other] = hooks.pop(other)


def _are_finite(gradients: list[torch.Tensor]) -> bool:
    dense = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    return not dense or bool(torch.nn.utils.get_total_norm(dense, math.inf).isfinite())


def _listed(tensors: Any) -> list[Any]:
    if tensors is None:
        return []
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


_process = _Process()
