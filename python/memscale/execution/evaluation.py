"""Forwards of the root without gradients: validation, generation, rollouts.

Evaluations run without hooks. This class tells C when one begins and ends. C measures the memory of evaluations
separately from that of training steps, and writes the warning if an evaluation exceeds the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.arguments import plain_tensors
from ..base.walk import is_training

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["Evaluation"]


class Evaluation:
    """The evaluations of one model.

    In training mode an evaluation is one forward. In evaluation mode it lasts until training resumes, because losses
    and metrics are computed after the forward.

    Args:
        core: the C side of the execution.
        report: receives the bytes resident before an evaluation, the bytes at its peak and the rows of its largest
            batch.
    """

    def __init__(self, core: Any, report: Callable[[int, int, int], None]) -> None:
        self._core = core
        self._report = report
        self._rows = 0
        self._runs = False

    def forward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The root is about to run without gradients."""
        self._core.evaluation_begins()
        self._runs = True
        rows = (tensor.size(0) for tensor in plain_tensors((args, kwargs)) if tensor.dim() > 0)
        self._rows = max(self._rows, next(rows, 0))

    def part_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A layer is about to run without gradients, outside of the root's forward."""
        if not self._runs:
            self.forward_begins(args, kwargs)

    def forward_ended(self, model: torch.nn.Module) -> None:
        """The root has run without gradients."""
        if is_training(model):
            self.end()

    def end(self) -> None:
        """Training resumes: reports the evaluation that was under way, if any."""
        if not self._runs:
            return
        self._runs = False
        rows, self._rows = self._rows, 0
        seen = self._core.evaluation_ends()
        if seen is not None:
            before_bytes, peak_bytes = seen
            self._report(before_bytes, peak_bytes, rows)
