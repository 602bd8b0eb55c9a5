"""The configuration: `Config` and the values inside it.

The C library has every limit, and every message about a bad value; this file is the Python interface. It
imports neither torch nor a module that does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from memscale import _core
from memscale.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AsyncOffloadConfig", "Config", "OptimizationMode"]

_VERSION = 1
_PATH_FIELDS = ("log_file", "disk_offload_dir")


class OptimizationMode(str, Enum):
    """The techniques that memscale may use. Members compare equal to their strings."""

    CONSERVATIVE = "conservative"
    """Recompute layers in backward, and nothing else."""
    BALANCED = "balanced"
    """Recompute, and offload to a lower tier."""
    AGGRESSIVE = "aggressive"
    """Everything that the flags of `Config` allow."""


Class = TypeVar("Class", bound=type)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _names_misspelled_fields(cls: Class) -> Class:
    """Makes a dataclass refuse an unknown field with the C library's message, which suggests the
    field that was probably meant: in its constructor, in an assignment and when it is read."""
    construct = cls.__init__  # type: ignore[misc]
    known = {field.name for field in dataclasses.fields(cls)}

    def __getattr__(self: Any, name: str) -> Any:  # called only if there is no such attribute
        raise AttributeError(name if name.startswith("__") else _no_such_field(cls.__name__, name))

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if name not in known:
            raise AttributeError(_no_such_field(cls.__name__, name))
        object.__setattr__(self, name, value)

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None:
            raise TypeError(_no_such_field(cls.__name__, unknown))
        construct(self, *args, **kwargs)

    cls.__init__ = __init__  # type: ignore[misc]
    cls.__getattr__, cls.__setattr__ = __getattr__, __setattr__  # type: ignore[attr-defined,method-assign,assignment]
    return cls


def _no_such_field(owner: str, name: str) -> str:
    fields: dict[str, Any] = {name: None} if owner == "Config" else {"async_config": {name: None}}
    try:
        _core.config_validate(json.dumps({"version": _VERSION, **fields}))
    except ConfigError as error:
        return f"{owner}: {error}"
    return f"{owner}: {name}: there is no such field"


@_names_misspelled_fields
@dataclass(slots=True)
class AsyncOffloadConfig:
    """How transfers between GPU and host overlap with compute.

    Attributes:
        pinned_pool_gb: pinned host memory to reserve, in GB (1e9 bytes); a positive number, or None
            to choose from the hardware.
        prefetch_depth: layers to fetch ahead in backward, 1 to 1024, or None to choose.
        num_streams: transfer streams, 1 to 64, or None to choose from the copy engines.
        debug: log a GPU's offload tier (its streams and pinned memory) when it is opened.

    Raises:
        ConfigError: a value is not allowed; `.field` is ``"async_config.<name>"``.
    """

    pinned_pool_gb: float | None = None
    prefetch_depth: int | None = None
    num_streams: int | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        _core.config_validate(_encode({"async_config": self}))


@_names_misspelled_fields
@dataclass(slots=True)
class Config:
    """Memory, disk and techniques that a wrapped model may use. GB is 1e9 bytes in every field.

    Attributes:
        mode: the techniques that may be used, an `OptimizationMode` or its string.
        enable_checkpointing: recompute layers in backward.
        enable_offloading: move saved activations (and, when asked, optimizer state)
            to a lower tier: from GPU to host RAM, from host RAM to disk.
        enable_tiling: compute the loss head and MLPs in tiles if no exact plan fits. Sums run in
            another order, so results are rounded differently.
        use_mixed_precision: run forwards under autocast to BF16 if that is faster or smaller on the machine,
            or to FP16 with a scaled loss on a GPU without BF16.
        use_8bit_optimizer: keep AdamW's state in 8 bits, from the first step of the optimizer on;
            `apply_all_optimizations()` replaces the optimizer, so that the first plan counts it.
        max_cpu_offload_gb: cap on host RAM used for offloading, 0 or more; None for the available RAM.
        target_gpu_utilization: share of the device's memory to aim for if no byte budget is given,
            above 0 and at most 1.
        force_optimize: optimize even if the run fits comfortably.
        use_static_profiling: trace a step without running it.
        use_empirical_fallback: profile real steps if tracing fails or is off.
        warmup_steps: steps that the empirical profiler measures, 1 to 1000.
        enable_logging: log hardware and plan.
        log_file: also log to this file (str or path-like), as JSON lines; None for no file.
        observability_port: serve Prometheus metrics on this port plus the local rank, 1 to 65535; None
            for no metrics. They are on the loopback interface unless ``MEMSCALE_OBSERVABILITY_ADDRESS``
            names another. Needs the package prometheus_client.
        verify_correctness: compare loss and gradients with an unoptimized step before
            training, on as many rows of the batch as fit the budget. Slow.
        strict_budget: raise `BudgetInfeasibleError` if no plan fits inputs of a new shape. Otherwise
            they run under their smallest plan, over the budget, with one warning.
        async_offload: overlap transfers between GPU and host with compute. None means yes. With False
            each layer waits for its transfers at its end, and the plan counts that time. The disk tier
            of a CPU host always overlaps. The argument of `wrap` and the environment variable
            ``MEMSCALE_ASYNC_OFFLOAD`` override this field.
        async_config: an `AsyncOffloadConfig`, or None to choose from the hardware. If the model is
            on the CPU, only its `prefetch_depth` acts.
        auto_policy: let the policy choose mode and techniques among those that are not switched
            off; see `memscale.policy`.
        memory_budget_gb: limit of the peak on the training device (resident memory of the process on a
            CPU host); a positive number, or None to aim for a share of the device. If the model lies on several
            devices, a number holds for each; a dict has one for each device by its name, such as
            ``{"cuda:0": 20.0, "cuda:1": 8.0}``.
        disk_offload_dir: directory of the disk tier (str or path-like), created at its first use if
            missing; None for a cache directory on a real disk.
        max_disk_offload_gb: cap on used disk space, 0 or more; None for half of the free space.

    Raises:
        ConfigError: (also a ValueError) a value is not allowed. The text names the field, the value
            and the allowed values; `.field` is the name. A field assigned later is checked when the
            config is used.
        TypeError: the constructor got a field that does not exist; the text names the most similar one.
        AttributeError: an assignment or a read names a field that does not exist; the text as well.

    Example:
        >>> Config(memory_budget_gb=4.0, mode="aggressive").mode
        <OptimizationMode.AGGRESSIVE: 'aggressive'>
    """

    mode: OptimizationMode = OptimizationMode.BALANCED
    enable_checkpointing: bool = True
    enable_offloading: bool = True
    enable_tiling: bool = False
    use_mixed_precision: bool = False
    use_8bit_optimizer: bool = False
    max_cpu_offload_gb: float | None = None
    target_gpu_utilization: float = 0.85
    force_optimize: bool = False
    use_static_profiling: bool = True
    use_empirical_fallback: bool = True
    warmup_steps: int = 2
    enable_logging: bool = True
    log_file: str | None = None
    observability_port: int | None = None
    verify_correctness: bool = False
    strict_budget: bool = False
    async_offload: bool | None = None
    async_config: AsyncOffloadConfig | None = None
    auto_policy: bool = False
    memory_budget_gb: float | Mapping[str, float | None] | None = None
    disk_offload_dir: str | None = None
    max_disk_offload_gb: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.memory_budget_gb, Mapping):
            for name in _device_names(self.memory_budget_gb):
                self.for_device(name)
        else:
            self.to_json()
        self.mode = OptimizationMode(self.mode)
        for name in _PATH_FIELDS:
            setattr(self, name, _path_text(getattr(self, name)))

    def for_device(self, name: str) -> Config:
        """This config with the budget of one device, such as ``"cuda:0"``: the number that holds for each, or the
        device's own.

        Raises:
            ConfigError: as the constructor.
        """
        budget = self.memory_budget_gb
        return dataclasses.replace(self, memory_budget_gb=budget.get(name) if isinstance(budget, Mapping) else budget)

    def to_json(self) -> str:
        """The config as the C library reads it, with every field written out.

        Returns:
            A JSON object after ``docs/formats/config.schema.json``.

        Raises:
            ConfigError: a field was assigned a value that is not allowed, or there is a budget for each of several
                devices: `for_device()` has the config of one.
        """
        if isinstance(self.memory_budget_gb, Mapping):
            raise ConfigError(
                "memory_budget_gb: budgets by device are for wrap() and plan() of a model that lies on several; here a "
                "number is needed",
                field="memory_budget_gb",
            )
        fields = _fields(self)
        for name in _PATH_FIELDS:
            fields[name] = _path_text(fields[name])
        return _core.config_validate(_encode(fields))


def _device_names(budgets: Mapping[Any, Any]) -> list[str]:
    """The keys of budgets by device.

    Raises:
        ConfigError: there is none, or one is no name.
    """
    if not budgets or not all(isinstance(key, str) and key for key in budgets):
        try:
            _core.config_validate(_encode({"memory_budget_gb": budgets}))
        except ConfigError as error:
            error.args = (f"{error}, or a dict with a number for each device by its name",)
            raise
    return list(budgets)


def _fields(instance: Any) -> dict[str, Any]:
    """Names and values of a dataclass instance. Values are neither copied nor converted."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def _encode(fields: dict[str, Any]) -> str:
    document = {name: _plain(value) for name, value in fields.items()}
    return json.dumps({"version": _VERSION, **document}, allow_nan=False)


