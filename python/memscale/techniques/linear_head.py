"""The chunked loss head: a linear layer and its cross entropy without the logits.

The head computes the logits of some tokens at a time, turns them into losses and into gradients of
the layer's operands, and releases them. So the tokens x vocabulary logits never exist as a whole.
Products are summed in another order than in the whole layer, so results agree to rounding and not to
the bit. The exact head is `cross_entropy`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .. import _core
from .loss_head import check_labels, check_tensors, keeps_graph

__all__ = ["linear_cross_entropy"]


class _Options(NamedTuple):
    label_smoothing: float
    z_loss: float
    softcap: float | None


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    *,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross entropy of ``hidden @ weight.T + bias``, which is never in memory as a whole.

    The gradients of `hidden`, `weight` and `bias` are computed in forward and kept for backward. They
    have as many elements as these three, instead of three times tokens x vocabulary. The loss is
    computed in fp32 and agrees with that of the whole logits to 1e-6.

    Args:
        hidden: shape (..., width), floating point.
        weight: shape (vocabulary, width), of a linear layer such as `lm_head`.
        labels: integers of shape (...), each a class or `ignore_index`. Not shifted.
        bias: shape (vocabulary,).
        ignore_index, label_smoothing: as `torch.nn.functional.cross_entropy`.
        z_loss: for every token that counts, the squared logarithm of the softmax's denominator is
            added, times this factor.
        softcap: logits become ``softcap * tanh(logits / softcap)`` first.
        num_items_in_batch: divides the sum, instead of the number of tokens that count.

    Returns:
        A scalar, fp32; float64 for float64 operands.

    Raises:
        TypeError: an operand is not a floating-point tensor, or an option not a number.
        ValueError: shapes do not match, or an argument is not allowed.
        IndexError: a label is neither a class nor `ignore_index`. (On a GPU the kernel fails, as torch's does.)
        RuntimeError: in backward, a second derivative is requested.

    Example:
        >>> hidden = model.transformer(ids).last_hidden_state[:, :-1]
        >>> loss = linear_cross_entropy(hidden, model.lm_head.weight, ids[:, 1:])
        >>> loss.backward()
    """
    _check(hidden, weight, labels, bias, label_smoothing, softcap)
    _check_numbers(ignore_index=ignore_index, z_loss=z_loss)
    if num_items_in_batch is not None and not isinstance(num_items_in_batch, (int, float, torch.Tensor)):
        kind = type(num_items_in_batch).__qualname__
        raise TypeError(f"linear_cross_entropy: num_items_in_batch must be a number or a tensor, not {kind}")
    flat = labels.reshape(-1).long()
    counts = flat != ignore_index
    check_labels(flat, ~counts, weight.shape[0])
    hidden, weight, bias = _cast_as_torch(hidden, weight, bias)
    options = _Options(label_smoothing, z_loss, softcap)
    items: Any = counts.sum() if num_items_in_batch is None else num_items_in_batch
    with torch.autocast(hidden.device.type, enabled=False):
        rows = hidden.reshape(-1, hidden.shape[-1])
        classes = flat.masked_fill(~counts, 0)
        loss: torch.Tensor = _Chunks.apply(rows, weight, bias, classes, counts, items, options)  # type: ignore[no-untyped-call]
        return loss


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None,
    label_smoothing: float,
    softcap: float | None,
) -> None:
    check_tensors("linear_cross_entropy", hidden=hidden, weight=weight, labels=labels)
    if bias is not None:
        check_tensors("linear_cross_entropy", bias=bias)
    _check_numbers(label_smoothing=label_smoothing, softcap=0.0 if softcap is None else softcap)
    if not (hidden.is_floating_point() and weight.is_floating_point()):
        kinds = f"hidden is {hidden.dtype}, weight {weight.dtype}"
        raise TypeError(f"linear_cross_entropy: hidden and weight must be floating point; {kinds}")
    shapes = f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, labels {tuple(labels.shape)}"
    fits = hidden.dim() > 0 and weight.dim() == 2 and hidden.shape[-1] == weight.shape[1]
    if not fits or labels.shape != hidden.shape[:-1]:
        raise ValueError(f"linear_cross_entropy: shapes do not belong together: {shapes}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"linear_cross_entropy: bias has shape {tuple(bias.shape)}, not {tuple(weight.shape[:1])}")
    if labels.is_floating_point():
        raise ValueError("linear_cross_entropy: labels must be integers")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"linear_cross_entropy: label_smoothing is {label_smoothing}; allowed is 0 to 1")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"linear_cross_entropy: softcap is {softcap}; it must be above 0")


def _check_numbers(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, (int, float)):
            raise TypeError(f"linear_cross_entropy: {name} must be a number, not {type(value).__qualname__}")


def _cast_as_torch(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A linear layer's operands as autocast casts them."""
    device = hidden.device.type
    if not torch.is_autocast_enabled(device):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype) if bias is not None else None


