"""The optimizer's state in host memory, for parameters on a GPU.

Moments pass through a few buffers of the card during the step, and torch's own operators update each buffer's
parameters. So parameters and state have the bits of `torch.optim.AdamW`. While one buffer is computed with, the next is
filled and the last is written back, on streams of their own; the host waits for none of it.
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
from ..device import ACCELERATORS, kind_of
from . import state as _state
from .memory_update import count_write, gradient_part, run_adamw

__all__ = ["HostState", "can_be_hosted"]

_log = logging.getLogger("memscale")

_NAMES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_LEAST_BUFFERS = _core.OPTIMIZER_HOST_BUFFERS
_BUFFER_BYTES = _core.OPTIMIZER_HOST_BUFFER_BYTES


def can_be_hosted(p: torch.Tensor, group: dict[str, Any]) -> bool:
    """Whether the parameter's state may lie in host memory: a plain dense tensor on a GPU, or this rank's part of one,
    large enough, that torch updates by its usual operators."""
    part = part_of(p)
    return (
        any(part.device.type == kind.name for kind in ACCELERATORS)
        and _state.is_plain(part)
        and part.is_floating_point()
        and not (group["differentiable"] or group["capturable"] or group["fused"])
        and _state.is_dense(part)
        and _core.optimizer_stream_takes(part.numel())
    )


class _Piece(NamedTuple):
    """A range of a parameter's elements, in the order of memory."""

    p: torch.Tensor
    begin: int
    end: int


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

    def arrays(self, number: int, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
        """A buffer as `count` arrays."""
        elements = _core.optimizer_host_elements(count, dtype.itemsize)
        return list(self._buffers[number].view(dtype)[: count * elements].view(count, elements))

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

    pieces: list[_Piece]
    number: int
    arrays: list[torch.Tensor]
    ready: Any  # the event after which the states are there


class HostState:
    """The states of one optimizer in host memory."""

    def __init__(self) -> None:
        self._moments: dict[torch.Tensor, tuple[torch.Tensor, ...]] = {}  # flat, in the parameter's order of memory
        self._layouts: dict[torch.Tensor, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._lanes: dict[torch.device, _Lane] = {}
        self._shown: list[weakref.ref[torch.Tensor]] = []
        self._buffers = _LEAST_BUFFERS

    def __contains__(self, p: torch.Tensor) -> bool:
        return p in self._moments

    def __len__(self) -> int:
        return len(self._moments)

    def set_buffers(self, buffer_bytes: int) -> None:
        """Sets the bytes of the card's buffers that states pass through; 0 for as few as possible."""
        self._buffers = max(buffer_bytes // _BUFFER_BYTES, _LEAST_BUFFERS)
        for lane in self._lanes.values():
            if lane.is_open and lane.ahead + 1 != self._buffers:
                lane.close()
                lane.open(self._buffers)

    def host_bytes(self) -> int:
        """Bytes of all states."""
        return sum(moment.nbytes for moments in self._moments.values() for moment in moments)

    # ---- states ------------------------------------------------------------------------

    def add(self, p: torch.Tensor, amsgrad: bool) -> None:
        """Makes the state of a parameter before its first step."""
        count, part = len(_NAMES) if amsgrad else len(_NAMES) - 1, part_of(p)
        self._moments[p] = tuple(_pinned_zeros(self._lane(p), count, part).unbind())
        self._layouts[p] = tuple(part.shape), tuple(part.stride())

    def put(self, p: torch.Tensor, values: dict[str, Any]) -> None:
        """Makes the state from tensors of the layout of a parameter, or of its part, on any device."""
        self.remove(p)
        self.add(p, "max_exp_avg_sq" in values)
        for name, moment in zip(_NAMES, self._moments[p], strict=False):
            _as_laid_out(moment, *self._layouts[p]).copy_(values[name])

    def remove(self, p: torch.Tensor) -> None:
        """Deletes the parameter's state, if there is one."""
        if p in self._moments:
            self.synchronize()
            del self._moments[p], self._layouts[p]

    def layout_of(self, p: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides that the parameter, or its part, had when its state was made."""
        return self._layouts[p]

    def export(self, params: Iterable[torch.Tensor]) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """The states as tensors in host memory, not copied. Later steps change them."""
        self.synchronize()
        shown = {
            p: {
                name: _as_laid_out(moment, *self._layouts[p])
                for name, moment in zip(_NAMES, self._moments[p], strict=False)
            }
            for p in params
            if p in self._moments
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
        for alike in _by_form(params, self._moments):
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
        flat = {p: (_state.flat(part_of(p).detach()), _state.flat(gradient_part(p))) for p in params}
        arrays = len(self._moments[params[0]])
        loads = _loads(params, _core.optimizer_host_elements(arrays, params[0].dtype.itemsize))
        filled = [self._fill(lane, load) for load in loads[: lane.ahead]]
        for index in range(len(loads)):
            if index + lane.ahead < len(loads):
                filled.append(self._fill(lane, loads[index + lane.ahead]))
            now = filled.pop(0)
            lane.current().wait_event(now.ready)
            _compute(optimizer, group, now, flat)
            self._write_back(lane, now)

    def _fill(self, lane: _Lane, pieces: list[_Piece]) -> _Filled:
        number = lane.take()
        first = self._moments[pieces[0].p]
        arrays = lane.arrays(number, first[0].dtype, len(first))
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

    def _parts(self, pieces: list[_Piece], arrays: list[torch.Tensor]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each piece's part of the buffer's arrays, with the state in host memory that belongs there."""
        for (p, begin, end), place in zip(pieces, _places(pieces), strict=True):
            for array, moment in zip(arrays, self._moments[p], strict=True):
                yield array[place], moment[begin:end]

    def _lane(self, p: torch.Tensor) -> _Lane:
        lane = self._lanes.get(p.device)
        if lane is None:
            lane = self._lanes[p.device] = _Lane(p.device)
        return lane


def _compute(
    optimizer: torch.optim.AdamW,
    group: dict[str, Any],
    now: _Filled,
    flat: dict[torch.Tensor, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """torch's update of the pieces. Each gets a step count of its own, because torch counts it up."""
    lists: list[list[torch.Tensor]] = [[] for _ in range(6)]
    for (p, begin, end), place in zip(now.pieces, _places(now.pieces), strict=True):
        parameter, gradient = flat[p]
        moments = [array[place] for array in now.arrays]
        row = (parameter[begin:end], gradient[begin:end], *moments)
        for values, value in zip(lists, row, strict=False):
            values.append(value)
        lists[5].append(optimizer.state[p]["step"].clone())
    run_adamw(optimizer, group, lists)


def _places(pieces: list[_Piece]) -> list[slice]:
    places, at = [], 0
    for _, begin, end in pieces:
        places.append(slice(at, at + end - begin))
        at += end - begin
    return places


def _loads(params: list[torch.Tensor], room: int) -> list[list[_Piece]]:
    """The parameters cut into loads of at most `room` elements."""
    loads: list[list[_Piece]] = [[]]
    left = room
    for p in params:
        begin, elements = 0, part_of(p).numel()
        while begin < elements:
            if left == 0:
                loads.append([])
                left = room
            end = min(begin + left, elements)
            loads[-1].append(_Piece(p, begin, end))
            left -= end - begin
            begin = end
    return loads


def _by_form(params: list[torch.Tensor], moments: dict[torch.Tensor, Any]) -> list[list[torch.Tensor]]:
    """Lists of parameters whose pieces can share a buffer."""
    found: dict[Any, list[torch.Tensor]] = {}
    for p in params:
        found.setdefault((p.device, p.dtype, len(moments[p])), []).append(p)
    return list(found.values())


def _as_laid_out(flat: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return flat.as_strided(shape, stride, flat.storage_offset())


# ---- pinned memory -----------------------------------------------------------------------


class _Pages(mmap.mmap):
    """Pages of host memory that are unpinned before they are unmapped. (A weak reference would be called after it.)"""

    unpin: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.unpin is not None:
            self.unpin()


def _pinned_zeros(lane: _Lane, count: int, p: torch.Tensor) -> torch.Tensor:
    """`count` x elements zeros in pages of their own, pinned if the driver allows it. A forked child shares the pages:
    with copies on write, transfers and the process could see different ones. torch's pinned memory would take powers
    of two."""
    pages = _Pages(-1, count * p.nbytes)
    whole = torch.frombuffer(pages, dtype=p.dtype).view(count, p.numel())
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
