"""The optimizer's state in host memory, for parameters on a GPU.

States pass through a few buffers of the card during the step, and torch's own operators update each buffer's
parameters. So parameters and state have the bits of `torch.optim.AdamW`, of one on fp32 copies if states are fp32 and
parameters bf16 (widened.py). While one buffer is computed with, the next is filled and the last is written back, on
streams of their own; the host waits for none of it.
"""

from __future__ import annotations

import logging
import mmap
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch

from .. import _core
from ..base.divided import part_of
from ..device import kind_of
from . import state as _state
from .memory_update import count_write
from .pieces import Piece, cut, places_of
from .widened import elements_at_once, flat_parts, is_widened, rows_of, update_rows

__all__ = ["HostState", "can_be_hosted"]

_log = logging.getLogger("memscale")

_Form = dict[str, torch.dtype]  # a state's types by name
_LEAST_BUFFERS = _core.OPTIMIZER_HOST_BUFFERS
_BUFFER_BYTES = _core.OPTIMIZER_HOST_BUFFER_BYTES


def can_be_hosted(p: torch.Tensor, group: dict[str, Any]) -> bool:
    """Whether the parameter's state may lie in host memory: one on a GPU, large enough."""
    return _state.may_leave_gpu(p, group) and _core.optimizer_stream_takes(part_of(p).numel())


class _Lane:
    """Streams and buffers of one device."""

    def __init__(self, device: torch.device) -> None:
        self.module: Any = torch.get_device_module(device)
        self.device = device
        self.up, self.down = self.module.Stream(device), self.module.Stream(device)
        self._buffers: list[torch.Tensor] = []
        self._stored: list[Any] = []  # an event a buffer: its bytes are in host memory
        self._home: Any = None  # the stream that the buffers were allocated on
        self.turn = 0

    def current(self) -> Any:
        """The stream of the caller's work."""
        return self.module.current_stream(self.device)

    @property
    def is_open(self) -> bool:
        """Whether the buffers are there."""
        return bool(self._buffers)

    @property
    def ahead(self) -> int:
        """The buffers that may be filled before the current one has been used."""
        return len(self._buffers) - 1

    def open(self, count: int) -> None:
        """Allocates `count` buffers, if none are there. Transfers begin after the work that the caller has queued."""
        if self._buffers:
            return
        self._home = self.current()
        self._buffers = [torch.empty((_BUFFER_BYTES,), dtype=torch.uint8, device=self.device) for _ in range(count)]
        self._stored = [None] * count
        self.up.wait_stream(self._home)
        self.turn = 0

    def take(self) -> int:
        """The next buffer's number; filling it will wait until its last bytes are in host memory."""
        number = self.turn % len(self._buffers)
        self.turn += 1
        if self._stored[number] is not None:
            self.up.wait_event(self._stored[number])
        return number

    def arrays(self, number: int, form: _Form, elements: int) -> dict[str, torch.Tensor]:
        """A buffer as the arrays of a state."""
        return _arrays(self._buffers[number], form, elements)

    def written(self, number: int) -> None:
        """The buffer's copies to the host have been queued."""
        self._stored[number] = self.down.record_event()

    def close(self) -> None:
        """Frees the buffers. Work that is queued from now on finds the states in host memory."""
        if self._buffers:
            for stream in (self._home, self.current()):
                stream.wait_stream(self.up)  # whose copies an error may have left unused
                stream.wait_stream(self.down)
            self._buffers, self._stored, self._home = [], [], None


class _Filled(NamedTuple):
    """A buffer with the states of some pieces."""

    pieces: list[Piece]
    number: int
    arrays: dict[str, torch.Tensor]
    ready: Any  # the event after which the states are there


