"""The tape of a layer's forward under a selective technique: which operator made which storage.

C says which of the layer's saved tensors are dropped. During the call the tape, a dispatch
mode, records every write in place and every maker (an operator that can run again on its own),
with the position of its operands in their storages. When the layer has ended, the tape decides
which of the dropped storages the makers can recompute from parameters and from the layer's other
saved tensors. The remaining storages are kept. In backward, the makers that lead to a storage run
again when autograd asks for it, without autograd and below autocast: the same kernels read the
same bytes. No module is called and nothing random is repeated.

Nothing here holds a tensor that has a graph. The tickets of a dropped storage hold everything
that it is recomputed from. The last ticket releases it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..base.composites import Without
from ..base.environment import Modes
from ..base.modes import leave
from ..base.settings import Switches
from ..base.walk import tensors_of
from ..errors import IntegrationError
from ..model.isolation import note_reach
from ..model.reach import Reach
from ..tracing.tracer import is_maker

__all__ = ["Remade", "Tape"]

_VIEW, _WRITER, _MAKER, _OTHER = range(4)
_PLAIN = (torch.Tensor, torch.nn.Parameter)

# A tape checks once in this many operators whether its layer still runs, because nothing reports
# the end of a call that Ctrl-C interrupts.
_LOOK_EVERY = 256
_Kind = tuple[int, tuple[int, ...], tuple[str, ...]]


class _Unclear(Exception):
    """The tape can't record an operator's operands or results."""


class Remade:
    """The recomputed storages of one executor. They belong to one layer's call at a time: when
    backward asks for a tensor of another call, those of the call before are released.

    Args:
        lock: held while storages are recomputed or released.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self._layer: object = None
        self._values: weakref.WeakSet[_Value] = weakref.WeakSet()

    def enter(self, layer: object) -> None:
        """Backward asks for a tensor of `layer`, one call of a layer."""
        if layer is not self._layer:
            self.release()
            self._layer = layer

    def add(self, value: _Value, storage: torch.UntypedStorage) -> None:
        value.made = storage
        self._values.add(value)

    def release(self) -> None:
        """Releases all recomputed storages; a later request recomputes them."""
        with self.lock:
            for value in list(self._values):
                value.made = None
            self._values = weakref.WeakSet()
            self._layer = None


class _Value:
    """A storage, with its maker and its holder."""

    __slots__ = (
        "__weakref__",
        "held",
        "held_writes",
        "made",
        "maker",
        "nbytes",
        "probe",
        "reference",
        "ticket",
        "version",
        "writes",
    )

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.reference = weakref.ref(storage)
        self.nbytes = storage.nbytes()
        self.writes = 0
        self.maker: _Maker | None = None
        self.held: Any = None  # the handle of a saved tensor on it
        self.held_writes = 0
        self.probe: torch.Tensor | None = None  # an alias, if it is a parameter, buffer or input
        self.version = 0
        self.made: torch.UntypedStorage | None = None
        self.ticket: weakref.ref[_Ticket] | None = None

    def is_wanted(self) -> bool:
        """Whether a dropped saved tensor still refers to it."""
        return self.ticket is not None and self.ticket() is not None


class _Operand:
    """A tensor argument: a view of a storage at the time the operator read it."""

    __slots__ = ("dtype", "offset", "size", "stride", "value", "writes")

    def __init__(self, value: _Value, tensor: torch.Tensor) -> None:
        self.value = value
        self.writes = value.writes
        self.dtype = tensor.dtype
        self.size = tensor.shape
        self.stride = tensor.stride()
        self.offset = int(tensor.storage_offset())


class _Maker:
    """An operator that can run again, with its arguments and results."""

    __slots__ = ("args", "func", "index", "is_sound", "kwargs", "operands", "outputs")

    def __init__(self, func: Any, index: int) -> None:
        self.func = func
        self.index = index
        self.operands: list[_Operand] = []
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.outputs: list[tuple[weakref.ref[_Value], tuple[int, ...]]] = []
        self.is_sound = False


