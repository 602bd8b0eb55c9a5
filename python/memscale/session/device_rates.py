"""Measures how fast a GPU computes and moves bytes, with torch's own operators, timed by events on the device.

C says what to run (`gpu_trials()`, `gpu_trial_next()`) and keeps the results in the user's cache, by device, driver and
the process's precision of FP32 products. The first run on a device measures for a second at most. It draws no random
numbers and changes no setting. The memory that it takes goes back to torch's allocator. The peak
of `max_memory_allocated()` is unchanged if it equalled the allocated bytes; otherwise measuring may raise it by 256 MB.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .. import _core
from ..device import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["with_rates"]

_log = logging.getLogger("memscale")

# No trial begins later than this. The operators of the one that is running end first.
_LIMIT_NS = 800_000_000

# The part of the free memory that a trial may use.
_ROOM_SHARE = 8


def with_rates(hardware: str, device: torch.device) -> tuple[str, bool]:
    """The description `hardware` with the rates of `device`, which it describes, and whether they were measured now.

    Rates that can't be measured stay as they are. Must not be called while the device's work is captured.
    """
    index, kind = device.index or 0, kind_of(device)
    key = f"{kind.identity(device)} products {_fp32_precision(device)}"
    known = _core.hardware_load_gpu_rates(hardware, index, key)
    if known is not None:
        return known, False
    peak_is_now = kind.peak_bytes(device) == kind.allocated_bytes(device)
    rates = _measure(device, kind.sight(device).available_bytes // _ROOM_SHARE)
    if peak_is_now:
        kind.reset_peak(device)
    return _core.hardware_set_gpu_rates(hardware, index, key, rates), True


def _fp32_precision(device: torch.device) -> str:
    import torch

    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    return str(read(device.type, "matmul")) if read is not None else torch.get_float32_matmul_precision()


def _measure(device: torch.device, room_bytes: int) -> list[int]:
    """The rate that each trial finds, or 0."""
    import torch

    began_ns, rates = _core.now_ns(), []
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        for trial, (work, dtype, is_pinned) in enumerate(_core.gpu_trials()):
            is_late = _core.now_ns() - began_ns > _LIMIT_NS
            try:
                rates.append(0 if is_late else _rate(trial, work, getattr(torch, dtype), is_pinned, device, room_bytes))
            except RuntimeError as error:  # a dtype that the device lacks, or no memory
                _log.debug("the rate of %s (%s) is not measured: %s", work, dtype, error)
                rates.append(0)
    return rates


def _rate(trial: int, work: str, dtype: torch.dtype, is_pinned: bool, device: torch.device, room_bytes: int) -> int:
    size = repeats = ns = 0
    while True:
        size, repeats, rate = _core.gpu_trial_next(trial, room_bytes, size, repeats, ns)
        if repeats == 0:
            return rate
        ns = _timed(_WORK[work](size, dtype, is_pinned, device), repeats, device)


def _timed(run: Callable[[], object], repeats: int, device: torch.device) -> int:
    """The time on the device, in ns, of `repeats` runs after a first one."""
    import torch

    run()
    begun, ended = (torch.Event(device.type, enable_timing=True) for _ in range(2))
    stream = torch.accelerator.current_stream(device)
    stream.synchronize()
    begun.record(stream)
    for _ in range(repeats):
        run()
    ended.record(stream)
    ended.synchronize()
    return max(1, int(begun.elapsed_time(ended) * 1e6))


def _product(rows: int, dtype: torch.dtype, _: bool, device: torch.device) -> Callable[[], object]:
    import torch

    # Ordinary values: products of zeros take less power, so a device computes them faster.
    numbers = torch.arange(rows * rows, device=device).remainder_(97).div(97.0).to(dtype).view(rows, rows)
    result = torch.empty_like(numbers)
    return lambda: torch.mm(numbers, numbers, out=result)


def _scale(size_bytes: int, dtype: torch.dtype, _: bool, device: torch.device) -> Callable[[], object]:
    import torch

    values = torch.ones(size_bytes // dtype.itemsize, dtype=dtype, device=device)
    return lambda: values.mul_(1.0)


def _copy(to_host: bool) -> Callable[[int, Any, bool, Any], Callable[[], object]]:
    def make(size_bytes: int, dtype: torch.dtype, is_pinned: bool, device: torch.device) -> Callable[[], object]:
        import torch

        host = torch.ones(size_bytes, dtype=dtype, pin_memory=is_pinned)
        there = torch.ones(size_bytes, dtype=dtype, device=device)
        to, source = (host, there) if to_host else (there, host)
        return lambda: to.copy_(source, non_blocking=True)

    return make


_WORK = {"product": _product, "scale": _scale, "to_host": _copy(True), "from_host": _copy(False)}
