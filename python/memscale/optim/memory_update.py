"""Updates parameters whose state is in memory: by C, or by torch if C does not support them.

The functions take torch's optimizer and its groups. They know nothing of disks or gradient release, and may run
in a step or in backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.adamw import adamw

from .. import _core
from ..base.divided import is_shard, part_of
from ..errors import ConfigError, IntegrationError
from . import state as _state

__all__ = [
    "Hyperparameters",
    "StateForm",
    "check_gradient",
    "count_write",
    "grad_scale",
    "gradient_of",
    "gradient_part",
    "hyperparameters",
    "make_states",
    "put_unscaled",
    "run_adamw",
    "update_by_c",
    "update_by_torch",
]


Hyperparameters = tuple[float, float, float, float, float, float, bool]
"""Rate, two betas, epsilon, decay, scale of gradients, and whether to maximize."""


@dataclass(frozen=True)
class StateForm:
    """The form of states unless a group says otherwise.

    Attributes:
        state_bits: of moments on the CPU, 8 or 32.
        bf16: ``"split"``, ``"master"``, or None for split states on the CPU and torch's own on a GPU.
    """

    state_bits: int
    bf16: str | None

    def of(self, group: dict[str, Any]) -> tuple[int, str | None]:
        """`state_bits` and `bf16` of a group."""
        return group.get("state_bits", self.state_bits), group.get("bf16", self.bf16)

    def check(self, group: dict[str, Any]) -> None:
        """Refuses options that a group can't have.

        Raises:
            ConfigError: names the field and the allowed values.
        """
        state_bits, bf16 = self.of(group)
        if state_bits not in (8, 32):
            raise ConfigError(f"state_bits: {state_bits!r} is not allowed; allowed are 8 and 32")
        if bf16 not in ("split", "master", None):
            raise ConfigError(f"bf16: {bf16!r} is not allowed; allowed are 'split' and 'master', or None")
        if state_bits == 8 and group["amsgrad"]:
            raise ConfigError(
                "state_bits: 8 is not allowed with amsgrad=True, which has no 8-bit form; "
                "use state_bits=32 or amsgrad=False"
            )


def make_states(state: dict[Any, Any], group: dict[str, Any], params: list[torch.Tensor], form: StateForm) -> None:
    """Creates states in memory for those of `params` that have none."""
    for p in params:
        if not state[p]:
            state[p].update(_state.fresh(p, group["amsgrad"], *form.of(group)))


def update_by_torch(optimizer: torch.optim.AdamW, group: dict[str, Any]) -> None:
    """torch's own update, for parameters that C does not support: all of `group`."""
    lists: list[list[torch.Tensor]] = [[] for _ in range(6)]
    has_complex = optimizer._init_group(group, *lists)
    run_adamw(optimizer, group, lists, has_complex)


def run_adamw(
    optimizer: torch.optim.AdamW, group: dict[str, Any], lists: list[list[torch.Tensor]], has_complex: bool = False
) -> None:
    """torch's AdamW with the hyperparameters of `group`. `lists`: parameters, gradients, the three moments, steps."""
    params, gradients, averages, squares, largest_squares, steps = lists
    beta1, beta2 = group["betas"]
    # With `differentiable` the update is part of the caller's graph, as in torch's own step.
    with torch.set_grad_enabled(bool(group["differentiable"])):
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
            grad_scale=getattr(optimizer, "grad_scale", None),
            found_inf=getattr(optimizer, "found_inf", None),
            has_complex=has_complex,
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )


def update_by_c(optimizer: torch.optim.AdamW, group: dict[str, Any], params: list[torch.Tensor]) -> None:
    """One pass of C over parameters of `group`, whose states are in memory."""
    tensors = []
    kept = []  # gradients in the parameters' own layout live until C has read them
    for p in params:
        state = optimizer.state[p]
        if is_shard(p):
            part, gradient, state = part_of(p), gradient_part(p), _state.parts_of(p, state)
        else:
            part, gradient = p, _state.laid_out_as(p, gradient_of(p))
        kept.append(gradient)
        tensors.append(_state.addresses(part, gradient, state))
    _core.adamw_step(tensors, *hyperparameters(optimizer, group), torch.get_num_threads())
    is_scaled = grad_scale(optimizer) != 1.0
    for p, gradient in zip(params, kept, strict=True):
        optimizer.state[p]["step"] += 1
        if is_scaled:
            put_unscaled(p, gradient)
    count_write(params)


def count_write(params: list[torch.Tensor]) -> None:
    """Tells autograd that parameters were written, which it does not see of C's writes."""
    torch.autograd.graph.increment_version([*params, *(part_of(p) for p in params if is_shard(p))])


def put_unscaled(p: torch.Tensor, gradient: torch.Tensor) -> None:
    """Copies a gradient that C has unscaled to where the caller sees it, if C got one of another layout."""
    seen = part_of(gradient_of(p))
    if gradient is not seen:
        seen.copy_(gradient)


def grad_scale(optimizer: object) -> float:
    """The scale by which the step divides gradients for a GradScaler; 1 without one."""
    scale = getattr(optimizer, "grad_scale", None)
    return 1.0 if scale is None else float(scale)


def hyperparameters(optimizer: object, group: dict[str, Any]) -> Hyperparameters:
    """The arguments of `_core.adamw_step` between the tensors and the number of threads."""
    beta1, beta2 = group["betas"]
    return (
        float(group["lr"]),
        float(beta1),
        float(beta2),
        float(group["eps"]),
        float(group["weight_decay"]),
        grad_scale(optimizer),
        bool(group["maximize"]),
    )


def gradient_of(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter known to have one."""
    if p.grad is None:
        raise ValueError("the parameter has no gradient")
    return p.grad


def gradient_part(p: torch.Tensor) -> torch.Tensor:
    """This rank's part of the parameter's gradient, in the layout of the parameter's part."""
    gradient = gradient_of(p)
    if not is_shard(p):
        return _state.laid_out_as(p, gradient)
    part: Any = part_of(gradient)
    is_on_its_way = hasattr(part, "wait")  # the result of a collective that has not ended
    return _state.laid_out_as(part_of(p), part.wait() if is_on_its_way else part)


def _divide_gradient(p: Any, gradient: Any) -> None:
    if gradient.placements != p.placements:
        p.grad = gradient.redistribute(p.device_mesh, p.placements)


def check_gradient(p: torch.Tensor, name: str) -> None:
    """Refuses, by name, gradients that neither C nor torch's AdamW can use. Divides a gradient among the ranks as its
    parameter is: after tensor parallelism it may be a sum that no rank has yet. So every rank has to check the same
    parameters in the same order."""
    gradient = gradient_of(p)
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
    is_divided = is_shard(p)
    if is_shard(gradient) != is_divided:
        raise IntegrationError(
            f"AdamW: of {name} and its gradient, only one is divided among ranks; give the gradient as the backward "
            "of FSDP2 or tensor parallelism does, as a DTensor"
        )
    if is_divided:
        _divide_gradient(p, gradient)
