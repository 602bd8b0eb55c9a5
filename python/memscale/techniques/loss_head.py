"""The exact loss head: cross entropy with one tokens x vocabulary buffer instead of three.

torch keeps the logits, their log-softmax and the gradient. Rows are independent, so this file turns
them into losses and gradients one by one. It writes the gradient over the logits if nothing else holds
them. C computes fp32 rows with the operations of torch's kernels in the same order. If C can't give
torch's bits (other dtypes, label smoothing, other processors or builds of torch), torch's own operators
compute some rows at a time. torch's operators also sum over tokens, and they sum the same numbers in the
same order as without this head. So loss and gradient have torch's bits.

On a GPU torch's operators compute the rows, and nothing waits for them. A GPU's kernel sums a row in an order that
depends on the row's length and on its address modulo 16, so chunks and the gradient's buffer keep these addresses.
Label smoothing sums rows by a kernel whose order depends on their number, and torch may read 16-bit logits as
fp32 in a kernel of its own: these are left to torch.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.nn.functional as F

from .. import _core
from ..device import ACCELERATORS

__all__ = ["cross_entropy"]

# The loss over rows has one class, 0. Ignored tokens have this label instead.
IGNORED = -100
REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """`F.cross_entropy` with the same bits, in a third of the memory.

    Loss and gradient are `torch.equal` to torch's. The logits are kept for backward, where
    the gradient overwrites them if nothing else holds their memory and the graph is not retained.
    Otherwise the gradient gets a buffer of its own. To avoid that, drop every reference to the logits
    before ``loss.backward()``, as ``loss = model(...).loss`` does.

    Args:
        logits: shape (..., vocabulary), floating point. They must not be changed in place before
            backward.
        labels: integers of shape (...), each a class or `ignore_index`.
        weight: as torch. torch's own function is called with a weight, with labels that are
            probabilities (of the shape of the logits), and on a GPU with label smoothing or logits
            of 16 bits.
        ignore_index, reduction, label_smoothing: as `F.cross_entropy`.
        num_items_in_batch: divides the sum, instead of the mean over tokens. `reduction` is then
            ignored. Hugging Face passes it when gradients are accumulated.

    Returns:
        The loss, a scalar or of the shape of `labels` with ``reduction="none"``.

    Raises:
        TypeError: logits or labels are not tensors.
        ValueError: shapes do not match, or an argument is not allowed.
        IndexError: a label is neither a class nor `ignore_index`. (On a GPU the kernel fails, as torch's does.)
        RuntimeError: in backward, the logits were changed in place, or a second derivative is
            requested.

    Example:
        >>> loss = cross_entropy(model(x), labels)
        >>> loss.backward()
    """
    check_tensors("cross_entropy", logits=logits, labels=labels)
    if num_items_in_batch is not None:
        total = cross_entropy(logits, labels, weight, ignore_index, "sum", label_smoothing)
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(total.device)
        return total / num_items_in_batch
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction is {reduction!r}; allowed are {', '.join(REDUCTIONS)}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing}; allowed is 0 to 1")
    is_torchs = weight is not None or labels.is_floating_point() or not is_supported(logits, label_smoothing)
    expected = logits.shape if labels.is_floating_point() else logits.shape[:-1]
    if logits.dim() == 0 or labels.shape != expected:
        raise ValueError(
            f"cross_entropy: logits of shape {tuple(logits.shape)} need labels of shape "
            f"{tuple(expected)}, not {tuple(labels.shape)}"
        )
    if is_torchs:
        return _by_torch(logits, labels, weight, ignore_index, reduction, label_smoothing)
    return _reduced(_cast_as_torch(logits), labels, ignore_index, reduction, label_smoothing)


def is_supported(logits: torch.Tensor, label_smoothing: float) -> bool:
    """Whether rows of these logits can have torch's bits one by one."""
    device = logits.device.type
    if device == "cpu":
        return True
    is_wide = logits.dtype in (torch.float32, torch.float64)
    return any(device == kind.name for kind in ACCELERATORS) and is_wide and label_smoothing == 0.0


def _by_torch(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> torch.Tensor:
    """torch's own function. It expects classes in the second dimension, so the logits become rows."""
    rows = logits.reshape(-1, logits.shape[-1])
    flat = labels.reshape(rows.shape if labels.is_floating_point() else -1)
    loss = F.cross_entropy(
        rows, flat, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    return loss.reshape(logits.shape[:-1]) if reduction == "none" else loss


def check_tensors(caller: str, **values: object) -> None:
    """Raises a `TypeError` that names the first value that is not a tensor."""
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{caller}: {name} must be a tensor, not {type(value).__qualname__}")


def _cast_as_torch(logits: torch.Tensor) -> torch.Tensor:
    """The logits as autocast casts them for `F.cross_entropy`."""
    if logits.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return logits  # on a GPU they have the type of torch's loss
    probe = torch.zeros((1, 1), dtype=logits.dtype, device="cpu")
    return logits.to(F.cross_entropy(probe, torch.zeros(1, dtype=torch.long, device="cpu")).dtype)


def _reduced(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: int, reduction: str, label_smoothing: float
) -> torch.Tensor:
    vocabulary = logits.shape[-1]
    flat = labels.reshape(-1).long()
    is_ignored = flat == ignore_index
    check_labels(flat, is_ignored, vocabulary)
    classes = flat.masked_fill(is_ignored, 0)
    with torch.autocast(logits.device.type, enabled=False):
        picked, sums = _Rows.apply(  # type: ignore[no-untyped-call]
            logits.reshape(-1, vocabulary), classes, label_smoothing > 0.0
        )
        one_class = torch.zeros_like(flat).masked_fill_(is_ignored, IGNORED)
        loss = F.nll_loss(picked[:, None], one_class, ignore_index=IGNORED, reduction=reduction)
        if label_smoothing > 0.0:
            loss = _smoothed(loss, sums, is_ignored, vocabulary, reduction, label_smoothing)
    return loss.reshape(labels.shape) if reduction == "none" else loss


def _smoothed(
    loss: torch.Tensor,
    sums: torch.Tensor,
    is_ignored: torch.Tensor,
    vocabulary: int,
    reduction: str,
    label_smoothing: float,
) -> torch.Tensor:
    """The loss with label smoothing, computed with torch's operators in torch's order."""
    smooth = sums.neg().masked_fill(is_ignored, 0.0)
    if reduction == "mean":
        smooth = smooth.sum() / is_ignored.bitwise_not().sum()
    elif reduction == "sum":
        smooth = smooth.sum()
    return loss.mul(1 - label_smoothing) + smooth.mul(label_smoothing / vocabulary)


def check_labels(flat: torch.Tensor, is_ignored: torch.Tensor, vocabulary: int) -> None:
    """Raises an `IndexError` for a label out of bounds. On a GPU that would wait for the device; there the kernel
    that picks the label's logit fails."""
    if flat.device.type != "cpu":
        return
    is_wrong = ((flat < 0) | (flat >= vocabulary)) & ~is_ignored
    if bool(is_wrong.any()):
        raise IndexError(f"Target {int(flat[is_wrong][0])} is out of bounds.")


class _Rows(torch.autograd.Function):
    """The log-softmax of one class in each row of logits, and its sum over all classes if requested."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, classes: torch.Tensor, wants_sums: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        # save_for_backward would keep the tensor itself, and a view's base. The code could then not
        # tell whether anything else still needs them.
        ctx.logits = logits.detach()
        ctx.version = logits._version
        ctx.classes = classes
        ctx.in_c = not wants_sums and _lanes(logits) > 0
        if ctx.in_c:
            picked, ctx.largest, ctx.log_sum = (logits.new_empty(len(logits)) for _ in range(3))
            _core.loss_forward(*_row_arguments(ctx), picked.data_ptr(), 0)
            return picked, None
        return _forward_by_operators(logits, classes, wants_sums)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_picked: torch.Tensor, by_sum: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        logits = ctx.logits
        if logits is None:
            raise RuntimeError(
                "cross_entropy: backward ran a second time and the logits are gone; "
                "use retain_graph=True the first time"
            )
        if logits._version != ctx.version:
            raise RuntimeError(
                "cross_entropy: the logits have been modified by an inplace operation since the loss was "
                "computed; clone them before you change them"
            )
        is_last = not keeps_graph()
        # The gradient must be contiguous, because some operators that write rows elsewhere ignore strides.
        gradient = logits if is_last and _is_sole_owner(ctx) else logits.new_empty(logits.shape)
        if ctx.in_c:
            by_picked = by_picked.contiguous()
            _core.loss_backward(*_row_arguments(ctx), by_picked.data_ptr(), gradient.data_ptr())
        else:
            _backward_by_operators(logits, ctx.classes, by_picked, by_sum, gradient)
        if is_last:
            ctx.logits = None
        return gradient, None, None


# ---- rows in C -----------------------------------------------------------------------------


def _lanes(logits: torch.Tensor) -> int:
    """The number of lanes of torch's vectors if C gives torch's bits for these logits, else 0."""
    is_fp32 = logits.dtype is torch.float32 and logits.device.type == "cpu"
    if not is_fp32 or not logits.is_contiguous() or not _c_agrees():
        return 0
    return _core.loss_lanes(torch.backends.cpu.get_cpu_capability(), logits.shape[1])


def _row_arguments(ctx: Any) -> tuple[int, int, int, int, int, int, int, int]:
    rows, vocabulary = ctx.logits.shape
    return (
        ctx.logits.data_ptr(),
        rows,
        vocabulary,
        ctx.classes.data_ptr(),
        ctx.largest.data_ptr(),
        ctx.log_sum.data_ptr(),
        _core.loss_lanes(torch.backends.cpu.get_cpu_capability(), vocabulary),
        torch.get_num_threads(),
    )


@functools.cache
def _c_agrees() -> bool:
    """Whether C and this build of torch give the same bits, tried once on a few rows.

    Another build may have other kernels than those that `src/techniques/loss.c` follows.
    """
    with torch.device("cpu"):  # C gets addresses, and torch's default device may not be the CPU
        return _c_agrees_on_rows()


def _c_agrees_on_rows() -> bool:
    dtype = torch.float32
    scale = torch.tensor([[0.1], [1.0], [5.0], [40.0]], dtype=dtype)
    waves = torch.linspace(-3.0, 3.0, 4 * 2053, dtype=dtype).sin().view(4, 2053)
    logits = scale * waves * torch.arange(2053, dtype=dtype).cos()
    classes = torch.tensor([0, 7, 2052, 1024])
    rows = _Probe(logits, classes)
    lanes = _core.loss_lanes(torch.backends.cpu.get_cpu_capability(), 2053)
    if lanes == 0:
        return False
    picked = torch.empty(4, dtype=dtype)
    by_picked = torch.tensor([-0.25, 0.5, -3.0, 0.0], dtype=dtype)
    _core.loss_forward(*_row_arguments(rows), picked.data_ptr(), 0)
    gradient = torch.empty_like(logits)
    _core.loss_backward(*_row_arguments(rows), by_picked.data_ptr(), gradient.data_ptr())
    by_operators = torch.empty_like(logits)
    _backward_by_operators(logits, classes, by_picked, None, by_operators)
    expected, _ = _forward_by_operators(logits, classes, False)
    return torch.equal(picked, expected) and torch.equal(gradient, by_operators)


class _Probe:
    """The fields of a context that `_row_arguments` reads."""

    def __init__(self, logits: torch.Tensor, classes: torch.Tensor) -> None:
        self.logits = logits
        self.classes = classes
        self.largest, self.log_sum = logits.new_empty(len(logits)), logits.new_empty(len(logits))


# ---- rows by torch's operators -----------------------------------------------------------------


def _forward_by_operators(
    logits: torch.Tensor, classes: torch.Tensor, wants_sums: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    picked = logits.new_empty(len(logits))
    sums = logits.new_empty(len(logits)) if wants_sums else None
    for begin, end in _chunks(logits):
        log_softmax = torch.log_softmax(logits[begin:end], -1)
        picked[begin:end] = log_softmax.gather(1, classes[begin:end, None])[:, 0]
        if sums is not None:
            sums[begin:end] = log_softmax.sum(1)
        del log_softmax  # before the next chunk's is allocated
    return picked, sums


def _backward_by_operators(
    logits: torch.Tensor,
    classes: torch.Tensor,
    by_picked: torch.Tensor,
    by_sum: torch.Tensor | None,
    gradient: torch.Tensor,
) -> None:
    """Fills `gradient`, which may be `logits`."""
    for begin, end in _chunks(logits):
        log_softmax = torch.log_softmax(logits[begin:end], -1)
        by_row = torch.zeros_like(log_softmax)
        by_row.scatter_(1, classes[begin:end, None], by_picked[begin:end, None])
        if by_sum is not None:
            by_row.add_(by_sum[begin:end, None])
        torch._log_softmax_backward_data(by_row, log_softmax, 1, logits.dtype, out=gradient[begin:end])
        del log_softmax, by_row  # before the next chunk's are allocated


# ---- owners of the memory -----------------------------------------------------------------------


def _is_sole_owner(ctx: Any) -> bool:
    """Whether only the context's tensor holds its memory, so that it may be overwritten."""
    if not hasattr(torch._C, "_storage_Use_Count"):
        return False
    logits = ctx.logits
    is_aligned = logits.device.type == "cpu" or logits.data_ptr() % 16 == 0  # as torch's gradient is
    return logits.is_contiguous() and is_aligned and _holders(logits) == _holders(torch.empty(1, device="cpu"))


def _holders(tensor: torch.Tensor) -> tuple[int, int]:
    """The number of tensors on this one's storage, and of references to the storage's Python object."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


def keeps_graph() -> bool:
    """Whether the backward under way may be run again; True if this torch can't tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or ask()


def _chunks(logits: torch.Tensor) -> list[tuple[int, int]]:
    rows, vocabulary = logits.shape
    on_device = logits.device.type != "cpu"
    size = _core.loss_chunk_rows(rows, vocabulary, logits.element_size(), torch.get_num_threads(), on_device)
    return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]
