"""The Python side of optimizer state on disk.

It maps parameters to the states of `_core.OptimizerStream`, and turns states into tensors again. Of parameters that
are divided among ranks it has the states of this rank's parts. C decides when to read, compute and write; see
memscale/optimizer_stream.h. State of parameters on a GPU goes to the card and back a chunk at a time, and torch's own
operators update it there (widened.py).
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from .. import _core
from ..base.divided import part_of
from ..errors import MemScaleError
from . import state as _state
from .memory_update import Hyperparameters
from .widened import elements_at_once, flat_parts, is_widened, update_rows

# The names of a state's arrays in C's order, for fp32 and for 8-bit states.
_FULL = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", None, None, None)
_QUANTIZED = ("exp_avg_8bit", "exp_avg_sq_8bit", None, None, "exp_avg_absmax", "exp_avg_sq_absmax")
_EXTRA = 3
_WORD = 4
_CHUNKS_IN_A_BUFFER = 4  # the bytes of a buffer of HostState over those of the stream's chunk
_NO_ADDRESSES = (0,) * 6


class _Pages(mmap.mmap):
    """A map whose pages leave memory after they were read, if C can see to it."""

    def stream(self) -> None:
        address = torch.frombuffer(self, dtype=torch.uint8).data_ptr()
        with suppress(MemScaleError):  # it is small, or memory is short
            self._lent = _core.streamed_lend(address, len(self))  # freed before the map, with the attributes


class _Held(NamedTuple):
    """A state on disk, as the stream has it.

    Attributes:
        number: the stream's.
        weights, moments: codes of ms_adamw_tensor.
        elements: the stream's. torch's moments of a GPU's parameter have the parameter's type; to the stream they are
            32-bit words.
        dtype: of moments, unless they are 8-bit codes.
    """

    number: int
    weights: int
    moments: int
    elements: int
    dtype: torch.dtype


class DiskState:
    """The states of one optimizer on disk.

    Args:
        directory: the file's directory; None for the first usual place on a real disk.
        cap_gb: the largest size of the file, in GB; None for half of the free space.

    Raises:
        ConfigError: the directory or the cap can't be used.

    Attributes:
        in_round: whether a round of updates has begun and not ended.
        is_torn: whether an update on a GPU has failed between parameter and state: the round can't be repeated.
    """

    def __init__(self, directory: str | None, cap_gb: float | None) -> None:
        self._stream = _core.OptimizerStream(directory, cap_gb)
        self._states: dict[torch.Tensor, _Held] = {}
        self._layouts: dict[torch.Tensor, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._updated: dict[torch.Tensor, None] = {}  # parameters updated since the last successful round
        self.in_round = self.is_torn = False

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

    def add(self, p: torch.Tensor, group: dict[str, Any], state_bits: int, bf16: str | None) -> None:
        """Makes the state of a parameter before its first step."""
        part, form = part_of(p), form_of(p, group, state_bits, bf16)
        weights, moments, _, count = form
        is_torchs = weights == _state.FP32 and not _state.is_on_host(p)
        dtype = p.dtype if is_torchs else torch.float32
        self._states[p] = _Held(self._stream.add(*form), weights, moments, count, dtype)
        self._layouts[p] = tuple(part.shape), tuple(part.stride())

    def remove(self, p: torch.Tensor) -> None:
        """Deletes the parameter's state, if there is one."""
        if p in self._states:
            self._stream.remove(self._states.pop(p).number)
            del self._layouts[p]

    def layout_of(self, p: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides that the parameter, or its part, had when its state was made."""
        return self._layouts[p]

    def put(
        self, p: torch.Tensor, values: dict[str, Any], group: dict[str, Any], state_bits: int, bf16: str | None
    ) -> None:
        """Writes a state from memory, in a form that `state.adapt()` returns; of a parameter on a GPU, from any device.

        Raises:
            OffloadError: the state could not be written; the parameter then has none.
        """
        self.remove(p)
        self.add(p, group, state_bits, bf16)
        held, part = self._states[p], part_of(p)
        if not _state.is_on_host(p):
            kept = {name: self._in_words(p, name, values[name]) for name in self.names(p) if name in values}
            values = {"step": values["step"], **kept}
        # C reads only the state's own addresses, so the parameter stands in for the gradient.
        _, _, _, *rest = _state.addresses(part, part, {**values, "step": values["step"] - 1})
        fields = (held.weights, held.moments, held.elements, *rest)
        try:
            self._stream.put(held.number, fields)
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
                self._stream.export(self._states[p].number, file.fileno(), offsets)
            pages = _Pages(file.fileno(), total)
            pages.stream()
        return {p: _state.as_held(p, self._tensors(p, pages, offsets)) for p, offsets in layout.items()}

    def _in_words(self, p: torch.Tensor, name: str, value: torch.Tensor) -> torch.Tensor:
        """An array in host memory, in the layout of a parameter on a GPU; a moment is padded to whole words."""
        held = self._states[p]
        dtype = held.dtype if name in _FULL else _dtype_of(name)
        count = held.elements * _WORD // held.dtype.itemsize
        flat = torch.zeros(count, dtype=dtype, device="cpu")
        flat.as_strided(*self._layouts[p]).copy_(value)
        return flat

    def names(self, p: torch.Tensor) -> tuple[str | None, ...]:
        """The names of the parameter's arrays in C's order; None for arrays that its state lacks."""
        held = self._states[p]
        names = list(_QUANTIZED if held.moments else _FULL)
        names[_EXTRA] = (None, "master", "low")[held.weights]
        sizes = self._stream.part_bytes(held.number)
        return tuple(name if size else None for name, size in zip(names, sizes, strict=True))

    def _layout(self, params: list[torch.Tensor]) -> tuple[dict[torch.Tensor, tuple[int | None, ...]], int]:
        """The offset of each array in one file that holds all of them, and the file's size."""
        layout: dict[torch.Tensor, tuple[int | None, ...]] = {}
        end = 0
        for p in params:
            offsets: list[int | None] = []
            for size in self._stream.part_bytes(self._states[p].number):
                offsets.append(end if size else None)
                end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            layout[p] = tuple(offsets)
        return layout, end

    def _tensors(self, p: torch.Tensor, pages: _Pages, offsets: tuple[int | None, ...]) -> dict[str, torch.Tensor]:
        made = {}
        elements, moments = part_of(p).numel(), self._states[p].dtype
        for name, offset in zip(self.names(p), offsets, strict=True):
            if name is None or offset is None:
                continue
            dtype, is_scales = moments if name in _FULL else _dtype_of(name), name.endswith("_absmax")
            count = -(-elements // _state.BLOCK) if is_scales else elements
            flat = torch.frombuffer(pages, dtype=dtype, count=count, offset=offset)
            made[name] = flat if is_scales else flat.as_strided(*self._layouts[p])
        return made

    # ---- rounds ------------------------------------------------------------------------

    def begin(self, params: Iterable[torch.Tensor]) -> None:
        """Begins a round of updates, which are expected in this order."""
        self.in_round, self.is_torn = True, False
        self._stream.begin([self._states[p].number for p in params if p in self._states])

    def update(self, p: torch.Tensor, gradient: torch.Tensor, step: int, hyperparameters: Hyperparameters) -> None:
        """Makes the `step`-th update of a parameter. The gradient must have the parameter's layout in memory; of a
        divided one both are parts."""
        held, part = self._states[p], part_of(p)
        fields = (held.weights, held.moments, held.elements, step, part.data_ptr(), gradient.data_ptr(), *_NO_ADDRESSES)
        self._stream.update(held.number, fields, *hyperparameters, torch.get_num_threads())
        self._updated[p] = None

    def update_on_device(self, optimizer: Any, group: dict[str, Any], p: torch.Tensor) -> None:
        """Makes the next update of a parameter on a GPU. The host waits for the card at each chunk.

        Raises:
            Exception: torch's, such as no memory; see `is_torn`.
        """
        held, step = self._states[p], optimizer.state[p]["step"]
        parameter, gradient = flat_parts(p)
        names = [name for name in self.names(p) if name is not None]
        size = held.dtype.itemsize

        def compute(first: int, views: tuple[memoryview, ...]) -> None:
            begin = first * _WORD // size
            end = min(begin + len(views[0]) // size, parameter.numel())
            arrays = {
                name: torch.frombuffer(view, dtype=held.dtype if name in _FULL else _dtype_of(name), count=end - begin)
                for name, view in zip(names, views, strict=True)
            }
            try:
                now = {name: array.to(parameter.device) for name, array in arrays.items()}
                self.is_torn = True
                is_whole = held.weights == _state.FP32
                most = end - begin if is_whole else elements_at_once() // _CHUNKS_IN_A_BUFFER
                for at in range(begin, end, most):
                    until = min(at + most, end)
                    values = {name: array[at - begin : until - begin] for name, array in now.items()}
                    update_rows(optimizer, group, [(parameter[at:until], gradient[at:until], values, step)])
                for name in arrays:
                    arrays[name].copy_(now[name])
                self.is_torn = False
            finally:
                arrays.clear()  # a traceback must not hold memory that the stream frees

        self._stream.update_by(held.number, int(step) + 1, compute)
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


def form_of(p: torch.Tensor, group: dict[str, Any], state_bits: int, bf16: str | None) -> tuple[int, int, bool, int]:
    """The form of a parameter's state, as `_core.OptimizerStream.add()` takes it."""
    part, amsgrad = part_of(p), group["amsgrad"]
    if not (_state.is_on_host(p) or is_widened(p, group, bf16)):
        return _state.FP32, 0, amsgrad, -(-part.nbytes // _WORD)
    weights = _state.FP32
    if p.dtype is torch.bfloat16:
        weights = _state.BF16_MASTER if _state.extra_of(bf16) == "master" else _state.BF16_SPLIT
    return weights, int(_state.moments_are_8bit(p, state_bits)), amsgrad, part.numel()


def _dtype_of(name: str) -> torch.dtype:
    """The dtype of a state's array of codes, scales or precision bits."""
    if name.endswith("_8bit"):
        return torch.uint8
    return torch.int16 if name == "low" else torch.float32
