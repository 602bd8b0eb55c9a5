"""Loads the double of torch's CUDA; afterwards `import torch` finds two CUDA devices.

    import torch_double
    torch_double.load("build/test/tests")  # before torch is imported
    import torch

A process can load one double and never unload it. The other functions of this module let tests control how the
devices behave; use torch for everything else. Any thread may call any of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_driver: ctypes.CDLL
_double: ctypes.CDLL


def load(folder: str, rocm: bool = False) -> None:
    """Loads the double's two libraries from below `folder`. With `rocm`, memscale finds ROCm's driver in the process,
    as torch for ROCm loads it, in place of CUDA's. Raises RuntimeError if torch is already loaded."""
    global _driver, _double
    if "torch" in sys.modules:
        raise RuntimeError("load the double before torch")
    driver = os.path.join(folder, "cuda_double", "libamdhip64.so" if rocm else "libcuda_double.so")
    os.environ["MEMSCALE_LIBCUDA"] = "" if rocm else driver
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise RuntimeError("torch is not installed")
    library = os.path.join(os.path.dirname(spec.origin), "lib")
    for name in [*glob.glob(library + "/libgomp*.so*"), library + "/libc10.so", library + "/libtorch_cpu.so", driver]:
        _driver = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    _double = ctypes.CDLL(os.path.join(folder, "torch_double", "libtorch_double.so"))
    _declare()
    sys.meta_path[:0] = [_AfterLoading("torch._C", _complete), _AfterLoading("torch.storage", _complete_storage)]


def _declare() -> None:
    size, number, pointer = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p
    _driver.cuda_double_violations.restype = number
    _driver.cuda_double_violations.argtypes = [ctypes.c_char_p, size]
    _driver.cuda_double_pending.restype = number
    _driver.cuda_double_pending.argtypes = [pointer]
    _driver.cuda_double_schedule.argtypes = [number, number]
    _driver.cuda_double_queue_limit.argtypes = [number]
    _driver.cuda_double_memory.argtypes = [ctypes.c_int, size, size]
    _driver.cuda_double_limit_registered.argtypes = [size]
    _driver.cuda_double_fail.argtypes = [ctypes.c_char_p, number, ctypes.c_int]
    _double.torch_double_limit_reserved.argtypes = [ctypes.c_int, size]
    _double.torch_double_host_register.argtypes = [pointer, size, ctypes.c_uint]
    _double.torch_double_host_unregister.argtypes = [pointer]
    _double.torch_double_empty_storage.argtypes = [pointer]


# ---- controls for tests -----------------------------------------------------------------------


def reset() -> None:
    """Forgets violations, planned failures, schedules and limits."""
    _driver.cuda_double_reset()


def violations() -> tuple[int, str]:
    """The number of violations of order since the last reset, and the text of the first one."""
    text = ctypes.create_string_buffer(256)
    return _driver.cuda_double_violations(text, len(text)), text.value.decode()


def schedule(seed: int, most_delay_ns: int, queue_limit: int = 0) -> None:
    """From now on each piece of work takes a random time of up to `most_delay_ns`, and the host waits if a stream
    already holds `queue_limit` pieces (0: no limit)."""
    _driver.cuda_double_schedule(seed, most_delay_ns)
    _driver.cuda_double_queue_limit(queue_limit)


def pending(stream: Any = None) -> int:
    """The number of unfinished pieces of work on a stream (default: the current one)."""
    import torch

    stream = stream or torch.cuda.current_stream()
    with torch.cuda.device(stream.device):
        return _in_context(stream.device.index, lambda: _driver.cuda_double_pending(stream.cuda_stream or None))


def set_memory(device: int, total_bytes: int, taken_bytes: int = 0) -> None:
    """Sets the memory of a device, and the part of it that other processes hold."""
    _driver.cuda_double_memory(device, total_bytes, taken_bytes)


def fail(function: str, nth: int, result: int) -> None:
    """Makes the nth call from now of a driver function fail with `result` (0: each call until reset()); "work" means
    the nth piece of work."""
    _driver.cuda_double_fail(function.encode(), nth, result)


