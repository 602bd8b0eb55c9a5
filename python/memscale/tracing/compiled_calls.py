"""Measures what a compiled layer saves for backward, and how much memory and time it takes.

A trace runs compiled layers as written, because no mode may be on at compiled code; but compiled code saves other
tensors than that, and frees others. So the trace notes how each layer is called. After it, one call of each kind is run
for real, forward and backward, on tensors of the same shapes, in the state that the model is in. Saved-tensor hooks see
what is saved, and the allocator's counters see the peaks. C puts that into the graph (`ms_graph_measure()`).

The layer is compiled by this for the step that is about to run, and for nothing else: a call has the guards of the
step's own. Random states, buffers, attributes and globals are restored after each call. No hook of memscale's acts, and
parameters get no gradient. `Session` calls this after each trace of a step that is about to run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import torch

from .. import _core
from ..base.arguments import Pattern, plain_tensors
from ..base.aside import standing_aside
from ..base.compiler import compiler_of, is_compiled
from ..device import AUTOCAST_KINDS, RandomState, kind_of
from ..model.isolation import Snapshot, note_reach
from ..model.reach import Reach

__all__ = ["CompiledCalls", "MeasuredCalls"]

_log = logging.getLogger("memscale")

_KNOWN_MOST = 256
"""Kinds of calls whose measurements are kept; the oldest go first."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Layout(NamedTuple):
    """A tensor argument without its bytes. Arguments that share a storage have the same number."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    needs_gradient: bool
    storage: int


class _Storage(NamedTuple):
    """An argument's storage. `place`: among the inputs of the layer's profile; -1 if it is none of them."""

    bytes: int
    place: int


class _Call(NamedTuple):
    """One call of a layer in a traced step."""

    module: torch.nn.Module
    pattern: Pattern
    storages: list[_Storage]
    has_gradients: bool
    autocast: tuple[tuple[str, torch.dtype], ...]


class _Run(NamedTuple):
    """What one call did, in the order of `graph_measure`, but with numbers of storages for the saved arguments."""

    inputs: list[int]
    outputs: list[int]
    made: list[int]
    live_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    forward_ns: int
    backward_ns: int


class _Unfit(Exception):
    """The call can't be repeated apart from its step; the text says why."""


