"""Tells the user of a wrap that does nothing or less than it could, because the loop calls no forward or no backward of
the model.

A model that runs through other methods (an agent's `get_value`, `encode` and `decode`) or only in part is planned by
the calls of its layers (`parts.py`). If these can't be seen either, it trains without a plan, and nothing else would
tell the user. Nor would anything if the model is only evaluated.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .notices import Notices

__all__ = ["Uncalled"]

_NAMES_MOST = 3
_FORWARDS = 8  # more than the batches with which trainers check a validation before they train


class Uncalled:
    """Says once, at the first optimizer step, that the root's forward was not called with gradients before it, and
    warns if no layer was either. Says once, after some forwards, that no backward has followed them."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._is_settled = False
        self._forwards = 0

    def root_called(self, has_backward: bool, has_gradients: bool) -> None:
        """The root's forward begins.

        Args:
            has_backward: whether a backward of the model has begun since the wrap.
            has_gradients: whether gradients are switched on.
        """
        self._is_settled |= has_gradients
        self._forwards += 1
        if self._forwards != _FORWARDS or has_backward:
            return
        cure = "; torch.no_grad() keeps its forwards from saving tensors for a backward" if has_gradients else ""
        self._notices.say(
            "no backward",
            logging.INFO,
            f"no backward has followed the first {_FORWARDS - 1} forwards: memscale plans training steps, and "
            f"evaluation runs as without it{cure}",
        )

    def optimizer_stepped(self, model: torch.nn.Module | None, parts_ran: bool) -> None:
        """An optimizer has updated parameters of the model.

        Args:
            model: the root; None if it does not exist any more.
            parts_ran: whether layers were called with gradients outside of the root's forward.
        """
        if self._is_settled or model is None:
            return
        self._is_settled = True
        kind = type(model).__name__
        if parts_ran:
            self._notices.say(
                "parts",
                logging.INFO,
                f"the loop calls parts of this {kind} and not its forward: its layers are planned from a real step",
            )
            return
        self._notices.say(
            "uncalled",
            logging.WARNING,
            f"the forward of this {kind} was never called before the optimizer stepped, except inside code that "
            "torch.compile compiles, where memscale is inactive: nothing is planned, and the "
            f"run may exceed a budget. Wrap the module that the loop calls{_parts_of(model)}, or let forward run the "
            "layers",
        )


def _parts_of(model: torch.nn.Module) -> str:
    """Names the children with parameters, which the user may wrap instead."""
    names = [name for name, child in model.named_children() if next(child.parameters(), None) is not None]
    if not names:
        return ""
    shown = ", ".join(f"model.{name}" for name in names[:_NAMES_MOST])
    return f" ({shown}{', ...' if len(names) > _NAMES_MOST else ''})"
