"""The Python side of optimizer state on disk.

It maps parameters to the states of `_core.OptimizerStream`, and turns states into tensors again. Of parameters that
are divided among ranks it has the states of this rank's parts. C decides when to read, compute and write; see
memscale/optimizer_stream.h.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from .. import _core
from ..base.divided import part_of
from ..errors import MemScaleError
from . import state as _state
from .memory_update import Hyperparameters

# The names of a state's arrays in C's order, for fp32 and for 8-bit states.
_FULL = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", None, None, None)
_QUANTIZED = ("exp_avg_8bit", "exp_avg_sq_8bit", None, None, "exp_avg_absmax", "exp_avg_sq_absmax")
_EXTRA = 3
_NO_ADDRESSES = (0,) * 6


class _Pages(mmap.mmap):
    """A map whose pages leave memory after they were read, if C can see to it."""

    def stream(self) -> None:
        address = torch.frombuffer(self, dtype=torch.uint8).data_ptr()
        with suppress(MemScaleError):  # it is small, or memory is short
            self._lent = _core.streamed_lend(address, len(self))  # freed before the map, with the attributes


class DiskState:
    """The states of one optimizer on disk.

    Args:
        directory: the file's directory; None for the first usual place on a real disk.
        cap_gb: the largest size of the file, in GB; None for half of the free space.

    Raises:
        ConfigError: the directory or the cap can't be used.
    """

    def __init__(self, directory: str | None, cap_gb: float | None) -> None:
        self._stream = _core.OptimizerStream(directory, cap_gb)
        self._states: dict[torch.Tensor, tuple[int, int, int]] = {}  # id, weights, moments
        self._layouts: dict[torch.Tensor, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._updated: dict[torch.Tensor, None] = {}  # parameters updated since the last successful round
        self.in_round = False

    def __contains__(self, p: torch.Tensor) -> bool:
        return p in self._states

    def __len__(self) -> int:
        return len(self._states)

    def stats(self) -> dict[str, int]:
        """Bytes on disk and in buffers, bytes moved, and time spent waiting for transfers."""
        return self._stream.stats()

    def set_buffers(self, buffer_bytes: int) -> None:
        """Sets the bytes of the buffers that states pass through; 0 for as few as possible."""
        self._stream.set_buffers(buffer_bytes)

    @property
    def is_inherited(self) -> bool:
        """Whether a parent process made the states before a fork, so that this process can't reach them."""
        return self._stream.is_inherited()

    # ---- states ------------------------------------------------------------------------

    def add(self, p: torch.Tensor, amsgrad: bool, state_bits: int, bf16: str) -> None:
        """Makes the state of a parameter before its first step."""
        weights = _state.FP32
        if p.dtype is torch.bfloat16:
            weights = _state.BF16_MASTER if bf16 == "master" else _state.BF16_SPLIT
        moments, part = int(_state.moments_are_8bit(p, state_bits)), part_of(p)
        self._states[p] = (self._stream.add(weights, moments, amsgrad, part.numel()), weights, moments)
        self._layouts[p] = tuple(part.shape), tuple(part.stride())

    def remove(self, p: torch.Tensor) -> None:
        """Deletes the parameter's state, if there is one."""
        if p in self._states:
            self._stream.remove(self._states.pop(p)[0])
            del self._layouts[p]

    def layout_of(self, p: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides that the parameter, or its part, had when its state was made."""
        return self._layouts[p]

    def put(self, p: torch.Tensor, values: dict[str, Any], state_bits: int, bf16: str) -> None:
        """Writes a state from memory, in a form that `state.adapt()` returns.

        Raises:
            OffloadError: the state could not be written; the parameter then has none.
        """
        self.remove(p)
        self.add(p, "max_exp_avg_sq" in values, state_bits, bf16)
        # C reads only the state's own addresses, so the parameter stands in for the gradient.
        part = part_of(p)
        fields = _state.addresses(part, part, {**values, "step": values["step"] - 1})
        try:
            self._stream.put(self._states[p][0], fields)
        except BaseException:
            self.remove(p)
            raise

    def export(self, params: Iterable[torch.Tensor]) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
        """The states as tensors that map a file without a name, so that only the parts that are read use memory.

        Raises:
            OffloadError: a state can't be read back.
        """
        layout, total = self._layout([p for p in params if p in self._states])
        if not layout:
            return {}
        with tempfile.TemporaryFile(dir=self._stream.dir()) as file:
            file.truncate(total)
            for p, offsets in layout.items():
                self._stream.export(self._states[p][0], file.fileno(), offsets)
            pages = _Pages(file.fileno(), total)
            pages.stream()
        return {p: _state.as_held(p, self._tensors(p, pages, offsets)) for p, offsets in layout.items()}

    def names(self, p: torch.Tensor) -> tuple[str | None, ...]:
        """The names of the parameter's arrays in C's order; None for arrays that its state lacks."""
        number, weights, moments = self._states[p]
        names = list(_QUANTIZED if moments else _FULL)
        names[_EXTRA] = (None, "master", "low")[weights]
        sizes = self._stream.part_bytes(number)
        return tuple(name if size else None for name, size in zip(names, sizes, strict=True))

    def _layout(self, params: list[torch.Tensor]) -> tuple[dict[torch.Tensor, tuple[int | None, ...]], int]:
        """The offset of each array in one file that holds all of them, and the file's size."""
        layout: dict[torch.Tensor, tuple[int | None, ...]] = {}
        end = 0
        for p in params:
            offsets: list[int | None] = []
            for size in self._stream.part_bytes(self._states[p][0]):
                offsets.append(end if size else None)
                end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            layout[p] = tuple(offsets)
        return layout, end

    def _tensors(self, p: torch.Tensor, pages: _Pages, offsets: tuple[int | None, ...]) -> dict[str, torch.Tensor]:
        made = {}
        elements = part_of(p).numel()
        for name, offset in zip(self.names(p), offsets, strict=True):
            if name is None or offset is None:
                continue
            dtype, is_scales = dtype_of(name), name.endswith("_absmax")
            count = -(-elements // _state.BLOCK) if is_scales else elements
            flat = torch.frombuffer(pages, dtype=dtype, count=count, offset=offset)
            made[name] = flat if is_scales else flat.as_strided(*self._layouts[p])
        return made

    # ---- rounds ------------------------------------------------------------------------

    def begin(self, params: Iterable[torch.Tensor]) -> None:
        """Begins a round of updates, which are expected in this order."""
        self.in_round = True
        self._stream.begin([self._states[p][0] for p in params if p in self._states])

    def update(self, p: torch.Tensor, gradient: torch.Tensor, step: int, hyperparameters: Hyperparameters) -> None:
        """Makes the `step`-th update of a parameter. The gradient must have the parameter's layout in memory; of a
        divided one both are parts."""
        number, weights, moments = self._states[p]
        part = part_of(p)
        fields = (weights, moments, part.numel(), step, part.data_ptr(), gradient.data_ptr(), *_NO_ADDRESSES)
        self._stream.update(number, fields, *hyperparameters, torch.get_num_threads())
        self._updated[p] = None

    def end(self) -> list[torch.Tensor]:
        """Waits for the writes under way.

        Returns:
            The parameters updated since the last successful round. So a repeated round also returns those that
            the failed one updated.

        Raises:
            OffloadError: the first failure of the round.
        """
        self.in_round = False
        self._stream.end()
        updated = list(self._updated)
        self._updated.clear()
        return updated

    def rest(self) -> None:
        """Ends a failed round. It may be repeated."""
        self.in_round = False
        with suppress(MemScaleError):
            self._stream.end()

    def forget_round(self) -> None:
        """Discards a failed round, which will not be repeated."""
        self.rest()
        self._updated.clear()


def dtype_of(name: str) -> torch.dtype:
    """The dtype of an array of a state."""
    if name.endswith("_8bit"):
        return torch.uint8
    return torch.int16 if name == "low" else torch.float32