def _plain(value: Any) -> Any:
    """`value` for JSON. A value that JSON can't hold becomes ``{"__repr__": text}``. No field accepts
    that, so C names the value in its message."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, AsyncOffloadConfig):
        return {name: _plain(item) for name, item in _fields(value).items()}
    if isinstance(value, str) and "\0" not in value and _is_unicode(value):
        return value
    if isinstance(value, numbers.Real) and (number := _json_number(value)) is not None:
        return number
    return {"__repr__": ascii(value)}


def _json_number(value: Any) -> int | float | None:
    """A number that JSON and C hold exactly; None for nan, inf and numbers that are too large."""
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if -(2**63) <= whole < 2**63 else None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def _path_text(value: Any) -> Any:
    return os.fsdecode(value) if isinstance(value, os.PathLike) else value


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode the text. Text with lone surrogates, such as undecodable bytes of a path, can't
    be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_config(config: Config | None) -> Config:
    """`config`, or a default one for None.

    Raises:
        TypeError: `config` is not a `Config`.
    """
    if config is None:
        return Config()
    if not isinstance(config, Config):
        budget = config if isinstance(config, (int, float)) else 4.0
        hint = f"; give a budget as memscale.Config(memory_budget_gb={budget})"
        raise TypeError(f"config must be a memscale.Config or None, not {type(config).__qualname__}{hint}")
    return config


def tells_wrong_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes a function refuse an unknown argument with C's message, which suggests the one that was probably meant."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None:
            raise TypeError(_core.config_no_argument(function.__name__, unknown, tuple(known)))
        return function(*args, **kwargs)

    return call
