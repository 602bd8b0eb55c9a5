"""An optimizer with 8-bit state that replaces a running AdamW, for `use_8bit_optimizer`."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch

from ..device import ACCELERATORS, Kind
from ..errors import IntegrationError
from .adamw import AdamW, AdamW8bit

_log = logging.getLogger("memscale")

# Attributes of torch.optim.Optimizer, which has no public way to pass hooks on.
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def successor_with_8bit_state(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimizer with 8-bit moments, still without state, that can continue from `optimizer`.

    `optimizer` does not change until `take_over()`. If its state already has 8 bits, it is returned
    itself. For parameters on CUDA the result is bitsandbytes' optimizer; if that package is not
    installed, `optimizer` is returned, with a warning.

    Raises:
        IntegrationError: `optimizer` is not `torch.optim.AdamW` or `memscale.optim.AdamW`, or its
            parameters are on CUDA and it has made steps.
        ConfigError: a group uses `amsgrad`.
    """
    if isinstance(optimizer, AdamW) and optimizer._place.form.state_bits == 8:
        return optimizer
    if type(optimizer) not in (torch.optim.AdamW, AdamW):
        raise IntegrationError(
            f"use_8bit_optimizer: {type(optimizer).__qualname__} has no 8-bit form here; use "
            "torch.optim.AdamW or memscale.optim.AdamW, or set use_8bit_optimizer=False"
        )
    devices = {p.device.type for group in optimizer.param_groups for p in group["params"]}
    accelerator = next((kind for kind in ACCELERATORS if kind.name in devices), None)
    if accelerator is not None:
        return _on_accelerator(optimizer, accelerator)
    bf16 = optimizer._place.form.bf16 if isinstance(optimizer, AdamW) else None
    return AdamW8bit(_copies(optimizer), **_hyperparameters(optimizer), bf16=bf16)


def take_over(successor: torch.optim.Optimizer, optimizer: torch.optim.Optimizer, refuses: bool = True) -> None:
    """Moves groups, state and step hooks from `optimizer` to `successor`.

    The groups stay the same objects, so a scheduler that holds the old optimizer sets the rates of
    the new one. The old optimizer is left without state, and refuses to step if `refuses`.
    """
    if successor is optimizer:
        return
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p in optimizer.state and isinstance(successor, AdamW):
                # States move one at a time, so the model's whole state never exists twice.
                states = optimizer.state
                given = optimizer._place.take(states, p) if isinstance(optimizer, AdamW) else states.pop(p)
                successor._place.adopt(successor.state, p, given, group)
    successor.param_groups = optimizer.param_groups
    for name in _STEP_HOOKS:  # the same objects: handles that remove hooks still work
        if hasattr(optimizer, name):
            setattr(successor, name, getattr(optimizer, name))

    if not refuses:
        return

    def stepping(which: torch.optim.Optimizer, *_: Any) -> None:
        if which is optimizer:
            raise IntegrationError(
                "use_8bit_optimizer: this optimizer was replaced and has no state any more; step the one that "
                "apply_all_optimizations() returned"
            )
        optimizer.__dict__["_opt_called"] = True  # without it torch's schedulers warn

    successor.register_step_pre_hook(stepping)


def _copies(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [dict(group) for group in optimizer.param_groups]


def _hyperparameters(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    names = (
        "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable",
        "fused",
    )  # fmt: skip
    return {name: optimizer.defaults[name] for name in names}


def _on_accelerator(optimizer: torch.optim.Optimizer, kind: Kind) -> torch.optim.Optimizer:
    try:
        bitsandbytes: Any = importlib.import_module("bitsandbytes")
    except ImportError:
        _log.warning(
            "use_8bit_optimizer: bitsandbytes is not installed, which has the 8-bit AdamW for %s; %s stays as it is",
            kind.api,
            type(optimizer).__name__,
        )
        return optimizer
    if optimizer.state:
        raise IntegrationError(
            "use_8bit_optimizer: this optimizer has made steps, and its state can't be moved into "
            "bitsandbytes' AdamW8bit; replace it before the first step"
        )
    defaults = optimizer.defaults
    successor: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        _copies(optimizer),
        lr=float(defaults["lr"]),
        betas=defaults["betas"],
        eps=defaults["eps"],
        weight_decay=defaults["weight_decay"],
    )
    return successor
