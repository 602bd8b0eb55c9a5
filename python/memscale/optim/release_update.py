"""Updates inside backward: what `GradientRelease` asks for as soon as a gradient is final.

The upper layer of `AdamW`; when gradients are final, and what is refused meanwhile, is in
release.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import IntegrationError
from . import state as _state
from .disk_update import DiskUpdates
from .gradient_use import GradientUse
from .memory_update import check_gradient
from .release import GradientRelease

__all__ = ["ReleaseUpdates"]


class ReleaseUpdates(DiskUpdates):
    """One parameter's update, and the beginning and end of releasing."""

    _release: GradientRelease | None
    _release_order: list[torch.Tensor]
    _planned_release: bool  # at a plan's wish, not the owner's
    _gradient_use: GradientUse | None  # while a plan may come to want release

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Gradients of backwards in this block are added up, as without `release_gradients`.

        Run all micro-steps but the last in it; the last backward updates and frees.

        Example:
            >>> with optimizer.accumulate():
            ...     model(first).loss.backward()
            >>> model(last).loss.backward()
            >>> optimizer.step()
        """
        if self._release is None:
            yield
            return
        self._release.accumulating += 1
        try:
            yield
        finally:
            self._release.accumulating -= 1

    def _begin_release(self) -> None:
        # A GradScaler whose scaling was not seen leaves the gradients to step(), which refuses by name.
        self._step_supports_amp_scaling = True
        self._release = GradientRelease(self)
        self._release.attach()

    def _facts_for_plan(self) -> tuple[list[torch.Tensor], bool, bool]:
        """What could lie on disk; whether its owner has it release gradients, or keep state there."""
        streams = self._disk_options is not None and not self._planned_disk
        return self._streamable_tensors(), self._releases_by_itself(), streams

    def _releases_now(self) -> bool:
        return self._release is not None

    def _releases_by_itself(self) -> bool:
        return self._releases_now() and not self._planned_release

    def _arrange(
        self,
        on_disk: bool,
        releases: bool,
        may_release: bool = False,
        directory: Any = None,
        cap_gb: float | None = None,
    ) -> None:
        """Moves state and begins or ends gradient release as a plan wants; what the optimizer was
        made with stays as it is. Where a later plan `may_release`, it is watched whether the
        loop needs gradients. Between steps."""
        self._arrange_disk(on_disk, directory, cap_gb)
        if not may_release:
            self._gradient_use = None
        elif self._gradient_use is None:
            self._gradient_use = GradientUse(self)
        if releases and self._release is None:
            self._planned_release = True
            self._begin_release()
        elif self._planned_release and not releases and self._release is not None:
            self._planned_release = False
            self._release.detach()
            self._release = None
            self._step_supports_amp_scaling = bool(self.defaults["fused"])

    def _needed_gradients(self) -> bool:
        """Whether the loop was seen to need all gradients before one is used."""
        if self._gradient_use is not None and self._gradient_use.needs_all:
            return True
        return self._release is not None and self._release.was_scaled

    def _group_index(self, p: torch.Tensor) -> int:
        for index, group in enumerate(self.param_groups):
            if any(p is q for q in group["params"]):
                return index
        raise IntegrationError("release_gradients: the parameter was taken out of its group")

    def _name_of(self, p: torch.Tensor) -> str:
        index = self._group_index(p)
        group = self.param_groups[index]
        position = next(i for i, q in enumerate(group["params"]) if p is q)
        return f"parameter {position} of group {index}"

    def _update_one(self, index: int, p: torch.Tensor) -> None:
        """Updates a parameter whose gradient has just become final."""
        group = self.param_groups[index]
        check_gradient(p, self._name_of(p))
        if _state.is_ours(p, group):
            self._check_layout(p, group, self._name_of(p))
        if not _state.is_ours(p, group):
            self._step_torch({**group, "params": [p]})
        elif not self._is_streamed(p, group):
            self._make_states(group, [p])
            self._step_c(group, [p])
        else:
            self._make_disk_state(group, p)
            disk = self._disk_state()
            if not disk.in_round:
                disk.begin(self._release_order)
            try:
                self._update_disk(disk, group, p)
            except BaseException:
                disk.rest()
                raise
            torch.autograd.graph.increment_version([p])
