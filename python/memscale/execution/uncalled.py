"""Warns if the forward of a wrapped model is never called.

Plans are made and carried out in the root's forward. A model that runs through other methods (an agent's `get_value`,
`encode` and `decode`) or only in part trains without a plan, and nothing else would tell the user.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .notices import Notices

__all__ = ["Uncalled"]

_NAMES_MOST = 3


class Uncalled:
    """Warns once, at the first optimizer step, if the root's forward was not called before it."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._is_settled = False

    def root_called(self) -> None:
        """The root's forward runs, with gradients or without."""
        self._is_settled = True

    def optimizer_stepped(self, model: torch.nn.Module | None) -> None:
        """An optimizer has updated parameters of the model."""
        if self._is_settled or model is None:
            return
        self._is_settled = True
        kind = type(model).__name__
        self._notices.say(
            "uncalled",
            logging.WARNING,
            f"the forward of this {kind} was never called before the optimizer stepped: nothing is planned, and the "
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
