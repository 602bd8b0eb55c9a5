"""Every setting of the process that operators read, as one table: precision, autocast, deterministic flags, choices of
kernels, the processor's rounding, and what else a layer can read. Random states and modes are not among them; see
environment.py.

`Switches` reads all settings in about a microsecond, because C asks torch's own C++ functions whether anything has
changed (ext/settings.c). `memscale.base.environment`, `memscale.execution.tape` and `memscale.execution.verification`
use this module. Tests: tests/python/test_settings.py.
"""

from __future__ import annotations

import warnings
from functools import cache, partial
from typing import Any

import torch
import torch.backends.mha  # torch 2.6 imports it and opt_einsum only when they are needed
import torch.backends.opt_einsum

from .. import _core
from ..device import ACCELERATORS, AUTOCAST_KINDS

__all__ = ["Switches", "settings"]

_Writer = tuple[Any, tuple[str, ...], bool]
"""A function that sets a value, the names of its keyword arguments, which get the last parts of the value, and
whether it takes a value at all."""

_Probe = tuple[str, int, tuple[Any, ...] | None]
"""The symbol of a function of torch, the bytes of its result, and its arguments; see ext/probes.h. It must not throw,
and its result must change whenever that of the row's reader does."""

_Row = tuple[Any, tuple[_Writer, ...], tuple[_Probe, ...]]
"""A function that reads a setting (or one for each part of its value), the functions that set it, and probes that
together tell whether it has changed; rows may share probes. All functions are builtins, because C calls them while no
interrupt may come."""

_PRECISIONS = [
    ("generic", "all"),
    *(
        (backend, operator)
        for backend in (*(kind.name for kind in ACCELERATORS), "mkldnn")
        for operator in ("all", "matmul", "conv", "rnn")
    ),
]

_FLAGS: dict[str | tuple[str, str], str | None] = {
    # A pair has the names of getter and setter in torch._C; a single name stands for _get_<name> and _set_<name>. The
    # value is the method of torch's C++ class Context that the getter calls; None if there is none that can be a probe.
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"): "userEnabledFlashSDP",
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"): "userEnabledMemEfficientSDP",
    ("_get_math_sdp_enabled", "_set_sdp_use_math"): "userEnabledMathSDP",
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"): "userEnabledCuDNNSDP",
    ("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"): "userEnabledOverrideableSDP",
    ("_get_fa3_sdp_enabled", "_set_sdp_use_fa3"): "userEnabledFA3SDP",
    "math_sdp_allow_fp16_bf16_reduction": "allowFP16BF16ReductionMathSDP",
    "mkldnn_enabled": "userEnabledMkldnn",
    "mkldnn_deterministic": "deterministicMkldnn",
    "nnpack_enabled": "userEnabledNNPACK",
    "cpu_allow_fp16_reduced_precision_reduction": "allowFP16ReductionCPU",
    "cudnn_enabled": "userEnabledCuDNN",
    "cudnn_benchmark": "benchmarkCuDNN",
    "cudnn_deterministic": "deterministicCuDNN",
    "cudnn_depthwise_kernel": "cudnnDepthwiseKernel",
    "cublas_allow_fp16_accumulation": "allowFP16AccumulationCuBLAS",
    "cublas_allow_fp16_reduced_precision_reduction": "allowFP16ReductionCuBLAS",
    "cublas_allow_bf16_reduced_precision_reduction": "allowBF16ReductionCuBLAS",
    "qengine": "qEngine",
    "deterministic_fill_uninitialized_memory": "deterministicFillUninitializedMemory",
}

_GPU_FLAGS: dict[str | tuple[str, str], str | None] = {
    "miopen_immediate": "immediateMiopen",
    "blas_preferred_backend": None,
    "linalg_preferred_backend": None,
    "rocm_fa_preferred_backend": None,
    "sm_carveout_experimental": None,
}