class HostState:
    """The states of one optimizer in host memory."""

    def __init__(self) -> None:
        self._arrays: dict[torch.Tensor, dict[str, torch.Tensor]] = {}  # flat, in the parameter's order of memory
        self._layouts: dict[torch.Tensor, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._lanes: dict[torch.device, _Lane] = {}
        self._shown: list[weakref.ref[torch.Tensor]] = []
        self._buffers = _LEAST_BUFFERS

    def __contains__(self, p: torch.Tensor) -> bool:
        return p in self._arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def set_buffers(self, buffer_bytes: int) -> None:
        """Sets the bytes of the card's buffers that states pass through; 0 for as few as possible."""
        self._buffers = max(buffer_bytes // _BUFFER_BYTES, _LEAST_BUFFERS)
        for lane in self._lanes.values():
            if lane.is_open and lane.ahead + 1 != self._buffers:
                lane.close()
                lane.open(self._buffers)

    def host_bytes(self) -> int:
        """Bytes of all states."""
        return sum(array.nbytes for arrays in self._arrays.values() for array in arrays.values())

    # ---- states ------------------------------------------------------------------------

    def add(self, p: torch.Tensor, group: dict[str, Any], bf16: str | None) -> None:
        """Makes the state of a parameter before its first step."""
        part = part_of(p)
        form = _form_of(p, group, bf16)
        self._arrays[p] = _arrays(_pinned_zeros(self._lane(p), form, part), form, part.numel())
        self._layouts[p] = tuple(part.shape), tuple(part.stride())

    def put(self, p: torch.Tensor, values: dict[str, Any], group: dict[str, Any], bf16: str | None) -> None:
        """Makes the state from tensors of the layout of a parameter, or of its part, on any device. An array that
        `values` lacks is as before the first step."""
        self.remove(p)
        self.add(p, group, bf16)
        for name, array in self._arrays[p].items():
            if name in values:
                _as_laid_out(array, *self._layouts[p]).copy_(values[name])

    def remove(self, p: torch.Tensor) -> None:
        """Deletes the parameter's state, if there is one."""
        if p in self._arrays:
            self.synchronize()
            del self._arrays[p], self._layouts[p]

    def layout_of(self, p: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides that the parameter, or its part, had when its state was made."""
        return self._layouts[p]

    def export(self, params: Iterable[torch.Tensor]) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """The states as tensors in host memory, not copied. Later steps change them."""
        self.synchronize()
        shown = {
            p: {name: _as_laid_out(array, *self._layouts[p]) for name, array in self._arrays[p].items()}
            for p in params
            if p in self._arrays
        }
        self._shown = [one for one in self._shown if one() is not None]
        self._shown += [weakref.ref(tensor) for tensors in shown.values() for tensor in tensors.values()]
        return {p: _state.as_held(p, tensors) for p, tensors in shown.items()}

    def synchronize(self) -> None:
        """Waits until all updated states are in host memory."""
        for lane in self._lanes.values():
            lane.down.synchronize()

    # ---- updates -------------------------------------------------------------------------

    def update(self, optimizer: torch.optim.AdamW, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        """Updates parameters of one group. `end()` follows, after one update or several."""
        self.open(params)
        for alike in self._by_form(params):
            self._update_alike(self._lane(alike[0]), optimizer, group, alike)
        for p in params:
            optimizer.state[p]["step"] += 1
        count_write(params)

    @property
    def in_round(self) -> bool:
        """Whether `end()` has yet to follow an update."""
        return any(lane.is_open for lane in self._lanes.values())

    def open(self, params: list[torch.Tensor]) -> None:
        """Allocates the buffers for an update of `params`, if they are not there."""
        for p in params:
            self._lane(p).open(self._buffers)

    def end(self) -> None:
        """Ends the updates of a step. Whoever holds exported tensors finds the new values in them."""
        for lane in self._lanes.values():
            lane.close()
        if any(shown() is not None for shown in self._shown):
            self.synchronize()

    def _update_alike(
        self, lane: _Lane, optimizer: torch.optim.AdamW, group: dict[str, Any], params: list[torch.Tensor]
    ) -> None:
        flat = {p: flat_parts(p) for p in params}
        elements = _elements_of(self._form(params[0]))
        loads = cut(params, elements)
        filled = [self._fill(lane, load, elements) for load in loads[: lane.ahead]]
        for index in range(len(loads)):
            if index + lane.ahead < len(loads):
                filled.append(self._fill(lane, loads[index + lane.ahead], elements))
            now = filled.pop(0)
            lane.current().wait_event(now.ready)
            values = [{name: array[place] for name, array in now.arrays.items()} for place in places_of(now.pieces)]
            update_rows(optimizer, group, rows_of(optimizer, now.pieces, flat, values))
            self._write_back(lane, now)

    def _fill(self, lane: _Lane, pieces: list[Piece], elements: int) -> _Filled:
        number = lane.take()
        arrays = lane.arrays(number, self._form(pieces[0].p), elements)
        with lane.module.stream(lane.up):
            for part, on_host in self._parts(pieces, arrays):
                part.copy_(on_host, non_blocking=True)
        return _Filled(pieces, number, arrays, lane.up.record_event())

    def _write_back(self, lane: _Lane, done: _Filled) -> None:
        lane.down.wait_event(lane.current().record_event())
        with lane.module.stream(lane.down):
            for part, on_host in self._parts(done.pieces, done.arrays):
                on_host.copy_(part, non_blocking=True)
        lane.written(done.number)

    def _parts(
        self, pieces: list[Piece], arrays: dict[str, torch.Tensor]
    ) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each piece's part of the buffer's arrays, with the state in host memory that belongs there."""
        for (p, begin, end), place in zip(pieces, places_of(pieces), strict=True):
            for name, array in arrays.items():
                yield array[place], self._arrays[p][name][begin:end]

    def _form(self, p: torch.Tensor) -> _Form:
        return {name: array.dtype for name, array in self._arrays[p].items()}

    def _by_form(self, params: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Lists of parameters whose pieces can share a buffer."""
        found: dict[Any, list[torch.Tensor]] = {}
        for p in params:
            found.setdefault((p.device, p.dtype, *self._form(p).items()), []).append(p)
        return list(found.values())

    def _lane(self, p: torch.Tensor) -> _Lane:
        lane = self._lanes.get(p.device)
        if lane is None:
            lane = self._lanes[p.device] = _Lane(p.device)
        return lane


# ---- forms -----------------------------------------------------------------------------


def _form_of(p: torch.Tensor, group: dict[str, Any], bf16: str | None) -> _Form:
    """The types of a parameter's state by name."""
    names = _state.MOMENT_NAMES if group["amsgrad"] else _state.MOMENT_NAMES[:-1]
    if not is_widened(p, group, bf16):
        return dict.fromkeys(names, p.dtype)
    extra = _state.extra_of(bf16)
    return {**dict.fromkeys(names, torch.float32), extra: torch.float32 if extra == "master" else torch.int16}


def _elements_of(form: _Form) -> int:
    """The elements whose state fits a buffer of the card, with temporaries of no more than a buffer."""
    if _state.EXTRAS & form.keys():
        return elements_at_once()
    return _core.optimizer_host_elements(len(form), next(iter(form.values())).itemsize)


def _arrays(buffer: torch.Tensor, form: _Form, elements: int) -> dict[str, torch.Tensor]:
    """The arrays of a state, one behind the other. The widest come first, so all are aligned."""
    made, begin = {}, 0
    for name, dtype in form.items():
        end = begin + elements * dtype.itemsize
        made[name] = buffer[begin:end].view(dtype)
        begin = end
    return made


def _as_laid_out(flat: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return flat.as_strided(shape, stride, flat.storage_offset())


# ---- pinned memory -----------------------------------------------------------------------


class _Pages(mmap.mmap):
    """Pages of host memory that are unpinned before they are unmapped. (A weak reference would be called after it.)"""

    unpin: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.unpin is not None:
            self.unpin()


def _pinned_zeros(lane: _Lane, form: _Form, p: torch.Tensor) -> torch.Tensor:
    """The zero bytes of a state, in pages of their own, pinned if the driver allows it. A forked child shares the
    pages: with copies on write, transfers and the process could see different ones. torch's pinned memory would take
    powers of two."""
    pages = _Pages(-1, p.numel() * sum(dtype.itemsize for dtype in form.values()))
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    kind, address = kind_of(p.device), whole.data_ptr()
    if not kind.pin(address, len(pages)):
        _tell_unpinned()
        return whole

    def unpin() -> None:
        with suppress(Exception):  # the device may be lost
            lane.up.synchronize()
            lane.down.synchronize()
        kind.unpin(address)

    pages.unpin = unpin
    return whole


@cache
def _tell_unpinned() -> None:
    _log.warning(
        "optimizer state in host memory: the driver does not pin it, so its transfers are slower and the host waits "
        "for them; raise the limit of pinned memory (ulimit -l, the container's)"
    )
