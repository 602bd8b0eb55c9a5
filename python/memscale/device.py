"""The kinds of training device. memscale asks torch about a device only through this module.

`KINDS` has one row for each kind, with the names of the C library's table. No other module tests for a
kind or names one. All code that touches random states, memory statistics, streams or allocator errors
uses this table. The module has no state. Its import fails if a row lacks a column, or if the library
has a kind without a row.

torch is imported at the first call, not with this module. All functions may be called from any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _core
from .generators import draw_outside, sources

if TYPE_CHECKING:
    import torch

__all__ = [
    "ACCELERATORS",
    "AUTOCAST_KINDS",
    "GENERATORS",
    "HOST",
    "KINDS",
    "Kind",
    "RandomState",
    "Sight",
    "advance_generators",
    "is_out_of_memory",
    "kind_of",
    "random_sources",
    "refusal_of_graphs",
    "training_device",
]


@dataclass(frozen=True)
class Sight:
    """torch's description of one device. `available_bytes` are free or reserved by this process's allocator."""

    name: str = ""
    total_bytes: int = 0
    available_bytes: int = 0


@dataclass(frozen=True)
class Kind:
    """torch's functions for one kind of device.

    Attributes:
        name: torch's name of the kind, as in `torch.device.type`.
        label: the kind's name in messages, such as "GPU".
        api: the name of its programming interface in messages.
        is_host: whether tensors of this kind lie in host memory.
        is_there: whether torch finds a device of this kind.
        is_active: whether this process has used such a device. If not, reading states would initialise it.
        device_count: number of devices that torch finds.
        current_index: index of the calling thread's current device.
        generator: the default generator of one device, by its index.
        identity: a line that tells a device, its driver and torch's version from all others.
        sight: the name of a device, its memory, and the part that this process can use; zeros on the host.
        allocated_bytes: bytes of tensors on a device now; 0 on the host, because the library measures
            resident memory there.
        peak_bytes: the peak since `reset_peak()`, in allocated bytes, or in resident bytes on the host.
        reset_peak: begins a new peak.
        tensor_bytes: bytes of live tensors on a device now, and their peak since `reset_tensor_peak()`. On the host
            only those that hostmem serves.
        reset_tensor_peak: begins a new peak of live tensors.
        is_capturing: whether the calling thread's work is captured as a graph of the device's driver, and
            not run.
        synchronize: returns when the current device has finished its queue.
        empty_cache: frees the allocator's cached memory.
        out_of_memory: whether an exception says that an allocation of this kind failed.
        pin: pins pages of host memory, from an address on, for copies at the link's full rate; returns whether the
            driver did.
        unpin: ends that, given the same address; returns whether it was pinned.
        module: torch's module for the kind.
    """

    name: str
    label: str
    api: str
    is_host: bool
    is_there: Callable[[], bool]
    is_active: Callable[[], bool]
    device_count: Callable[[], int]
    current_index: Callable[[], int]
    generator: Callable[[int], torch.Generator]
    identity: Callable[[torch.device], str]
    sight: Callable[[torch.device], Sight]
    allocated_bytes: Callable[[torch.device | None], int]
    peak_bytes: Callable[[torch.device | None], int]
    reset_peak: Callable[[torch.device | None], None]
    tensor_bytes: Callable[[torch.device | None], tuple[int, int]]
    reset_tensor_peak: Callable[[torch.device | None], None]
    is_capturing: Callable[[], bool]
    synchronize: Callable[[], None]
    empty_cache: Callable[[], None]
    out_of_memory: Callable[[BaseException], bool]
    pin: Callable[[int, int], bool]
    unpin: Callable[[int], bool]
    module: Callable[[], Any]


# Messages of torch's host allocator, whose errors have no type of their own.
_HOST_MESSAGES = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


def _host_memory_ran_out(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _HOST_MESSAGES)


def _host_tensors() -> tuple[int, int]:
    found = _core.hostmem_stats()
    return found["live_bytes"], found["peak_live_bytes"]


@cache
def _torch() -> Any:
    import torch

    return torch


def _host(row: dict[str, Any]) -> Kind:
    return Kind(
        name=row["name"],
        label=row["label"],
        api=row["api"],
        is_host=True,
        is_there=lambda: True,
        is_active=lambda: True,
        device_count=lambda: 1,
        current_index=lambda: 0,
        generator=lambda _: _torch().default_generator,
        identity=lambda _: "",
        sight=lambda _: Sight(),
        allocated_bytes=lambda _: 0,
        peak_bytes=lambda _: int(_core.process_memory()["peak_rss_bytes"]),
        reset_peak=lambda _: _core.reset_peak_rss(),
        tensor_bytes=lambda _: _host_tensors(),
        reset_tensor_peak=lambda _: _core.hostmem_reset_peak(),
        is_capturing=lambda: False,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        out_of_memory=_host_memory_ran_out,
        pin=lambda _, __: False,
        unpin=lambda _: False,
        module=_torch,
    )


def _accelerator(row: dict[str, Any]) -> Kind:
    """A row for an accelerator. torch has a module for each, with functions of the same names."""

    @cache
    def module() -> Any:
        return import_module(row["torch_module"])

    return Kind(
        name=row["name"],
        label=row["label"],
        api=row["api"],
        is_host=False,
        is_there=lambda: module().is_available(),
        is_active=lambda: module().is_initialized() and module().is_available(),  # the first is quick
        device_count=lambda: module().device_count(),
        current_index=lambda: module().current_device(),
        generator=lambda index: module().default_generators[index],
        identity=lambda device: _identity(module(), device),
        sight=lambda device: _sight(module(), device),
        allocated_bytes=lambda device: module().memory_allocated(device),
        peak_bytes=lambda device: module().max_memory_allocated(device),
        reset_peak=lambda device: module().reset_peak_memory_stats(device),
        tensor_bytes=lambda device: (module().memory_allocated(device), module().max_memory_allocated(device)),
        reset_tensor_peak=lambda device: module().reset_peak_memory_stats(device),
        is_capturing=lambda: module().is_initialized() and module().is_current_stream_capturing(),
        synchronize=lambda: module().synchronize(),
        empty_cache=lambda: module().empty_cache(),
        out_of_memory=lambda error: isinstance(error, _torch().OutOfMemoryError),
        pin=lambda address, size_bytes: _succeeds(
            row["name"], module().cudart().cudaHostRegister(address, size_bytes, 0)
        ),
        unpin=lambda address: _succeeds(row["name"], module().cudart().cudaHostUnregister(address)),
        module=module,
    )


def _succeeds(kind_name: str, result: Any) -> bool:
    """Whether a call of the runtime succeeded. The runtime keeps a failure and reports it again at the next launch of a
    kernel, by then somebody else's; so one is launched here."""
    if int(result) == 0:
        return True
    with suppress(RuntimeError):
        _torch().zeros(1, device=kind_name)
    return False


