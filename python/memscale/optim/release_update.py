"""Switches gradient release on and off. It knows who chose release, and whether the loop needs gradients.

The switch is a part of `AdamW`. release.py knows when gradients are final and refuses other uses of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..base.divided import has_several_processes
from .gradient_use import GradientUse
from .release import GradientRelease, Releasing

__all__ = ["ReleaseSwitch"]


class ReleaseSwitch:
    """Begins and ends gradient release of one optimizer.

    Attributes:
        release: the hooks, while gradients are released.
        order: the parameters that the last step's backward updated, in order.
        is_planned: whether a plan, not the user, chose release.
    """

    def __init__(self) -> None:
        self.release: GradientRelease | None = None
        self.order: list[torch.Tensor] = []
        self.is_planned = False
        self._use: GradientUse | None = None  # while a later plan may choose release

    def begin(self, optimizer: Releasing) -> None:
        """Begins release with the next backward."""
        # A GradScaler whose scaling was not seen then leaves unscaling to step(), which raises.
        optimizer._step_supports_amp_scaling = True
        self.release = GradientRelease(optimizer)
        self.release.attach()

    def _end(self, optimizer: Releasing) -> None:
        if self.release is not None:
            self.release.detach()
            self.release = None
        optimizer._step_supports_amp_scaling = bool(optimizer.defaults["fused"])

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Keeps and accumulates gradients within the block."""
        if self.release is None:
            yield
            return
        self.release.accumulating += 1
        try:
            yield
        finally:
            self.release.accumulating -= 1

    def step_ended(self) -> None:
        """The step has used all gradients."""
        if self.release is not None:
            self.order = self.release.step_ended()

    @property
    def is_owners_wish(self) -> bool:
        """Whether the user, not a plan, chose release."""
        return self.release is not None and not self.is_planned

    def arrange(self, optimizer: Releasing, releases: bool, may_release: bool) -> None:
        """Begins or ends release as a plan says; the user's own choice is not changed. If a later plan
        `may_release`, observes whether the loop needs gradients."""
        if not may_release:
            self._use = None
        elif self._use is None:
            self._use = GradientUse(optimizer)
        if releases and self.release is None:
            self.is_planned = True
            self.begin(optimizer)
        elif self.is_planned and not releases and self.release is not None:
            self.is_planned = False
            self._end(optimizer)

    def needed_gradients(self) -> bool:
        """Whether the loop has needed all gradients at once: to clip or to unscale them, or to add those of other
        processes."""
        if has_several_processes():
            return True
        if self._use is not None and self._use.needs_all:
            return True
        return self.release is not None and self.release.was_scaled
