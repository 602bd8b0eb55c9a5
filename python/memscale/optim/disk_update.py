"""Updates of parameters whose state is on disk, and where each state belongs.

The middle layer of `AdamW`: what streams through `DiskState`, what a plan moves there and back,
and what an interrupted step leaves.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from ..errors import ConfigError, IntegrationError, OffloadError
from . import state as _state
from .disk import DiskState
from .memory_update import MemoryUpdates, gradient_of

__all__ = ["DiskUpdates", "disk_options"]

_log = logging.getLogger("memscale")


class DiskUpdates(MemoryUpdates):
    """State on disk, beside state in memory."""

    _disk: DiskState | None
    _disk_options: tuple[str | None, float | None] | None
    _planned_disk: bool  # on disk at a plan's wish, not the owner's
    _interrupted: str | None  # why a step was broken off

    # ---- where a state is ----------------------------------------------------------------

    def _is_streamed(self, p: torch.Tensor, group: dict[str, Any]) -> bool:
        """Whether an update goes through the disk: where the state is, or else would be made."""
        if _state.is_traced(p):
            # A trace shows the step before any plan.
            return not self._planned_disk and self._belongs_on_disk(p, group)
        if self.state.get(p):
            return self._disk is not None and p in self._disk
        return self._belongs_on_disk(p, group)

    def _belongs_on_disk(self, p: torch.Tensor, group: dict[str, Any]) -> bool:
        return self._disk_options is not None and _state.is_ours(p, group) and _core.optimizer_stream_takes(p.numel())

    def _disk_state(self) -> DiskState:
        if self._disk is None or self._disk.is_inherited:
            self._disk = DiskState(*(self._disk_options or (None, None)))
        return self._disk

    def _check_layout(self, p: torch.Tensor, group: dict[str, Any], name: str) -> None:
        """The state must fit the parameter as it is now; one that only lies otherwise is moved."""
        if not self.state.get(p) or _state.is_traced(p):
            return
        on_disk = self._disk is not None and p in self._disk
        shape, stride = (
            self._disk.layout_of(p) if on_disk and self._disk is not None else _state.layout_of(self.state[p])
        )
        if shape != tuple(p.shape):
            raise IntegrationError(
                f"AdamW: {name} has shape {tuple(p.shape)}, its state {shape}: the parameter was changed after a "
                "step. Make a new optimizer for it, or drop its state with optimizer.state.pop(parameter)"
            )
        if not _state.same_place(shape, stride, tuple(p.stride())):
            self._adopt(p, self._take_state(p), group)

    def _adopt(self, p: torch.Tensor, given: dict[str, Any], group: dict[str, Any]) -> None:
        """Takes over a state of any form; one tensor's at a time is in memory."""
        settings = self._settings(group)
        if given and self._belongs_on_disk(p, group):
            values = _state.adapt(p, given, group, *settings, copies=False)
            self._disk_state().put(p, values, *settings)
            arrays = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "low", "master", *_state.QUANTIZED}
            self.state[p] = {name: value for name, value in values.items() if name not in arrays}
        else:
            if self._disk is not None:
                self._disk.remove(p)
            self.state[p] = _state.adapt(p, given, group, *settings)

    def _take_state(self, p: torch.Tensor) -> dict[str, Any]:
        """The parameter's state, which this optimizer has no longer."""
        values = self.state.pop(p)
        if self._disk is not None and p in self._disk:
            values = {**values, **self._disk.export([p])[p]}
            self._disk.remove(p)
        return values

    @contextmanager
    def _states_in_view(self) -> Iterator[None]:
        """`state` with what is on disk as tensors, for the length of a block."""
        if self._disk is None:
            yield
            return
        self._refuse_interrupted()
        if self._disk.in_round:
            raise IntegrationError(
                "release_gradients: backward has updated parameters; call step() before the state is read"
            )
        shown = self._disk.export(self.state)
        kept = self.state
        self.state = _state.new_state({p: {**v, **shown.get(p, {})} for p, v in kept.items()})
        try:
            yield
        finally:
            self.state = kept

    # ---- the step ------------------------------------------------------------------------

    def _step_disk(self, chosen: list[tuple[list[torch.Tensor], ...]]) -> None:
        work = [(g, p) for g, c in zip(self.param_groups, chosen, strict=True) for p in c[2]]
        for group, p in work:
            self._make_disk_state(group, p)
        in_round = self._disk is not None and self._disk.in_round
        if self._disk is None or not (work or in_round or self._interrupted is not None):
            return
        if work and _state.is_traced(work[0][1]):
            return
        try:
            if not in_round:
                self._disk.begin(p for _, p in work)
            for group, p in work:
                self._update_disk(self._disk, group, p)
            updated = self._disk.end()
        except BaseException as error:
            self._disk.rest()
            self._interrupt(error)
            raise
        self._interrupted = None
        for p in updated:
            self.state[p]["step"] += 1
        torch.autograd.graph.increment_version(updated)

    def _make_disk_state(self, group: dict[str, Any], p: torch.Tensor) -> None:
        if not self.state[p]:
            self.state[p]["step"] = _state.step_tensor(0)
            if not _state.is_traced(p):
                self._disk_state().add(p, group["amsgrad"], *self._settings(group))

    def _update_disk(self, disk: DiskState, group: dict[str, Any], p: torch.Tensor) -> None:
        gradient = _state.laid_out_as(p, gradient_of(p))
        hyperparameters = self._hyperparameters(group)
        disk.update(p, gradient, int(self.state[p]["step"]) + 1, hyperparameters)
        if self._grad_scale() != 1.0 and gradient is not p.grad:
            gradient_of(p).copy_(gradient)

    # ---- a step that was broken off ------------------------------------------------------

    def _interrupt(self, error: BaseException, can_be_finished: bool = True) -> None:
        self._interrupted = str(error) or type(error).__name__
        way_out = (
            "Once the cause is gone, optimizer.finish_step() does the rest with the same gradients; or load "
            if can_be_finished
            else "Backward did not end, so gradients are missing: load "
        )
        error.add_note(
            "The step was interrupted: some parameters are updated and others not, each with its own "
            f"state. {way_out}model and optimizer from a checkpoint."
        )

    def _refuse_inherited(self) -> None:
        if self._disk is not None and self._disk and self._disk.is_inherited:
            raise IntegrationError(
                "AdamW: its state on disk belongs to the process that forked this one, and is out of reach here. "
                "Make the optimizer in the process that trains, or load a checkpoint here with load_state_dict()"
            )

    def _refuse_interrupted(self) -> None:
        self._refuse_inherited()
        if self._interrupted is not None:
            raise IntegrationError(
                "AdamW: a step was interrupted: some parameters are updated and others not. Call "
                "finish_step() with the gradients of that step, or load model and optimizer from a "
                f"checkpoint. The cause: {self._interrupted}"
            )

    # ---- what a plan chooses -------------------------------------------------------------

    def _streamable_tensors(self) -> list[torch.Tensor]:
        """Of the state, what could lie on disk and does not at its owner's wish."""
        if self._disk_options is not None and not self._planned_disk:
            return []
        return [
            value
            for group in self.param_groups
            for p in group["params"]
            if _state.is_ours(p, group) and _core.optimizer_stream_takes(p.numel())
            for name, value in self.state.get(p, {}).items()
            if name != "step"
        ]

    def _planned_disk_bytes(self) -> int:
        on_disk = self._planned_disk and self._disk is not None
        return self._disk.stats()["disk_bytes"] if on_disk and self._disk is not None else 0

    def _arrange_disk(self, on_disk: bool, directory: Any, cap_gb: float | None) -> None:
        if self._disk is not None and self._disk.is_inherited:
            return  # nothing can be moved; what needs the states says so
        if on_disk != self._planned_disk and (self._planned_disk or self._disk_options is None):
            self._planned_disk = on_disk
            self._disk_options = disk_options("disk", directory, cap_gb) if on_disk else None
            self._move_states()

    def _move_states(self) -> None:
        """Each state to where it belongs now."""
        try:
            for group in self.param_groups:
                for p in group["params"]:
                    is_on_disk = self._disk is not None and p in self._disk
                    if self.state.get(p) and is_on_disk != self._belongs_on_disk(p, group):
                        kept = self.state[p] if not is_on_disk else self._take_state(p)
                        self._adopt(p, kept, group)
        except OffloadError as error:
            # The state that could not be written is still in memory, and is used there.
            _log.warning("optimizer state stays in memory: %s", error)
            self._planned_disk, self._disk_options = False, None
        if self._disk_options is None and self._disk is not None and not self._disk:
            self._disk = None


def disk_options(state: str, directory: str | None, cap_gb: float | None) -> tuple[str | None, float | None] | None:
    """What `DiskState` takes; None for state in memory."""
    if state == "disk":
        if directory is not None and not isinstance(directory, (str, os.PathLike)):
            raise ConfigError(f"disk_offload_dir: {directory!r} is not allowed; give a path or None")
        if directory is not None:
            _core.disk_probe(str(directory))  # raises ConfigError
        if cap_gb is not None and not (isinstance(cap_gb, (int, float)) and cap_gb > 0):
            raise ConfigError(f"max_disk_offload_gb: {cap_gb!r} is not allowed; allowed are numbers above 0")
        return (None if directory is None else str(directory)), cap_gb
    if state != "memory":
        raise ConfigError(f"state: {state!r} is not allowed; allowed are 'memory' and 'disk'")
    if directory is not None or cap_gb is not None:
        raise ConfigError("disk_offload_dir and max_disk_offload_gb need state='disk'")
    return None