class CompiledCalls:
    """How layers were called in one trace, which notes the calls.

    Attributes:
        has_compiled: whether any of the layers' code is compiled.
    """

    def __init__(self) -> None:
        self.calls: dict[tuple[str, int], _Call] = {}
        self.has_compiled = False

    def note(
        self,
        name: str,
        call: int,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        places: dict[int, int],
    ) -> None:
        """A layer is about to run. No tensor is kept.

        Args:
            places: the places of storages among the layer's inputs, by address.
        """
        numbers: dict[int, int] = {}
        storages: list[_Storage] = []

        def layout(tensor: torch.Tensor) -> _Layout | None:
            if isinstance(tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
                return None
            storage = tensor.untyped_storage()
            number = numbers.setdefault(storage._cdata, len(storages))
            if number == len(storages):
                storages.append(_Storage(storage.nbytes(), places.get(storage._cdata, -1)))
            return _Layout(
                tuple(tensor.shape),
                tensor.stride(),
                int(tensor.storage_offset()),
                tensor.dtype,
                tensor.device,
                tensor.requires_grad,
                number,
            )

        pattern = Pattern.of(args, kwargs, layout)
        if pattern is None or None in pattern.leaves:
            return
        autocast = tuple(
            (kind, torch.get_autocast_dtype(kind)) for kind in AUTOCAST_KINDS if torch.is_autocast_enabled(kind)
        )
        self.calls[name, call] = _Call(module, pattern, storages, torch.is_grad_enabled(), autocast)


class MeasuredCalls:
    """Runs calls of compiled layers and keeps what they did, as long as a model is wrapped.

    A call is run once for each kind: work of its operators, class of the layer, compiler, arguments, autocast and
    version of torch. A model's first and last layers are of the same kind as those between, though their profiles
    differ. Only the thread that runs the model's forward uses it.
    """

    def __init__(self) -> None:
        self._known: dict[Any, _Run | None] = {}

    def put_into(self, graph: str, calls: CompiledCalls, device: torch.device, is_training: bool) -> str:
        """The graph with what its compiled layers do. A layer that can't be measured stays as it was traced; the debug
        log says why.

        Args:
            device: the device whose memory is planned.
            is_training: False if the model has yet to be set to training mode.
        """
        document = json.loads(graph)
        found = []
        for node in document["nodes"]:
            if "compiled" not in node["flags"] or "measured" in node["flags"]:
                continue
            key = node["name"], node["call"]
            call = calls.calls.get(key)
            if call is None:
                _log.debug("layer %s: its arguments are not plain; its code as written is planned", node["name"])
                continue
            run = self._run_of(node, document["profiles"][node["profile"]], call, device, is_training)
            if run is not None:
                found.append((*key, _places(run, call), *run[1:]))
        return _core.graph_measure(graph, found, kind_of(device).is_host) if found else graph

    def _run_of(
        self, node: dict[str, Any], profile: dict[str, Any], call: _Call, device: torch.device, is_training: bool
    ) -> _Run | None:
        key = _work_of(profile), _kind_of_call(call)
        if key in self._known:
            return self._known[key]
        run = None
        try:
            if {"mutates_input", "opaque_argument", "unhookable"} & set(node["flags"]):
                raise _Unfit("it changes its arguments, or they are not plain")
            run = _measure(call, device, is_training)
        except Exception as error:  # of the layer or its compiler: the step itself meets it again
            _log.debug("layer %s: what its compiled code saves is not known: %s", node["name"], str(error))
        while len(self._known) >= _KNOWN_MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = run
        return run


def _places(run: _Run, call: _Call) -> list[int]:
    """The saved arguments among the inputs of this layer's profile."""
    places = (call.storages[number].place for number in run.inputs)
    return [place for place in places if place >= 0]


def _work_of(profile: dict[str, Any]) -> str:
    """What the layer's operators compute as written, whatever is alive around the layer."""
    return json.dumps([[event for event in profile[which] if event[0] == "work"] for which in ("forward", "backward")])


def _kind_of_call(call: _Call) -> tuple[Any, ...]:
    """What decides, beside its operators' work, how a layer is compiled."""
    compiler = compiler_of(call.module) if is_compiled(call.module) else None
    backend: Any = getattr(compiler, "callback", None)
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    name = getattr(backend, "compiler_name", backend)
    return (
        type(call.module),
        name,
        repr(getattr(backend, "config", None)),
        repr(call.pattern),
        call.autocast,
        call.has_gradients,
        torch.get_num_threads(),
        torch.__version__,
    )


# ---- one call ---------------------------------------------------------------------------------


def _measure(call: _Call, device: torch.device, is_training: bool) -> _Run:
    """Runs a call twice. The first run compiles the layer and is not measured.

    Raises:
        Exception: whatever the layer or its compiler raises.
    """
    if any(getattr(inner, name) for inner in call.module.modules() for name in _HOOKS if hasattr(inner, name)):
        raise _Unfit("it has hooks")
    runs = [standing_aside(lambda: _core.guarded(_run, call, device, is_training)) for _ in range(2)]
    return cast("_Run", runs[-1])


def _run(undo: Any, call: _Call, device: torch.device, is_training: bool) -> _Run:
    module = call.module
    reach = Reach(list(module.modules()))
    if reach.obstacle is not None:
        raise _Unfit(reach.obstacle)
    undo.later(torch.clear_autocast_cache)
    RandomState().later(undo)
    Snapshot(module, undo)
    note_reach(undo, reach)
    for buffer in module.buffers():
        undo.later(buffer.data.copy_, buffer.detach().clone())  # as data: no graph of an earlier forward minds
    for parameter in module.parameters():
        if parameter._backward_hooks:
            undo.content(parameter._backward_hooks)
            parameter._backward_hooks.clear()
    if not is_training:
        module.train()
    return _Meter(module, device).run(call)


class _Meter:
    """Runs a call between readings of memory and clock."""

    def __init__(self, module: torch.nn.Module, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._kind = kind_of(device)
        self._saved: dict[int, int] = {}  # bytes by address, in the order of saving

    def run(self, call: _Call) -> _Run:
        given = _tensors(call)
        args, kwargs = call.pattern.filled(given)
        numbers = dict(zip(map(_address, given), [leaf.storage for leaf in call.pattern.leaves], strict=True))
        # Of a layer that runs as written in spite of all, torch would compile the hooks.
        hooks = torch.compiler.disable(self._pack), torch.compiler.disable(lambda tensor: tensor)
        with _environment(call):
            before = self._begin()
            begun = time.perf_counter_ns()
            with torch.autograd.graph.saved_tensors_hooks(*hooks):
                output = self._module(*args, **kwargs)
            self._kind.synchronize()
            forward_ns = time.perf_counter_ns() - begun
        live, peak = self._kind.tensor_bytes(self._device)
        inputs, outputs, made = self._sorted(numbers, {_address(tensor) for tensor in plain_tensors(output)})
        wanted = [tensor for tensor in (*given, *self._module.parameters()) if tensor.requires_grad]
        roots = [tensor for tensor in plain_tensors(output) if tensor.requires_grad]
        gradients = [torch.zeros_like(root) for root in roots]
        at_backward = self._begin()
        begun = time.perf_counter_ns()
        if roots and wanted:
            torch.autograd.grad(roots, wanted, gradients, allow_unused=True)
            self._kind.synchronize()
        backward_ns = time.perf_counter_ns() - begun
        _, backward_peak = self._kind.tensor_bytes(self._device)
        return _Run(
            inputs,
            outputs,
            made,
            max(live - before, 0),
            max(peak - before, 0),
            max(backward_peak - at_backward, 0),
            forward_ns,
            backward_ns,
        )

    def _begin(self) -> int:
        self._kind.synchronize()
        self._kind.reset_tensor_peak(self._device)
        return self._kind.tensor_bytes(self._device)[0]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            raise _Unfit("it saves a tensor of another layout than strided")
        self._saved.setdefault(_address(tensor), tensor.untyped_storage().nbytes())
        return tensor.detach() if tensor.grad_fn is not None else tensor

    def _sorted(self, numbers: dict[int, int], returned: set[int]) -> tuple[list[int], list[int], list[int]]:
        """The saved storages: numbers of arguments, bytes of outputs, bytes of the others. Parameters and buffers stay
        anyway."""
        own = {_address(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())}
        inputs: list[int] = []
        outputs: list[int] = []
        made: list[int] = []
        for address, size in self._saved.items():
            if address in own:
                continue
            if address in numbers:
                inputs.append(numbers[address])
            else:
                (outputs if address in returned else made).append(size)
        return inputs, outputs, made


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(call: _Call) -> list[torch.Tensor]:
    """A tensor for each argument: zeros, or True for masks, whose graph ends one step before, as in the real step."""
    leaves: list[_Layout] = call.pattern.leaves
    made: dict[int, torch.UntypedStorage] = {}
    tensors = []
    for leaf in leaves:
        if leaf.storage not in made:
            size = call.storages[leaf.storage].bytes
            made[leaf.storage] = torch.UntypedStorage(size, device=leaf.device)
            made[leaf.storage].fill_(leaf.dtype is torch.bool)  # type: ignore[attr-defined]
        if leaf.needs_gradient:
            start = torch.empty(0, device=leaf.device, requires_grad=True)
            tensors.append(_Made.apply(start, leaf, made[leaf.storage]))  # type: ignore[no-untyped-call]
        else:
            tensors.append(_over(made[leaf.storage], leaf))
    return tensors


def _over(storage: torch.UntypedStorage, leaf: _Layout) -> torch.Tensor:
    with torch.no_grad():
        tensor = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        return tensor.set_(storage, leaf.offset, leaf.size, leaf.stride)


class _Made(torch.autograd.Function):
    """Makes a tensor that is the result of an operator, not a leaf and not a view."""

    @staticmethod
    def forward(ctx: Any, start: torch.Tensor, leaf: _Layout, storage: torch.UntypedStorage) -> torch.Tensor:
        return _over(storage, leaf)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        return None, None, None


@contextmanager
def _environment(call: _Call) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in AUTOCAST_KINDS:
            dtype = dict(call.autocast).get(kind)
            if dtype is not None or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None))
        stack.enter_context(torch.set_grad_enabled(call.has_gradients))
        yield
