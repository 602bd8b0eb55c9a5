"""What a forward depends on besides its arguments, parameters and buffers: random
number generators, autocast, the default device, and torch's global switches.

Taken before a layer that will be recomputed, put in place for its replay, and undone
afterwards. Used by `memscale.execution.replay`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..device import ACCELERATORS, AUTOCAST_KINDS, RandomState, devices_of

__all__ = ["Environment"]

_Switch = tuple[Callable[[], Any], Callable[[Any], Any]]


# torch has two ways to set the precision of float32 products. The older one's getters raise where the
# newer one was used: then there is nothing of the older one to put back.
_UNREADABLE = object()

# Each inherits from those before it.
_PRECISIONS = (
    ("generic", "all"),
    *(
        (backend, op)
        for backend in (*(kind.name for kind in ACCELERATORS), "mkldnn")
        for op in ("all", "matmul", "conv", "rnn")
    ),
)


def _switch(getter: str, setter: str) -> _Switch | None:
    read, write = getattr(torch._C, getter, None), getattr(torch._C, setter, None)
    return _older(read, write) if read is not None and write is not None else None


def _older(read: Callable[[], Any], write: Callable[..., Any]) -> _Switch:
    def read_or_nothing() -> Any:
        try:
            return read()
        except RuntimeError:
            return _UNREADABLE

    def write_back(value: Any) -> None:
        if isinstance(value, tuple):
            write(*value)
        elif value is not _UNREADABLE:
            write(value)

    return read_or_nothing, write_back


def _precisions() -> list[_Switch]:
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    write = getattr(torch._C, "_set_fp32_precision_setter", None)
    if read is None or write is None:
        return []
    return [(functools.partial(read, *of), functools.partial(write, *of)) for of in _PRECISIONS]


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _switches() -> list[_Switch]:
    """Getter and setter of everything that chooses kernels or their results."""
    found = [
        _switch("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
        _switch("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
        _switch("_get_math_sdp_enabled", "_set_sdp_use_math"),
        _switch("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
        _switch("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
        _switch("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
        _switch("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
        _switch("_get_cudnn_enabled", "_set_cudnn_enabled"),
        _switch("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
        _switch("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
        _switch("_get_cudnn_allow_tf32", "_set_cudnn_allow_tf32"),
        _switch("_get_cublas_allow_tf32", "_set_cublas_allow_tf32"),
        _switch(
            "_get_cublas_allow_fp16_reduced_precision_reduction",
            "_set_cublas_allow_fp16_reduced_precision_reduction",
        ),
        _switch(
            "_get_cublas_allow_bf16_reduced_precision_reduction",
            "_set_cublas_allow_bf16_reduced_precision_reduction",
        ),
        _switch("_get_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_accumulation"),
    ]
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        _older(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
        (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            _set_deterministic,
        ),
        *(pair for pair in found if pair is not None),
        *_precisions(),  # after the older ones, which set these too
    ]


_SWITCHES: list[_Switch] = []


def _all_switches() -> list[_Switch]:
    if not _SWITCHES:
        _SWITCHES.extend(_switches())
    return _SWITCHES


def _put_back(values: list[Any]) -> None:
    for (read, write), value in zip(_all_switches(), values, strict=True):
        if value is not _UNREADABLE and read() != value:
            write(value)


class Environment:
    """The state of one moment."""

    __slots__ = ("_autocast", "_autocast_cache", "_default_device", "_random", "_switches")

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        """`tensors`: arguments, whose devices' generators count."""
        self._random = RandomState(devices_of(tensors))
        self._autocast = [
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in AUTOCAST_KINDS
        ]
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._default_device = torch.get_default_device()
        self._switches = [read() for read, _ in _all_switches()]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The environment is as it was taken; afterwards as it is now."""
        with ExitStack() as stack:
            now = RandomState(self._random.devices)
            stack.callback(now.put_back)
            current = [read() for read, _ in _all_switches()]
            if current != self._switches:
                stack.callback(_put_back, current)
                _put_back(self._switches)
            if torch.get_default_device() != self._default_device:
                stack.enter_context(self._default_device)
            for device, (enabled, dtype) in zip(AUTOCAST_KINDS, self._autocast, strict=True):
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(_autocast(device, enabled, dtype, self._autocast_cache))
            self._random.put_back()
            yield


def _autocast(device: str, enabled: bool, dtype: torch.dtype, cache: bool) -> Any:
    return torch.amp.autocast(device, enabled=enabled, dtype=dtype, cache_enabled=cache)