def _identity(module: Any, device: torch.device) -> str:
    found, c = module.get_device_properties(device), _torch()._C
    read_driver = getattr(c, f"_{device.type}_getDriverVersion", None)
    driver = None if read_driver is None else read_driver()
    device_id = getattr(found, "uuid", found.name)
    return f"{device_id} {found.name} {found.total_memory} driver {driver} torch {_torch().__version__}"


def _sight(module: Any, device: torch.device) -> Sight:
    free_bytes, total_bytes = module.mem_get_info(device)
    return Sight(module.get_device_name(device), total_bytes, free_bytes + module.memory_reserved(device))


# Functions that make a row of `KINDS`, by the name of the library's row.
_ROWS: dict[str, Callable[[dict[str, Any]], Kind]] = {"cpu": _host, "cuda": _accelerator}

KINDS: dict[str, Kind] = {row["name"]: _ROWS[row["name"]](row) for row in _core.device_kinds()}
"""All kinds by name, the host's first."""

HOST = next(kind for kind in KINDS.values() if kind.is_host)
ACCELERATORS = tuple(kind for kind in KINDS.values() if not kind.is_host)

AUTOCAST_KINDS = tuple(kind.name for kind in (*ACCELERATORS, HOST))
"""The names under which torch keeps a state of autocast, in the order of signatures."""


