"""AdamW on the CPU, one pass over memory per step, with fp32 or 8-bit moments.

The classes keep torch's bookkeeping (groups, hooks, state dicts) and hand addresses
to `_core.adamw_step`. Parameters that C does not take (other devices and dtypes,
tensor subclasses) go through torch's own AdamW in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.adamw import adamw

from .. import _core
from ..errors import ConfigError, IntegrationError
from . import state as _state

__all__ = ["AdamW", "AdamW8bit"]


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with the update in C for fp32 and bf16 parameters on the CPU.

    The arguments up to `fused` are torch's, with torch's meaning and checks; `foreach` and
    `fused` change nothing for parameters that C updates, except that with ``fused=True`` a
    `GradScaler` leaves unscaling to the step. `state_dict()` has torch's layout for fp32
    parameters: it can be loaded into `torch.optim.AdamW` and back.

    With fp32 parameters `exp_avg`, `exp_avg_sq` and `max_exp_avg_sq` have the bits of torch's
    default AdamW (on x86-64 with AVX2 or AVX-512); a parameter differs after a step by at
    most one unit in its last place plus five of what the step adds. The result does not depend
    on the instruction set or the number of threads (`torch.get_num_threads()`).

    Args:
        params: parameters or groups. A group may set its own `state_bits` and `bf16`.
        lr, betas, eps, weight_decay, amsgrad, maximize, foreach, capturable,
            differentiable, fused: as `torch.optim.AdamW`.
        state_bits: 32, or 8 for moments in 8 bits: 256-element blocks, the dynamic map of
            bitsandbytes, about 2.03 bytes per parameter. Tensors of fewer than 4096 elements
            keep fp32 moments. Not with `amsgrad`.
        bf16: how a bf16 parameter keeps what bf16 cannot hold. ``"split"``: 16 more bits per
            element (state `low`); together they are an fp32 value. ``"master"``: an fp32 copy
            (state `master`). Moments are fp32 (or 8 bits) either way.

    Raises:
        ConfigError: `state_bits` or `bf16` is not one of the above, or 8 bits with `amsgrad`.
        ValueError, RuntimeError: as torch, for the other arguments.

    Example:
        >>> optimizer = memscale.optim.AdamW(model.parameters(), lr=3e-4)
        >>> loss.backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_bits: int = 32,
        bf16: str = "split",
    ) -> None:
        self._state_bits = state_bits
        self._bf16 = bf16
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )

    # ---- groups and settings -------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch; checks `state_bits` and `bf16`, the optimizer's and the group's own."""
        super().add_param_group(param_group)
        try:
            self._check_settings(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise

    def _settings(self, group: dict[str, Any]) -> tuple[int, str]:
        return group.get("state_bits", self._state_bits), group.get("bf16", self._bf16)

    def _check_settings(self, group: dict[str, Any]) -> None:
        state_bits, bf16 = self._settings(group)
        if state_bits not in (8, 32):
            raise ConfigError(f"state_bits: {state_bits!r} is not allowed; allowed are 8 and 32")
        if bf16 not in ("split", "master"):
            raise ConfigError(f"bf16: {bf16!r} is not allowed; allowed are 'split' and 'master'")
        if state_bits == 8 and group["amsgrad"]:
            raise ConfigError(
                "state_bits: 8 is not allowed with amsgrad=True, which has no 8-bit form; "
                "use state_bits=32 or amsgrad=False"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_state_bits": self._state_bits, "_bf16": self._bf16}

    # ---- the step --------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; gradients are read as they are.

        Args:
            closure: computes the loss again, with gradients enabled; its value is returned.

        Raises:
            IntegrationError: a gradient is sparse, or of another dtype or device than its
                parameter. Nothing has been updated in that parameter's group.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf) != 0.0:
            return loss
        for index, group in enumerate(self.param_groups):
            self._step_group(index, group)
        return loss

    def _step_group(self, index: int, group: dict[str, Any]) -> None:
        ours: list[torch.Tensor] = []
        theirs: list[torch.Tensor] = []
        for position, p in enumerate(group["params"]):
            if p.grad is not None:
                _check_gradient(p, f"parameter {position} of group {index}")
                (ours if _state.is_ours(p, group) else theirs).append(p)
        if theirs:
            self._step_torch({**group, "params": theirs})
        if ours:
            self._make_states(group, ours)
            if not _state.is_traced(ours[0]):
                self._step_c(group, ours)

    def _make_states(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p].update(_state.fresh(p, group["amsgrad"], *self._settings(group)))

    def _step_torch(self, group: dict[str, Any]) -> None:
        """torch's own update of what C does not take."""
        lists: list[list[torch.Tensor]] = [[] for _ in range(6)]
        has_complex = self._init_group(group, *lists)
        params, gradients, averages, squares, largest_squares, steps = lists
        beta1, beta2 = group["betas"]
        adamw(
            params,
            gradients,
            averages,
            squares,
            largest_squares,
            steps,
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
            has_complex=has_complex,
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _step_c(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        grad_scale = getattr(self, "grad_scale", None)
        scale = 1.0 if grad_scale is None else float(grad_scale)
        tensors = []
        kept = []  # gradients in the parameters' own layout live until C has read them
        for p in params:
            gradient = _state.laid_out_as(p, _gradient_of(p))
            kept.append(gradient)
            tensors.append(_state.addresses(p, gradient, self.state[p]))
        beta1, beta2 = group["betas"]
        _core.adamw_step(
            tensors,
            float(group["lr"]),
            float(beta1),
            float(beta2),
            float(group["eps"]),
            float(group["weight_decay"]),
            scale,
            bool(group["maximize"]),
            torch.get_num_threads(),
        )
        for p, gradient in zip(params, kept, strict=True):
            self.state[p]["step"] += 1
            if scale != 1.0 and gradient is not p.grad:
                _gradient_of(p).copy_(gradient)
        # Autograd learns of writes that it has not seen.
        torch.autograd.graph.increment_version(params)

    # ---- state dicts -------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state of `torch.optim.AdamW`, of this class or of its 8-bit form.

        Moments are converted to what this optimizer keeps. The caller's dict is not changed.

        Raises:
            IntegrationError: the state is another optimizer's, or a shape differs from the
                parameter's. Nothing has been changed.
            ValueError: as torch, where groups do not match.
        """
        _state.check_dict(state_dict, self.param_groups)
        # The base class casts what it can see to the parameter's dtype, codes and moments of
        # bf16 parameters too. Registered last: the caller's own hooks see the plain dict.
        handle = self.register_load_state_dict_pre_hook(_state.hide)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        hidden = state.get("state", {})
        shown = {p: value for p, value in hidden.items() if not isinstance(value, _state.Hidden)}
        super().__setstate__({**state, "state": _state.new_state(shown)})
        for group in self.param_groups:
            state_bits, bf16 = self._settings(group)
            for p in group["params"]:
                if isinstance(hidden.get(p), _state.Hidden):
                    self.state[p] = _state.adapt(p, hidden[p].value, group, state_bits, bf16)

    def torch_state_dict(self) -> dict[str, Any]:
        """`state_dict()` in the layout of `torch.optim.AdamW`, 8-bit moments as fp32.

        A copy of the state in full precision: four bytes per element and moment.
        """
        given = self.state_dict()
        return {
            **given,
            "state": {index: _state.full_precision(values) for index, values in given["state"].items()},
        }


class AdamW8bit(AdamW):
    """`AdamW` with ``state_bits=8``: about 2 bytes of state per parameter instead of 8.

    Lossy: moments are rounded to 256 values per block of 256 elements. A second moment that
    is not zero never becomes zero, so no step divides by `eps` alone. The arguments are those
    of `AdamW`; a group may set ``state_bits=32`` for itself (embeddings, for example).
    """

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"state_bits": 8, **kwargs})


def _gradient_of(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter that was chosen because it has one."""
    if p.grad is None:
        raise ValueError("the parameter has no gradient")
    return p.grad


def _check_gradient(p: torch.Tensor, name: str) -> None:
    """Refuses what neither C nor torch's AdamW can use, by name."""
    gradient = _gradient_of(p)
    if gradient.layout is not torch.strided:
        raise IntegrationError(
            f"AdamW: the gradient of {name} is sparse ({gradient.layout}); use dense gradients "
            "(Embedding(sparse=False)) or torch.optim.SparseAdam for this parameter"
        )
    if gradient.dtype is not p.dtype or gradient.device != p.device:
        raise IntegrationError(
            f"AdamW: the gradient of {name} is {gradient.dtype} on {gradient.device}, the parameter "
            f"{p.dtype} on {p.device}; they must agree"
        )