def _rows() -> list[_Row]:
    """The table. Each setting selects kernels, changes their results, or can be read by a layer. Settings that this
    build of torch lacks are left out. Precisions come last, the wider ones first, because setting a wider one may set
    narrower ones."""
    c = torch._C
    printing = vars(torch._tensor_str.PRINT_OPTS)
    rows: list[_Row] = [
        # must be first; see Switches.note()
        _row(torch.get_num_threads, torch.set_num_threads, ("_ZN2at15get_num_threadsEv", 4, ())),
        _row(_core.float_control, _core.set_float_control, ("ms_ext_float_control", 4, ())),
        _row(torch.get_default_dtype, c._set_default_dtype, ("_ZN3c1017get_default_dtypeEv", 2, ())),
        _row(
            torch.is_autocast_cache_enabled,
            torch.set_autocast_cache_enabled,
            ("_ZN2at8autocast25is_autocast_cache_enabledEv", 1, ()),
        ),
        *_attribute(torch.backends.mha, "_is_fastpath_enabled"),
        (
            (c._get_deterministic_algorithms, c._get_deterministic_algorithms_warn_only),
            ((c._set_deterministic_algorithms, ("warn_only",), True),),
            (_method("deterministicAlgorithms"), _method("deterministicAlgorithmsWarnOnly")),
        ),
        (
            (torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled),
            ((torch.set_anomaly_enabled, (), True),),
            (
                ("_ZN5torch8autograd11AnomalyMode8_enabledE", 1, None),
                ("_ZN5torch8autograd11AnomalyMode10_check_nanE", 1, None),
            ),
        ),
        _filters(),
        *_attribute(torch.backends.opt_einsum, "enabled"),
        *_attribute(torch.backends.opt_einsum, "strategy"),
        _row(printing, printing.update),
        *_autocast(),
        *_sdp_order(),
    ]
    for flag, method in {**_FLAGS, **(_GPU_FLAGS if any(kind.is_there() for kind in ACCELERATORS) else {})}.items():
        getter, setter = flag if isinstance(flag, tuple) else (f"_get_{flag}", f"_set_{flag}")
        read, write = getattr(c, getter, None), getattr(c, setter, None)
        if read is not None and write is not None:
            rows.append(_row(read, write, *([_method(method)] if method is not None else ())))
    return [*rows, *_precisions()]


def _sdp_order() -> list[_Row]:
    read, write = (getattr(torch._C, f"_{way}_sdp_priority_order", None) for way in ("get", "set"))
    if read is None or write is None:
        return []
    size = 4 * len(read())  # of an array; one of up to 16 bytes would be returned in registers
    return [_row(read, write, *([("_ZN2at7Context16sDPPriorityOrderEv", size, (None,))] if 16 < size <= 64 else ()))]


def _autocast() -> list[_Row]:
    rows, numbers = [], vars(torch.autograd)["DeviceType"]
    for kind in AUTOCAST_KINDS:
        number = int(getattr(numbers, kind.upper()))
        is_on = ("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE", 1, (number,))
        dtype = ("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", 1, (number,))
        rows += [
            _row(partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind), is_on),
            _row(partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind), dtype),
        ]
    return rows


def _precisions() -> list[_Row]:
    """The rows of precisions. Old settings come first, because each sets some of the new ones.

    The functions behind the old getters throw if both kinds were used, so they can't be probes. The new precisions are:
    an old setting that changes the arithmetic of an operator changes one of them."""
    c, rows = torch._C, []
    read, write = (getattr(c, f"_{way}_fp32_precision_{way}ter", None) for way in ("get", "set"))
    new: list[_Row] = []
    if read is not None and write is not None:
        new = [_row(partial(read, *where), partial(write, *where), _precision(*where)) for where in _PRECISIONS]
    probes = [probe for _, _, probes in new for probe in probes]
    for name in ("cudnn_allow_tf32", "float32_matmul_precision"):
        read, write = getattr(c, f"_get_{name}", None), getattr(c, f"_set_{name}", None)
        if read is not None and write is not None:
            rows.append(_row(read, write, *probes))
    return [*rows, *new]


def _precision(backend: str, operator: str) -> _Probe:
    text = "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    enumerators = (f"_ZN2at11str2backendE{text}", backend), (f"_ZN2at6str2opE{text}", operator)
    return "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE", 4, (None, *enumerators)


def _method(name: str) -> _Probe:
    return f"_ZNK2at7Context{len(name)}{name}Ev", 1, (None,)


def _row(read: Any, write: Any, *probes: _Probe) -> _Row:
    return read, ((write, (), True),), probes


def _attribute(holder: Any, name: str) -> list[_Row]:
    attributes = vars(holder)
    if name not in attributes:
        return []
    return [_row((attributes, name), partial(attributes.__setitem__, name))]


def _filters() -> _Row:
    read, (write,), _ = _attribute(warnings, "filters")[0]
    mutated = getattr(warnings, "_filters_mutated", None)
    return read, (write, *(((mutated, (), False),) if mutated is not None else ())), ()


@cache
def settings() -> _core.Settings:
    """The table."""
    return _core.settings(tuple(_rows()))


class Switches:
    """The values of all settings of the table at one moment."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = settings().read()

    def note(self, undo: Any) -> None:
        """Makes `undo` restore every setting that has changed by then, except precisions and the number of threads.

        Writing a precision has a side effect: torch then no longer derives it from the wider one. So has
        writing the number of threads: torch starts a thread.
        """
        undo.later(_core.put_settings, settings(), self._values, 1, len(self._values) - len(_precisions()))

    def put(self, undo: Any) -> None:
        """Sets the recorded settings. `undo` restores the present ones, even if the layer sets others meanwhile."""
        table = settings()
        now = table.read()
        undo.later(_core.put_settings, table, now)
        if now is not self._values:
            _core.put_settings(table, self._values)
