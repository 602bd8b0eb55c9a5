"""The loss of a traced step. Both tracers use it: the static one on fake tensors and `real_step` on real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..base.divided import graph_part_of
from ..base.walk import loss_of
from ..techniques.loss_mode import marking
from .fakes import tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .static_tracer import StaticTracer
    from .tracer import LiveTracer

__all__ = ["loss_of_traced_forward", "stand_in_loss"]


def loss_of_traced_forward(
    tracer: StaticTracer | LiveTracer, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """Runs a forward and returns the scalar to differentiate: the model's own loss or a stand-in for the caller's.
    None if no output is differentiable. When it returns, the trace is in backward."""
    losses = marking(tracer)
    losses.start()
    try:
        output = model(*args, **kwargs)
    finally:
        losses.stop()
    tracer.outputs(output)
    tracer.phase("loss")
    # Autocast ends before backward, and releases its casts of the weights.
    torch.clear_autocast_cache()
    loss = loss_of(output)
    if loss is None:
        loss = stand_in_loss(output)
        if loss is not None:
            tracer.loss_outside()
    # The caller's references are not known here, so the graph shows which tensors die without them.
    del output
    tracer.phase("backward")
    return loss


def stand_in_loss(output: Any) -> torch.Tensor | None:
    """A scalar that stands in for the caller's loss: its backward gives every differentiable output a dense
    gradient. None if no output is differentiable."""

    class OutsideLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *outputs: torch.Tensor) -> torch.Tensor:
            ctx.like = [(value.shape, value.dtype, value.device) for value in outputs]
            return outputs[0].new_zeros((), dtype=torch.float32)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.like)

    outputs = [graph_part_of(value) for value in tensors_in(output) if value.requires_grad]
    return OutsideLoss.apply(*outputs) if outputs else None  # type: ignore[no-untyped-call]
