"""The place of each parameter's state, and updates of states that are not beside their parameters: on disk, or, for
parameters on a GPU, in host memory.

`StatePlace` is a part of `AdamW`. It moves states there and back, streams updates through `DiskState` and `HostState`,
and remembers an interrupted step. Its methods get the optimizer or its `state` as an argument and don't keep it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import _core
from ..base.divided import part_of
from ..errors import ConfigError, IntegrationError, OffloadError, add_note
from . import state as _state
from .disk import DiskState, form_of
from .host import HostState, can_be_hosted
from .memory_update import StateForm, count_write, grad_scale, gradient_part, hyperparameters, put_unscaled
from .widened import is_widened

__all__ = ["StatePlace", "disk_options"]

_log = logging.getLogger("memscale")

_States = dict[Any, Any]
_ARRAYS = _state.KNOWN - {"step"}  # what is not in a state whose moments are elsewhere
_Group = dict[str, Any]


class StatePlace:
    """Knows which of an optimizer's states are on disk and which are in memory.

    Args:
        form: the form of states.
        options: the user's choice of a disk, from `disk_options()`.
        on_host: whether the user put the states of a GPU's parameters into host memory.

    Attributes:
        disk: holds the states on disk; None if no state is on disk.
        host: holds the states of a GPU's parameters in host memory; None if none is there.
        options: the disk for new states, chosen by the user or a plan; None for memory.
        on_host: whether new states of a GPU's parameters are made in host memory, by the user's choice or a plan's.
        is_planned: whether a plan, not the user, put states on disk.
        is_host_planned: the same for host memory.
        interrupted: the error that interrupted a step; None if none was.
        can_be_finished: whether the interrupted step can be, with the same gradients.
    """

    def __init__(self, form: StateForm, options: tuple[str | None, float | None] | None, on_host: bool = False) -> None:
        self.form = form
        self.options = options
        self.on_host = on_host
        self.disk: DiskState | None = None
        self.host: HostState | None = None
        self.is_planned = self.is_host_planned = False
        self._kept: set[torch.Tensor] = set()  # parameters whose states belong beside them, whatever the plan moves
        self._postponed: tuple[Any, ...] | None = None  # a plan's wish of a time when nothing could be moved
        self._buffer_bytes = 0  # by a plan; 0: as few as possible
        self.interrupted: str | None = None
        self.can_be_finished = True

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
        if self.options is None or p in self._kept or not _is_large(p):
            return False
        return _state.is_ours(p, group) or can_be_hosted(p, group)

    def is_hosted(self, states: _States, p: torch.Tensor, group: _Group) -> bool:
        """Whether an update finds its state in host memory, or makes it there, while the parameter is on a GPU."""
        if _state.is_traced(p):
            return not self.is_host_planned and self.belongs_on_host(p, group)
        if states.get(p):
            return self._hosts(p)
        return self.belongs_on_host(p, group)

    def belongs_on_host(self, p: torch.Tensor, group: _Group) -> bool:
        """Whether a new state of the parameter would be made in host memory, away from the parameter."""
        return self.on_host and p not in self._kept and can_be_hosted(p, group)

    def is_widened(self, p: torch.Tensor, group: _Group) -> bool:
        """Whether a bf16 parameter on a GPU has a state in fp32, because the user asked for its form."""
        return is_widened(p, group, self.form.of(group)[1])

    def _holds(self, p: torch.Tensor) -> bool:
        return self.disk is not None and p in self.disk

    def _hosts(self, p: torch.Tensor) -> bool:
        return self.host is not None and p in self.host

    def _made_host(self) -> HostState:
        if self.host is None:
            self.host = HostState()
            self.host.set_buffers(self._buffer_bytes)
        return self.host

    def _made_disk(self) -> DiskState:
        if self.disk is None or self.disk.is_inherited:
            self.disk = DiskState(*(self.options or (None, None)))
            self.disk.set_buffers(self._buffer_bytes)
        return self.disk

    def check_layout(self, states: _States, p: torch.Tensor, group: _Group, name: str) -> None:
        """Checks that the state fits the parameter. A state of another layout is converted.

        Raises:
            IntegrationError: the parameter has another shape than its state.
        """
        if not states.get(p) or _state.is_traced(p):
            return
        away: DiskState | HostState | None = self.host if self._hosts(p) else self.disk
        shape, stride = away.layout_of(p) if away is not None and p in away else _state.layout_of(p, states[p])
        part = part_of(p)
        if shape != tuple(part.shape):
            raise IntegrationError(
                f"AdamW: {name} has shape {tuple(part.shape)}, its state {shape}: the parameter was changed after a "
                "step. Make a new optimizer for it, or drop its state with optimizer.state.pop(parameter)"
            )
        if not _state.same_place(shape, stride, tuple(part.stride())):
            self.adopt(states, p, self._whole(states, p), group)

    def adopt(self, states: _States, p: torch.Tensor, given: dict[str, Any], group: _Group) -> None:
        """Stores a state of any form where it belongs, in place of one that was elsewhere."""
        form = self.form.of(group)
        on_host = self.belongs_on_host(p, group)
        is_torchs = not (_state.is_ours(p, group) or self.is_widened(p, group))
        if not (given and (on_host or self.belongs_on_disk(p, group))):
            made = _state.as_held(p, _state.adapt(p, given, group, *form, is_torchs))
            self._remove(p)
            states[p] = made
            return
        if _state.is_ours(p, group):
            values = _state.adapt(p, given, group, *form, is_torchs, copies=False)
        else:
            values = _for_device(p, _state.full_precision(given), group)
            if not is_torchs:
                _state.add_precision(values, part_of(p), form[1])
        if on_host:
            self._made_host().put(p, values, group, form[1])
        else:
            self._made_disk().put(p, values, group, *form)
        self._remove(p, but=self.host if on_host else self.disk)
        states[p] = {name: value for name, value in values.items() if name not in _ARRAYS}

    def _remove(self, p: torch.Tensor, but: DiskState | HostState | None = None) -> None:
        for away in (self.disk, self.host):
            if away is not None and away is not but:
                away.remove(p)

    def _whole(self, states: _States, p: torch.Tensor) -> dict[str, Any]:
        """The parameter's state, wherever it lies."""
        values: dict[str, Any] = states[p]
        for away in (self.disk, self.host):
            if away is not None and p in away:
                values = {**values, **away.export([p])[p]}
        return values

    def take(self, states: _States, p: torch.Tensor) -> dict[str, Any]:
        """Removes the parameter's state from the optimizer and returns it."""
        values = self._whole(states, p)
        self._remove(p)
        del states[p]
        return values

    def settle(self, states: _States, p: torch.Tensor, value: Any, group: _Group) -> None:
        """Replaces a parameter's state by the one that `__setstate__` got."""
        is_hidden = isinstance(value, _state.Hidden)
        values = value.value if is_hidden else value
        try:
            if is_hidden or (values and (self.belongs_on_disk(p, group) or self.belongs_on_host(p, group))):
                self.adopt(states, p, values, group)
                return
            self._remove(p)
        except OffloadError as error:
            self.interrupted = f"only a part of its state was loaded: {error}"
            raise

    @contextmanager
    def in_view(self, optimizer: torch.optim.Optimizer, to_save: bool = False) -> Iterator[None]:
        """A block in which `optimizer.state` shows the states on disk and in host memory as tensors; `to_save`: and
        copies of the others in host memory, because torch's checkpoints want a state on one device."""
        if self.disk is None and self.host is None:
            yield
            return
        self.refuse_interrupted()
        if self._in_round():
            raise IntegrationError(
                "release_gradients: backward has updated parameters; call step() before you read the state"
            )
        kept = optimizer.state
        shown = self.disk.export(kept) if self.disk is not None else {}
        shown |= self.host.export(kept) if self.host is not None else {}
        with torch.no_grad():
            held = {p: _on_host(v) if to_save and shown else v for p, v in kept.items()}
        optimizer.state = _state.new_state({p: {**v, **shown.get(p, {})} for p, v in held.items()})
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
            self.interrupt(error, can_be_finished=not disk.is_torn)
            raise
        self.interrupted = None
        for p in updated:
            optimizer.state[p]["step"] += 1
        count_write(updated)

    def update_hosted(
        self, optimizer: torch.optim.AdamW, group: _Group, params: list[torch.Tensor], is_last: bool = False
    ) -> None:
        """Updates parameters on a GPU whose states are in host memory; `is_last` after all of them.

        Raises:
            Exception: torch's, such as no memory; some parameters may be updated and others not: see `interrupted`.
        """
        made = [p for p in params if not optimizer.state[p]]
        for p in made:
            optimizer.state[p]["step"] = _state.step_tensor(0)
            if not _state.is_traced(p):
                self._made_host().add(p, group, self.form.of(group)[1])
        host = self.host
        if host is None or (params and _state.is_traced(params[0])):
            return
        host.open(params)  # nothing has been updated if the card has no room for the buffers
        try:
            if params:
                host.update(optimizer, group, params)
        except BaseException as error:
            host.end()
            self.interrupt(error, can_be_finished=False)
            raise
        if is_last:
            host.end()

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
        count_write([p])

    def _make_state(self, states: _States, group: _Group, p: torch.Tensor) -> None:
        if not states[p]:
            states[p]["step"] = _state.step_tensor(0)
            if not _state.is_traced(p):
                self._made_disk().add(p, group, *self.form.of(group))

    def _update(self, disk: DiskState, optimizer: torch.optim.Optimizer, group: _Group, p: torch.Tensor) -> None:
        if not _state.is_on_host(p):
            disk.update_on_device(optimizer, group, p)
            return
        gradient = gradient_part(p)
        disk.update(p, gradient, int(optimizer.state[p]["step"]) + 1, hyperparameters(optimizer, group))
        if grad_scale(optimizer) != 1.0:
            put_unscaled(p, gradient)

    # ---- an interrupted step ------------------------------------------------------

    def interrupt(self, error: BaseException, can_be_finished: bool = True) -> None:
        """Records that a step ended with `error`, and adds the remedy as a note."""
        self.interrupted = str(error) or type(error).__name__
        self.can_be_finished = can_be_finished
        way_out = (
            "Once the cause is gone, optimizer.finish_step() does the rest with the same gradients; or load "
            if can_be_finished
            else "It can't be finished, because gradients or updates are missing: load "
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
            finishing = (
                "Call finish_step() with the gradients of that step, or load" if self.can_be_finished else "Load"
            )
            raise IntegrationError(
                "AdamW: a step was interrupted: some parameters are updated and others not. "
                f"{finishing} model and optimizer from a checkpoint. The cause: {self.interrupted}"
            )

    # ---- a plan's choice -------------------------------------------------------------

    @property
    def is_owners_wish(self) -> bool:
        """Whether the user, not a plan, chose state on disk."""
        return self.options is not None and not self.is_planned

    @property
    def is_owners_host(self) -> bool:
        """Whether the user, not a plan, chose state in host memory."""
        return self.on_host and not self.is_host_planned

    def streamable_tensors(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """The state tensors that a plan may move away; none that the user already moved."""
        return [
            value
            for group in optimizer.param_groups
            for p in group["params"]
            if self._may_be_planned(p, group)
            for name, value in optimizer.state.get(p, {}).items()
            if name != "step"
        ]

    def _may_be_planned(self, p: torch.Tensor, group: _Group) -> bool:
        if _state.is_ours(p, group):
            return not self.is_owners_wish and _is_large(p)
        return not (self.is_owners_host or self.is_owners_wish) and can_be_hosted(p, group)

    def planned_bytes(self) -> int:
        """Bytes of state that a plan moved away."""
        on_disk = self.disk.stats()["disk_bytes"] if self.is_planned and self.disk is not None else 0
        return on_disk + (self.host.host_bytes() if self.is_host_planned and self.host is not None else 0)

    def set_buffers(self, buffer_bytes: int) -> None:
        """Sets the bytes of the buffers that states elsewhere pass through; 0 for as few as possible."""
        self._buffer_bytes = buffer_bytes
        for away in (self.disk, self.host):
            if away is not None:
                away.set_buffers(buffer_bytes)

    def arrange(
        self,
        optimizer: torch.optim.Optimizer,
        on_disk: bool,
        on_host: bool,
        moved_bytes: int,
        directory: Any,
        cap_gb: float | None,
    ) -> None:
        """Moves at least `moved_bytes` of states (0: all that may move) as a plan says, unless the user chose their
        place. `on_host` is for parameters on a GPU. In the middle of a step nothing moves before `step_ended()`."""
        if self.disk is not None and self.disk.is_inherited:
            return  # the states can't be read here; calls that need them raise
        is_between = self.interrupted is None and not self._in_round()
        self._postponed = None if is_between else (on_disk, on_host, moved_bytes, directory, cap_gb)
        if not is_between:
            return
        before = self.is_planned, self.is_host_planned, self._kept
        if on_disk != self.is_planned and (self.is_planned or self.options is None):
            self.is_planned = on_disk
            self.options = disk_options("disk", directory, cap_gb) if on_disk else None
        if on_host != self.is_host_planned and (self.is_host_planned or not self.on_host):
            self.is_host_planned = self.on_host = on_host
        self._kept = self._kept_beside(optimizer, moved_bytes) if self.is_planned or self.is_host_planned else set()
        if (self.is_planned, self.is_host_planned, self._kept) != before:
            self._move(optimizer)

    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """A step has ended, or a loaded state has replaced an interrupted one."""
        if self._postponed is not None:
            self.arrange(optimizer, *self._postponed)

    def _in_round(self) -> bool:
        return any(away is not None and away.in_round for away in (self.disk, self.host))

    def _kept_beside(self, optimizer: torch.optim.Optimizer, moved_bytes: int) -> set[torch.Tensor]:
        """The parameters whose states the plan could move, but leaves where they are."""
        self._kept = set()
        may_move = [
            (p, group)
            for group in optimizer.param_groups
            for p in group["params"]
            if self._may_be_planned(p, group) and (self.belongs_on_disk(p, group) or self.belongs_on_host(p, group))
        ]
        forms = [form_of(p, group, *self.form.of(group)) for p, group in may_move]
        moved = _core.optimizer_choose_moved(forms, moved_bytes)
        return {p for (p, _), moves in zip(may_move, moved, strict=True) if not moves}

    def _move(self, optimizer: torch.optim.Optimizer) -> None:
        """Moves each state to the place where it belongs now: first those that leave memory, because each that comes
        back takes its bytes twice for a moment."""
        states = optimizer.state
        returning = []
        try:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    on_host = self.belongs_on_host(p, group)
                    on_disk = self.belongs_on_disk(p, group) and not on_host
                    if not states.get(p) or (self._hosts(p), self._holds(p)) == (on_host, on_disk):
                        continue
                    if self._hosts(p) or self._holds(p):
                        returning.append((p, group))
                    else:
                        self.adopt(states, p, states[p], group)
            if returning:
                _core.hostmem_trim()  # a cache may fill the budget
            for p, group in returning:
                self.adopt(states, p, self._whole(states, p), group)
        except OffloadError as error:
            # The state that could not be moved is still where it was and is used from there.
            _log.warning("optimizer state stays where it is: %s", error)
            self.is_planned, self.options, self._kept = False, None, set()
        if self.options is None and self.disk is not None and not self.disk:
            self.disk = None
        if not self.on_host and self.host is not None and not self.host:
            self.host = None


def _on_host(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cpu() if torch.is_tensor(value) else value for name, value in values.items()}


def _for_device(p: torch.Tensor, full: dict[str, Any], group: _Group) -> dict[str, Any]:
    """A state as torch has it for a parameter on a GPU, with this rank's parts, wherever they lie."""
    values = {**_state.parts_of(p, full), "step": _state.step_tensor(full["step"])}
    if group["amsgrad"]:
        values.setdefault("max_exp_avg_sq", values["exp_avg_sq"])
    else:
        values.pop("max_exp_avg_sq", None)
    return values


def _is_large(p: torch.Tensor) -> bool:
    return _core.optimizer_stream_takes(part_of(p).numel())


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
    if state not in ("memory", "host"):
        raise ConfigError(f"state: {state!r} is not allowed; allowed are 'memory', 'host' and 'disk'")
    if directory is not None or cap_gb is not None:
        raise ConfigError("disk_offload_dir and max_disk_offload_gb need state='disk'")
    return None