def last_error() -> int:
    """cudaGetLastError(): the last error of this thread's calls of the runtime, which is then forgotten."""
    return int(_double.torch_double_last_error())


def limit_pinned(total_bytes: int) -> None:
    """Sets the host memory that may be pinned; memory that is already pinned stays so."""
    _driver.cuda_double_limit_registered(total_bytes)


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """Stops all streams before their next piece of work, until the context ends."""
    _driver.cuda_double_hang(1)
    try:
        yield
    finally:
        _driver.cuda_double_hang(0)


def _in_context(device: int, call: Any) -> Any:
    context, popped = ctypes.c_void_p(), ctypes.c_void_p()
    _driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    _driver.cuCtxPushCurrent_v2(context)
    try:
        return call()
    finally:
        _driver.cuCtxPopCurrent_v2(ctypes.byref(popped))
        _driver.cuDevicePrimaryCtxRelease_v2(device)


# ---- the parts of torch that only a CUDA build has ------------------------------------------------


class _AfterLoading(importlib.abc.MetaPathFinder):
    """Completes a module of torch as soon as it is loaded, before torch's other modules read it."""

    def __init__(self, module: str, complete: Callable[[ModuleType], None]) -> None:
        self._module = module
        self._complete = complete

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load_module = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load_module(module)
                self._complete(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Cudart:
    """The object that torch.cuda.cudart() returns."""

    class cudaError(int):
        success = 0

    def __init__(self, c: ModuleType) -> None:
        self._c = c

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        return self._c._accelerator_getMemoryInfo(device)

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        return _double.torch_double_host_register(address, size_bytes, flags)

    def cudaHostUnregister(self, address: int) -> int:
        return _double.torch_double_host_unregister(address)

    def cudaGetErrorString(self, error: int) -> str:
        return f"CUDA error {int(error)}"


class _DeviceProperties:
    """The properties of an RTX 3090, with another name and memory."""

    major, minor, multi_processor_count, warp_size = 8, 6, 82, 32
    is_integrated, is_multi_gpu_board, gcnArchName = 0, 0, ""
    max_threads_per_multi_processor, regs_per_multiprocessor = 1536, 65536
    shared_memory_per_block, shared_memory_per_block_optin, shared_memory_per_multiprocessor = 49152, 101376, 102400
    L2_cache_size = 6291456

    def __init__(self, name: str, total_memory: int, uuid: str) -> None:
        self.name, self.total_memory, self.uuid = name, total_memory, uuid


class _Refused:
    """Stands for CUDA graphs, which the double refuses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the double of torch's CUDA has no graphs")


def _stream_base(c: ModuleType) -> type:
    """_CudaStreamBase, the base class of torch.cuda.Stream."""

    class StreamBase(c.Stream):
        def __new__(cls, priority: int = 0, **kwargs: Any) -> Any:
            if "stream_id" in kwargs:
                return c.Stream.__new__(cls, **kwargs)
            return c.Stream.__new__(cls, device=f"cuda:{c._accelerator_getDeviceIndex()}", priority=priority)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -1

    return StreamBase


def _event_base(c: ModuleType) -> type:
    """_CudaEventBase, the base class of torch.cuda.Event."""

    class EventBase:
        # Holds a torch.Event instead of deriving from it: torch.Event measures no time between subclasses.
        def __new__(cls, external: bool = False, **kwargs: Any) -> Any:
            made = super().__new__(cls)
            made._event = c.Event(device="cuda", **kwargs)
            return made

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def record(self, stream: Any) -> None:
            self._event.record(stream)

        def wait(self, stream: Any) -> None:
            self._event.wait(stream)

        def query(self) -> bool:
            return self._event.query()

        def synchronize(self) -> None:
            self._event.synchronize()

        def elapsed_time(self, other: Any) -> float:
            return self._event.elapsed_time(other._event)

        @property
        def device(self) -> Any:
            return self._event.device

        @property
        def cuda_event(self) -> int:
            return self._event.event_id

    return EventBase


def _initializer(c: ModuleType) -> Any:
    """The function that torch calls once, when it first needs a device."""

    def properties(device: int) -> _DeviceProperties:
        total_memory = c._accelerator_getMemoryInfo(device)[1]
        return _DeviceProperties(f"Double GPU {device}", total_memory, f"d0ub1e00-0000-0000-0000-{device:012}")

    def init() -> None:
        import torch

        generators = []
        for device in range(2):
            _double.torch_double_next_generator_is_default()
            generators.append(c.Generator(device=f"cuda:{device}"))
        torch.cuda.default_generators = tuple(generators)
        torch.cuda._get_device_properties = properties
        _make_storages_of_devices()

    return init


def _make_storages_of_devices() -> None:
    """Makes `torch.UntypedStorage(n, device="cuda")` work, which copies need and CPU builds refuse."""
    import torch

    construct = torch.UntypedStorage.__new__

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return construct(cls, *args, **kwargs) if device is None else construct(cls, *args, device=device, **kwargs)
        size_bytes = int(args[0]) if args else 0
        return torch.empty(size_bytes, dtype=torch.uint8, device=device).untyped_storage()

    torch.UntypedStorage.__new__ = staticmethod(new)


def _functions(c: ModuleType) -> dict[str, Any]:
    """The functions of CUDA builds, most of them made from torch's functions for any accelerator."""

    def stream_data(stream: Any) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, stream.device_type

    def current(device: int) -> Any:
        return c._accelerator_getStream(device)

    def set_fraction(fraction: float, device: int) -> None:
        total = c._accelerator_getMemoryInfo(device)[1]
        _double.torch_double_limit_reserved(device, int(fraction * total))

    main_process = os.getpid()
    return {
        "_cuda_init": _initializer(c),
        "_cuda_isInBadFork": lambda: os.getpid() != main_process,
        "_cuda_getDeviceCount": lambda: 2,
        "_cuda_getDriverVersion": lambda: 13000,
        "_cuda_getDevice": c._accelerator_getDeviceIndex,
        "_cuda_setDevice": c._accelerator_setDeviceIndex,
        "_cuda_exchangeDevice": c._accelerator_exchangeDevice,
        "_cuda_maybeExchangeDevice": c._accelerator_maybeExchangeDevice,
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_synchronize": lambda: c._accelerator_synchronizeDevice(c._accelerator_getDeviceIndex()),
        "_cuda_getCurrentStream": lambda device: stream_data(current(device)),
        "_cuda_getDefaultStream": lambda device: (0, device, current(device).device_type),
        "_cuda_getCurrentRawStream": lambda device: current(device).stream_id,
        "_cuda_setStream": lambda stream_id, device_index, device_type: c._accelerator_setStream(
            c.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        ),
        "_cuda_emptyCache": lambda *pool: c._accelerator_emptyCache(),
        "_cuda_memoryStats": c._accelerator_getDeviceStats,
        "_cuda_resetPeakMemoryStats": c._accelerator_resetPeakStats,
        "_cuda_resetAccumulatedMemoryStats": c._accelerator_resetAccumulatedStats,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_getArchFlags": lambda: "sm_86",
        "_cuda_ipc_collect": lambda: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_isCurrentStreamCapturing": lambda: False,
    }


def _complete(c: ModuleType) -> None:
    for name, function in _functions(c).items():
        setattr(c, name, function)
    c._CudaStreamBase, c._CudaEventBase, c._CudaDeviceProperties = _stream_base(c), _event_base(c), _DeviceProperties
    c._CUDAGraph, c._graph_pool_handle = type("_CUDAGraph", (_Refused,), {}), _Refused
    c._cudart, c._has_cuda = _Cudart(c), True


def _complete_storage(storage: ModuleType) -> None:
    resize_on_host = storage.UntypedStorage.resize_

    def resize_(self: Any, size_bytes: int) -> Any:
        if self.device.type != "cuda":
            return resize_on_host(self, size_bytes)
        if size_bytes == 0:
            _double.torch_double_empty_storage(self._cdata)
            return self
        if size_bytes < self.nbytes():
            raise RuntimeError("the double of torch's CUDA shrinks a storage to nothing only")
        import torch

        torch.empty(0, dtype=torch.uint8, device=self.device).set_(self, 0, (0,)).resize_(size_bytes)
        return self

    storage.UntypedStorage.resize_ = resize_