class _Gradients(NamedTuple):
    """The gradients of the operands if the loss's own gradient is 1; None for operands that need none."""

    hidden: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None


class _Chunks(torch.autograd.Function):
    """The loss; its forward also computes the gradients of the operands."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        classes: torch.Tensor,
        counts: torch.Tensor,
        items: Any,
        options: _Options,
    ) -> torch.Tensor:
        wide = torch.float64 if hidden.dtype is torch.float64 else torch.float32
        # Most gradients of a mean over many tokens are below FP16's range. So for FP16 the division is made
        # in backward, where the incoming gradient is scaled up.
        is_fp16 = hidden.dtype is torch.float16
        items = torch.as_tensor(items, dtype=wide, device=hidden.device)
        # If no token counts, the loss is nan and the gradients are zero.
        scale = torch.where(items == 0, torch.zeros_like(items), 1 / items)
        gradients = _Gradients(
            torch.empty_like(hidden) if ctx.needs_input_grad[0] else None,
            torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None,
            torch.zeros_like(bias, dtype=wide) if bias is not None and ctx.needs_input_grad[2] else None,
        )
        losses = torch.zeros(len(hidden), dtype=wide, device=hidden.device)
        size = _core.loss_chunk_rows(len(hidden), len(weight), wide.itemsize, torch.get_num_threads(), False)
        for begin in range(0, len(hidden), size):
            part = slice(begin, begin + size)
            logits = torch.nn.functional.linear(hidden[part], weight, bias).to(wide)
            losses[part] = _turn_into_gradient(logits, classes[part], counts[part], options)
            if any(gradient is not None for gradient in gradients):
                if not is_fp16:
                    logits.mul_(scale)
                _add_gradients(logits.to(weight.dtype), hidden[part], weight, gradients, part)
            del logits  # before the next chunk is computed
        ctx.gradients = gradients
        ctx.scale = scale if is_fp16 else None
        ctx.dtypes = (weight.dtype, bias.dtype if bias is not None else None)
        mean: torch.Tensor = losses.sum() / items
        return mean

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_loss: torch.Tensor) -> Any:
        gradients = ctx.gradients
        if gradients is None:
            raise RuntimeError(
                "linear_cross_entropy: backward ran a second time and the gradients are gone; "
                "use retain_graph=True the first time"
            )
        keeps = keeps_graph()
        if not keeps:
            ctx.gradients = None
        if ctx.scale is not None:
            by_loss = by_loss * ctx.scale
        scaled = [_scaled(gradient, by_loss, keeps) for gradient in gradients]
        for index, dtype in enumerate(ctx.dtypes, 1):
            gradient = scaled[index]
            scaled[index] = gradient.to(dtype) if gradient is not None else None
        return (*scaled, None, None, None, None)


def _scaled(gradient: torch.Tensor | None, by_loss: torch.Tensor, keeps: bool) -> torch.Tensor | None:
    if gradient is None:
        return None
    return gradient * by_loss.to(gradient.dtype) if keeps else gradient.mul_(by_loss)


def _turn_into_gradient(
    logits: torch.Tensor, classes: torch.Tensor, counts: torch.Tensor, options: _Options
) -> torch.Tensor:
    """The losses of a chunk's rows; the logits become the gradient of their sum."""
    smoothing, z_loss, softcap = options
    slope = None
    if softcap is not None:
        tanh = logits.div_(softcap).tanh_()
        slope = 1 - tanh * tanh
        logits.mul_(softcap)
    log_sum = torch.logsumexp(logits, 1)
    losses = log_sum - (1 - smoothing) * logits.gather(1, classes[:, None])[:, 0] + z_loss * log_sum**2
    if smoothing > 0:
        losses -= smoothing * logits.mean(1)
    logits.sub_(log_sum[:, None]).exp_()
    if z_loss != 0:
        logits.mul_(1 + 2 * z_loss * log_sum[:, None])
    if smoothing > 0:
        logits.sub_(smoothing / logits.shape[1])
    one = logits.new_full((1, 1), smoothing - 1).expand(len(logits), 1)
    logits.scatter_add_(1, classes[:, None], one)
    if slope is not None:
        logits.mul_(slope)
    logits.masked_fill_(~counts[:, None], 0)
    return losses.masked_fill(~counts, 0)


def _add_gradients(
    by_logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, gradients: _Gradients, part: slice
) -> None:
    if gradients.hidden is not None:
        torch.mm(by_logits, weight, out=gradients.hidden[part])
    if gradients.weight is not None:
        if gradients.weight.dtype is weight.dtype:
            gradients.weight.addmm_(by_logits.t(), hidden)
        else:
            gradients.weight.add_(by_logits.t() @ hidden)
    if gradients.bias is not None:
        gradients.bias.add_(by_logits.sum(0, dtype=gradients.bias.dtype))