class Tape(TorchDispatchMode):
    """Records one call of a layer, between `begin()` and `end()`.

    Args:
        is_resident: whether a tensor's storage is a parameter's, a buffer's or an input's.
        is_running: whether the layer's call is still under way.
        remade: keeps the recomputed storages.
    """

    supports_higher_order_operators = True

    def __init__(
        self, is_resident: Callable[[torch.Tensor], bool], is_running: Callable[[], bool], remade: Remade
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_resident = is_resident
        self._is_running = is_running
        self._heard = 0
        self._remade = remade
        self._values: dict[int, _Value] = {}
        self._makers: list[_Maker] = []
        self._pending: dict[_Value, list[Any]] = {}
        self._is_noting = False
        self._call: _Call | None = None
        self._composites: Without | None = None

    def begin(self) -> None:
        """The call begins, on this thread."""
        self._call = _Call()
        self.__enter__()  # type: ignore[no-untyped-call]
        self._composites = Without(self)
        self._composites.start()
        self._is_noting = True

    def end(self) -> None:
        """The call has returned or raised: drops the storages that can be recomputed. Modes that were
        entered after this one stay on. An interrupted call can be repeated."""
        self._is_noting = False
        if self._composites is not None:
            self._composites.stop()
            self._composites = None  # it refers to the tape
        leave(self)
        self._settle()
        self._forget()

    def _forget(self) -> None:
        self._values = {}
        self._makers = []
        self._pending = {}

    # -- tensors that autograd saves: called from C -------------------------------------

    def dropped(self, handle: Any, storage: torch.UntypedStorage) -> None:
        """A saved tensor on a storage that the plan drops."""
        value = self._value_of_storage(storage)
        if value not in self._pending:
            value.held_writes = value.writes
        self._pending.setdefault(value, []).append(handle)

    def held(self, handle: Any, storage: torch.UntypedStorage) -> None:
        """A saved tensor on a storage that the plan keeps or moves."""
        value = self._value_of_storage(storage)
        if value.held is None:
            value.held = handle
            value.held_writes = value.writes

    # -- operators ----------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        if self._is_noting and self._still_runs():
            kind, places, names = _kinds.get(func) or _learn(func)
            if kind == _MAKER:
                self._note(func, args, kwargs or {}, result)
            elif kind == _WRITER:
                written = [args[place] for place in places if place < len(args)]
                written.extend(kwargs[name] for name in names if kwargs and name in kwargs)
                for tensor in tensors_of(written):
                    if tensor.layout is torch.strided:
                        self._value_of(tensor).writes += 1
        return result

    def _still_runs(self) -> bool:
        """Whether the call is still under way. An interrupted call is noticed some operators later;
        its saved tensors are kept."""
        self._heard += 1
        if self._heard % _LOOK_EVERY == 0 and not self._is_running():
            self._is_noting = False
            self._forget()
        return self._is_noting

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        maker = _Maker(func, len(self._makers))
        outputs = [result] if isinstance(result, torch.Tensor) else list(result)
        try:
            maker.args = tuple(self._freeze(value, maker) for value in args)
            maker.kwargs = {name: self._freeze(value, maker) for name, value in kwargs.items()}
            fresh = [self._fresh(tensor) for tensor in outputs]
        except _Unclear:
            return
        storages = {id(storage) for storage in fresh}
        if len(storages) != len(fresh):
            return
        for storage, tensor in zip(fresh, outputs, strict=True):
            value = self._values[storage._cdata] = _Value(storage)
            value.maker = maker
            maker.outputs.append((weakref.ref(value), tensor.stride()))
        self._makers.append(maker)

    def _fresh(self, tensor: Any) -> torch.UntypedStorage:
        """The storage of an operator's result. Raises `_Unclear` if the tape knows it already."""
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
            raise _Unclear
        storage: torch.UntypedStorage = tensor.untyped_storage()
        known = self._values.get(storage._cdata)
        if known is not None and known.reference() is storage:
            raise _Unclear
        return storage

    def _freeze(self, value: Any, maker: _Maker) -> Any:
        if isinstance(value, torch.Tensor):
            plain = type(value) in _PLAIN and value.layout is torch.strided
            if not plain or value.is_conj() or value.is_neg() or value.is_quantized:
                raise _Unclear
            operand = _Operand(self._value_of(value), value)
            maker.operands.append(operand)
            return operand
        if type(value) in (list, tuple):
            return [self._freeze(item, maker) for item in value]
        return value

    def _value_of(self, tensor: torch.Tensor) -> _Value:
        storage = tensor.untyped_storage()
        known = self._values.get(storage._cdata)
        if known is not None and known.reference() is storage:
            return known
        value = self._values[storage._cdata] = _Value(storage)
        if self._is_resident(tensor) and not tensor.is_inference():  # those have no version
            value.probe = _probe(tensor)
            value.version = value.probe._version
        return value

    def _value_of_storage(self, storage: torch.UntypedStorage) -> _Value:
        known = self._values.get(storage._cdata)
        if known is None or known.reference() is not storage:
            known = self._values[storage._cdata] = _Value(storage)
        return known

    # -- the end of the call --------------------------------------------------------------

    def _settle(self) -> None:
        for value, handles in self._pending.items():
            if value.maker is None:
                _stay(value, handles)
        for maker in self._makers:
            maker.is_sound = all(_is_there(operand) for operand in maker.operands)
            for reference, _ in maker.outputs:
                output = reference()
                if output is not None and output in self._pending and not _can_be_made(output):
                    _stay(output, self._pending[output])
        layer = self._call
        for value, handles in self._pending.items():
            if value.held is None and value.ticket is None:
                ticket = _Ticket(value, layer, self._remade)
                value.ticket = weakref.ref(ticket)
                for handle in handles:
                    handle.drop(ticket)


def _stay(value: _Value, handles: list[Any]) -> None:
    """Keeps the storage in memory, so that others may be recomputed from it."""
    value.held = handles[0]


def _can_be_made(value: _Value) -> bool:
    return value.maker is not None and value.maker.is_sound and value.writes == 0


def _is_there(operand: _Operand) -> bool:
    """Whether the bytes that an operator read will be available in backward."""
    value = operand.value
    if value.writes != operand.writes:
        return False
    if value.probe is not None:
        return value.writes == 0  # a call that writes to a buffer does so every time (spectral norm)
    if value.held is not None:
        return value.held_writes == operand.writes
    return _can_be_made(value)


# ---- backward ----------------------------------------------------------------------------


class _Call:
    """The switches and modes of one call of a layer, for its makers in backward."""

    __slots__ = ("_modes", "_switches")

    def __init__(self) -> None:
        self._switches = Switches()
        self._modes = Modes.now()

    def put(self, undo: Any) -> None:
        """Restores the switches and modes of the call; `undo` puts the present ones back."""
        self._switches.put(undo)
        left = self._modes.put(undo)
        if left:  # they see the operators again, and may count them
            note_reach(undo, Reach([], left))
        undo.later(torch._C._set_grad_enabled, torch.is_grad_enabled())
        torch._C._set_grad_enabled(False)


class _Ticket:
    """The stand-in for a dropped storage, which its handles hold instead of the bytes."""

    __slots__ = ("__weakref__", "_layer", "_remade", "_value")

    def __init__(self, value: _Value, layer: _Call | None, remade: Remade) -> None:
        self._value = value
        self._layer = layer
        self._remade = remade

    def __del__(self) -> None:
        self._value.made = None

    def give(self, undo: Any, dtype: torch.dtype, size: Any, stride: Any, offset: int) -> torch.Tensor:
        """A view of the storage, which is recomputed if need be. Called from C.

        Raises:
            IntegrationError: a tensor that it is recomputed from was changed meanwhile.
        """
        undo.hold(self._remade.lock)
        self._remade.enter(self._layer)
        storage = self._value.made
        if storage is None:
            if self._layer is not None:
                self._layer.put(undo)
            storage = _make(self._value, self._remade)
        return _view(storage, dtype, size, stride, offset)


def _view(storage: torch.UntypedStorage, dtype: torch.dtype, size: Any, stride: Any, offset: int) -> torch.Tensor:
    empty = torch.empty((0,), dtype=dtype, device=storage.device)
    return empty.set_(storage, offset, size, stride)


def _needed(wanted: _Value) -> list[_Maker]:
    """The makers that lead from available storages to `wanted`, in the order of the forward."""
    found: dict[int, _Maker] = {}
    open_values = [wanted]
    while open_values:
        maker = open_values.pop().maker
        if maker is None:
            raise IntegrationError("a saved tensor can't be recomputed: no operator on the tape made it")
        if maker.index in found:
            continue
        found[maker.index] = maker
        for operand in maker.operands:
            value = operand.value
            if value.made is None and value.probe is None and value.held is None:
                open_values.append(value)
    return [found[index] for index in sorted(found)]


def _make(wanted: _Value, remade: Remade) -> torch.UntypedStorage:
    makers = _needed(wanted)
    last_reader = {operand.value: maker for maker in makers for operand in maker.operands}
    made: dict[_Value, torch.UntypedStorage] = {}
    result = None
    with torch._C._DisableAutocast():  # the tape records operators below autocast
        for maker in makers:
            for value, storage in _run(maker, made):
                if value is wanted:
                    result = storage
                if value.is_wanted():
                    remade.add(value, storage)
                if value in last_reader:
                    made[value] = storage
            for operand in maker.operands:
                if last_reader[operand.value] is maker:
                    made.pop(operand.value, None)
    if result is None:
        raise IntegrationError("a saved tensor was recomputed, but not by the operator that made it in forward")
    return result


def _run(maker: _Maker, made: dict[_Value, torch.UntypedStorage]) -> list[tuple[_Value, torch.UntypedStorage]]:
    args = [_thaw(value, made) for value in maker.args]
    kwargs = {name: _thaw(value, made) for name, value in maker.kwargs.items()}
    result = maker.func(*args, **kwargs)
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    pairs = []
    for (reference, stride), tensor in zip(maker.outputs, outputs, strict=True):
        value = reference()
        if value is None:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() != value.nbytes or tensor.stride() != stride:
            raise IntegrationError(f"{maker.func} gave another layout when it ran again than in forward")
        pairs.append((value, storage))
    return pairs


def _thaw(value: Any, made: dict[_Value, torch.UntypedStorage]) -> Any:
    if type(value) is _Operand:
        storage = made.get(value.value)
        if storage is None:
            storage = _bytes_of(value.value)
        return _view(storage, value.dtype, value.size, value.stride, value.offset)
    if type(value) is list:
        return [_thaw(item, made) for item in value]
    return value


def _bytes_of(value: _Value) -> torch.UntypedStorage:
    """The bytes of a storage that is available without a maker."""
    if value.made is not None:
        return value.made
    if value.probe is not None:
        if value.probe._version != value.version:
            raise IntegrationError(
                "a parameter, buffer or input was changed in place between forward and backward, so a saved tensor "
                "can't be recomputed from it; run backward before the change, or set enable_checkpointing=False"
            )
        return value.probe.untyped_storage()
    storage: torch.UntypedStorage = value.held.unpack().untyped_storage()
    if storage.nbytes() != value.nbytes:
        raise IntegrationError("a saved tensor has another size when it is recomputed than it had in forward")
    return storage


# ---- operators -----------------------------------------------------------------------------

_kinds: dict[Any, _Kind] = {}


def _learn(func: Any) -> _Kind:
    schema = getattr(func, "_schema", None)
    if schema is None:
        kind: _Kind = (_OTHER, (), ())
    elif schema.is_mutable:
        written = [
            (place, item)
            for place, item in enumerate(schema.arguments)
            if item.alias_info is not None and item.alias_info.is_write
        ]
        places = tuple(place for place, item in written if not item.kwarg_only)
        kind = (_WRITER, places, tuple(item.name for _, item in written))
    elif is_maker(func):
        kind = (_MAKER, (), ())
    else:
        kind = (_VIEW if func.is_view else _OTHER, (), ())
    _kinds[func] = kind
    return kind


def _probe(tensor: torch.Tensor) -> torch.Tensor:
    """An alias without a graph that shares the version counter; detach() runs below autograd for that."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()
