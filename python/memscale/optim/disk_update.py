"""The place of each parameter's state, memory or disk, and updates of states on disk.

`StatePlace` is a part of `AdamW`. It moves states to disk and back, streams updates through `DiskState`, and
remembers an interrupted step. Its methods get the optimizer or its `state` as an argument and don't keep it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from ..errors import ConfigError, IntegrationError, OffloadError, add_note
from . import state as _state
from .disk import DiskState
from .memory_update import StateForm, grad_scale, gradient_of, hyperparameters

__all__ = ["StatePlace", "disk_options"]

_log = logging.getLogger("memscale")

_States = dict[Any, Any]
_Group = dict[str, Any]


class StatePlace:
    """Knows which of an optimizer's states are on disk and which are in memory.

    Args:
        form: the form of states.
        options: the user's choice, from `disk_options()`.

    Attributes:
        disk: holds the states on disk; None if no state is on disk.
        options: the disk for new states, chosen by the user or a plan; None for memory.
        is_planned: whether a plan, not the user, put states on disk.
        interrupted: the error that interrupted a step; None if none was.
    """

    def __init__(self, form: StateForm, options: tuple[str | None, float | None] | None) -> None:
        self.form = form
        self.options = options
        self.disk: DiskState | None = None
        self.is_planned = False
        self.interrupted: str | None = None

    # ---- the place of a state ----------------------------------------------------------------

    def is_streamed(self, states: _States, p: torch.Tensor, group: _Group) -> bool:
        """Whether an update goes through the disk, because the state is there or would be created there."""
        if _state.is_traced(p):
            # The trace describes the step without a plan.
            return not self.is_planned and self.belongs_on_disk(p, group)
        if states.get(p):
            return self._holds(p)
        return self.belongs_on_disk(p, group)

    def belongs_on_disk(self, p: torch.Tensor, group: _Group) -> bool:
        """Whether a new state of the parameter would be made on disk."""
        return self.options is not None and _state.is_ours(p, group) and _core.optimizer_stream_takes(p.numel())

    def _holds(self, p: torch.Tensor) -> bool:
        return self.disk is not None and p in self.disk

    def _made_disk(self) -> DiskState:
        if self.disk is None or self.disk.is_inherited:
            self.disk = DiskState(*(self.options or (None, None)))
        return self.disk

    def check_layout(self, states: _States, p: torch.Tensor, group: _Group, name: str) -> None:
        """Checks that the state fits the parameter. A state of another layout is converted.

        Raises:
            IntegrationError: the parameter has another shape than its state.
        """
        if not states.get(p) or _state.is_traced(p):
            return
        disk = self.disk
        shape, stride = disk.layout_of(p) if disk is not None and p in disk else _state.layout_of(states[p])
        if shape != tuple(p.shape):
            raise IntegrationError(
                f"AdamW: {name} has shape {tuple(p.shape)}, its state {shape}: the parameter was changed after a "
                "step. Make a new optimizer for it, or drop its state with optimizer.state.pop(parameter)"
            )
        if not _state.same_place(shape, stride, tuple(p.stride())):
            self.adopt(states, p, self.take(states, p), group)

    def adopt(self, states: _States, p: torch.Tensor, given: dict[str, Any], group: _Group) -> None:
        """Stores a state of any form, on disk if it belongs there."""
        form = self.form.of(group)
        if given and self.belongs_on_disk(p, group):
            values = _state.adapt(p, given, group, *form, copies=False)
            self._made_disk().put(p, values, *form)
            arrays = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "low", "master", *_state.QUANTIZED}
            states[p] = {name: value for name, value in values.items() if name not in arrays}
        else:
            if self.disk is not None:
                self.disk.remove(p)
            states[p] = _state.adapt(p, given, group, *form)

    def take(self, states: _States, p: torch.Tensor) -> dict[str, Any]:
        """Removes the parameter's state from the optimizer and returns it."""
        values: dict[str, Any] = states.pop(p)
        if self.disk is not None and p in self.disk:
            values = {**values, **self.disk.export([p])[p]}
            self.disk.remove(p)
        return values

    def settle(self, states: _States, p: torch.Tensor, value: Any, group: _Group) -> None:
        """Replaces a parameter's state by the one that `__setstate__` got."""
        is_hidden = isinstance(value, _state.Hidden)
        values = value.value if is_hidden else value
        try:
            if is_hidden or (values and self.belongs_on_disk(p, group)):
                self.adopt(states, p, values, group)
            elif self.disk is not None:
                self.disk.remove(p)
        except OffloadError as error:
            self.interrupted = f"only a part of its state was loaded: {error}"
            raise

    @contextmanager
    def in_view(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """A block in which `optimizer.state` shows the states on disk as tensors."""
        if self.disk is None:
            yield
            return
        self.refuse_interrupted()
        if self.disk.in_round:
            raise IntegrationError(
                "release_gradients: backward has updated parameters; call step() before you read the state"
            )
        kept = optimizer.state
        shown = self.disk.export(kept)
        optimizer.state = _state.new_state({p: {**v, **shown.get(p, {})} for p, v in kept.items()})
        try:
            yield
        finally:
            optimizer.state = kept

    # ---- updates -------------------------------------------------------------------------

    def step(self, optimizer: torch.optim.Optimizer, work: list[tuple[_Group, torch.Tensor]]) -> None:
        """Updates each parameter of `work`, and ends the round that backward may have begun.

        Raises:
            OffloadError: some parameters are updated and others not; see `interrupted`.
        """
        for group, p in work:
            self._make_state(optimizer.state, group, p)
        disk = self.disk
        in_round = disk is not None and disk.in_round
        if disk is None or not (work or in_round or self.interrupted is not None):
            return
        if work and _state.is_traced(work[0][1]):
            return
        try:
            if not in_round:
                disk.begin(p for _, p in work)
            for group, p in work:
                self._update(disk, optimizer, group, p)
            updated = disk.end()
        except BaseException as error:
            disk.rest()
            self.interrupt(error)
            raise
        self.interrupted = None
        for p in updated:
            optimizer.state[p]["step"] += 1
        torch.autograd.graph.increment_version(updated)

    def update_in_backward(
        self, optimizer: torch.optim.Optimizer, group: _Group, p: torch.Tensor, expected: Iterable[torch.Tensor]
    ) -> None:
        """Updates one parameter. The first update begins a round, which reads states ahead in the order `expected`."""
        self._make_state(optimizer.state, group, p)
        disk = self._made_disk()
        if not disk.in_round:
            disk.begin(expected)
        try:
            self._update(disk, optimizer, group, p)
        except BaseException:
            disk.rest()
            raise
        torch.autograd.graph.increment_version([p])

    def _make_state(self, states: _States, group: _Group, p: torch.Tensor) -> None:
        if not states[p]:
            states[p]["step"] = _state.step_tensor(0)
            if not _state.is_traced(p):
                self._made_disk().add(p, group["amsgrad"], *self.form.of(group))

    def _update(self, disk: DiskState, optimizer: torch.optim.Optimizer, group: _Group, p: torch.Tensor) -> None:
        gradient = _state.laid_out_as(p, gradient_of(p))
        disk.update(p, gradient, int(optimizer.state[p]["step"]) + 1, hyperparameters(optimizer, group))
        if grad_scale(optimizer) != 1.0 and gradient is not p.grad:
            gradient_of(p).copy_(gradient)

    # ---- an interrupted step ------------------------------------------------------

    def interrupt(self, error: BaseException, can_be_finished: bool = True) -> None:
        """Records that a step ended with `error`, and adds the remedy as a note."""
        self.interrupted = str(error) or type(error).__name__
        way_out = (
            "Once the cause is gone, optimizer.finish_step() does the rest with the same gradients; or load "
            if can_be_finished
            else "Backward did not end, so gradients are missing: load "
        )
        add_note(
            error,
            "The step was interrupted: some parameters are updated and others not, each with its own "
            f"state. {way_out}model and optimizer from a checkpoint.",
        )

    def refuse_inherited(self) -> None:
        """Raises if the states on disk belong to another process."""
        if self.disk is not None and self.disk and self.disk.is_inherited:
            raise IntegrationError(
                "AdamW: its state on disk belongs to the process that forked this one; only that process can read it. "
                "Make the optimizer in the process that trains, or load a checkpoint here with load_state_dict()"
            )

    def refuse_interrupted(self) -> None:
        """Raises if the states on disk belong to another process, or a step was interrupted."""
        self.refuse_inherited()
        if self.interrupted is not None:
            raise IntegrationError(
                "AdamW: a step was interrupted: some parameters are updated and others not. Call "
                "finish_step() with the gradients of that step, or load model and optimizer from a "
                f"checkpoint. The cause: {self.interrupted}"
            )

    # ---- a plan's choice -------------------------------------------------------------

    @property
    def is_owners_wish(self) -> bool:
        """Whether the user, not a plan, chose state on disk."""
        return self.options is not None and not self.is_planned

    def streamable_tensors(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The state tensors that a plan may put on disk; none if the user already put states there."""
        if self.is_owners_wish:
            return []
        return [
            value
            for group in optimizer.param_groups
            for p in group["params"]
            if _state.is_ours(p, group) and _core.optimizer_stream_takes(p.numel())
            for name, value in optimizer.state.get(p, {}).items()
            if name != "step"
        ]

    def planned_disk_bytes(self) -> int:
        """Bytes of state that a plan put on disk."""
        return self.disk.stats()["disk_bytes"] if self.is_planned and self.disk is not None else 0

    def arrange(self, optimizer: torch.optim.Optimizer, on_disk: bool, directory: Any, cap_gb: float | None) -> None:
        """Moves states as a plan says, unless the user chose their place."""
        if self.disk is not None and self.disk.is_inherited:
            return  # the states can't be read here; calls that need them raise
        if on_disk != self.is_planned and (self.is_planned or self.options is None):
            self.is_planned = on_disk
            self.options = disk_options("disk", directory, cap_gb) if on_disk else None
            self._move(optimizer)

    def _move(self, optimizer: torch.optim.Optimizer) -> None:
        """Moves each state to the place where it belongs now."""
        states = optimizer.state
        try:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    is_on_disk = self._holds(p)
                    if states.get(p) and is_on_disk != self.belongs_on_disk(p, group):
                        kept = states[p] if not is_on_disk else self.take(states, p)
                        self.adopt(states, p, kept, group)
        except OffloadError as error:
            # The state that could not be written is still in memory and is used from there.
            _log.warning("optimizer state stays in memory: %s", error)
            self.is_planned, self.options = False, None
        if self.options is None and self.disk is not None and not self.disk:
            self.disk = None


def disk_options(state: str, directory: str | None, cap_gb: float | None) -> tuple[str | None, float | None] | None:
    """The arguments of `DiskState`; None for state in memory."""
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