def kind_of(device: torch.device) -> Kind:
    """The kind of a device.

    Tensors on torch's meta device have no memory and count as the host's.

    Raises:
        MemScaleError: memscale does not know devices of this kind; the error names it.
    """
    if device.type != "meta" and device.type not in KINDS:
        _core.device_check(device.type)  # raises: both tables have the same names
    return KINDS.get(device.type, HOST)


def training_device(model: torch.nn.Module) -> torch.device:
    """The device of a model's first parameter; the host for a model without parameters."""
    return next((parameter.device for parameter in model.parameters()), _torch().device(HOST.name))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation failed, on a device or on the host."""
    return any(kind.out_of_memory(error) for kind in KINDS.values())


def random_sources() -> tuple[Any, ...]:
    """The global generators of torch, Python and NumPy, for `_core.read_states()`."""
    if not _core.guards_hold(GENERATORS.guards):
        GENERATORS.look()
    return GENERATORS.sources


class RandomState:
    """The states of the global generators of torch, Python and NumPy. The constructor reads them."""

    __slots__ = ("_sources", "_states")

    def __init__(self) -> None:
        self._sources = random_sources()
        self._states = _core.read_states(self._sources)

    def later(self, undo: _core.Undo) -> None:
        """Makes `undo` restore these states."""
        undo.later(_core.write_states, self._sources, self._states)

    def put_back(self) -> None:
        """Restores these states now."""
        _core.write_states(self._sources, self._states)


class Generators:
    """The sources of all states, for `_core.read_states()`, and guards that hold as long as the generators are the
    same."""

    def __init__(self) -> None:
        self.sources: tuple[Any, ...] = ()
        self.guards: tuple[Any, ...] = ((vars(self), "sources", None),)  # does not hold

    def look(self) -> None:
        """Looks for them again."""
        torchs = HOST.generator(0)
        self.sources, guards = sources(torchs)
        self.guards = (vars(_torch()), "default_generator", torchs), *guards
        # Every device counts: a layer may draw on one that holds neither its arguments nor its parameters.
        for names in (vars(kind.module()) for kind in ACCELERATORS):
            self.guards += tuple((names, name, names.get(name)) for name in ("_initialized", "default_generators"))
        for kind, index in _devices_in_use():
            generator = kind.generator(index)
            self.sources += ((generator.get_state, generator.set_state),)


GENERATORS = Generators()


def advance_generators() -> None:
    """Draws from every generator whose state `RandomState` holds."""
    for device in (HOST.name, *(f"{kind.name}:{index}" for kind, index in _devices_in_use())):
        _torch().rand(1, device=device)
    draw_outside()


def _devices_in_use() -> list[tuple[Kind, int]]:
    return [(kind, index) for kind in ACCELERATORS if kind.is_active() for index in range(kind.device_count())]


def refusal_of_graphs(backend: Any) -> str | None:
    """The reason why modules compiled by this backend of torch's compiler can't be trained with memscale: it records
    device graphs. None if it does not."""
    name, options = getattr(backend, "compiler_name", None), getattr(backend, "config", None)
    asked = options.get("triton.cudagraphs") if isinstance(options, dict) else None
    everywhere: Any = sys.modules.get("torch._inductor.config")
    if asked is None and name == "inductor" and everywhere is not None:
        asked = everywhere.triton.cudagraphs
    if not asked and name != "cudagraphs":
        return None
    return (
        "for CUDA graphs (mode reduce-overhead or max-autotune, option triton.cudagraphs), whose memory is fixed when "
        "they are recorded, so that nothing can move or be recomputed; use mode default or max-autotune-no-cudagraphs"
    )
