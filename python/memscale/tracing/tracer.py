"""Reports one training step to the C tracer, event by event.

`LiveTracer` sees every operator through torch's dispatcher. It reports to C the births and deaths of
storages, and the operators' work. The owner of the hooks tells the tracer when layers begin and end, and
which tensors autograd packs and unpacks. The static profiler (`profiler.py`) runs it on fake tensors,
and the executor on the real tensors of its warm-up steps. It only reports; C adds up and concludes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _core
from ..base.arguments import Arguments, plain_tensors
from ..base.compiler import is_compiled
from ..base.divided import part_of, shard_type
from ..base.modes import begin_below, leave
from ..base.walk import first_output, is_training, plain_leaves, shape_of, tensors_of, version_of
from ..model.placement import Placement, device_of

__all__ = ["NO_NODE", "LiveTracer", "is_maker"]

_CHANNELS_LAST, _ON_GPU, _UNFOLDS = 1 << 31, 1 << 30, 1 << 29  # MS_WORKSPACE_CHANNELS_LAST, _GPU, _UNFOLDS
_HALF_TYPES = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}

# Of results, as C numbers them; all others are 0.
_ELEMENTS = {torch.bool: 1, torch.bfloat16: 2, torch.float16: 3}

NO_NODE = 0xFFFFFFFF
"""The node that `saved()` returns while the tracer is not listening."""


class _Operator(NamedTuple):
    """The facts about an operator, computed once per trace."""

    run: Callable[..., Any]
    name: str
    silent: bool  # a view, or not a tensor operator; it is not reported
    mutable: bool
    random: bool
    takes_workspace: bool = False
    converts: bool = False
    copies: bool = False  # operands that are not contiguous, first
    maker: bool = False  # it can run again on its own
    adds: bool = False
    written: tuple[int, ...] = ()  # arguments that it writes to, by position
    written_names: tuple[str, ...] = ()  # arguments that it writes to, by name


class _Watch(weakref.ref[torch.UntypedStorage]):
    """A storage under observation; calls back when it dies."""

    __slots__ = ("key", "size")
    key: int
    size: int


class _Frame:
    """A record of a layer's arguments, parameters and buffers while it runs."""

    __slots__ = ("buffers", "is_compiled", "leaves", "node", "parameter_keys", "parameters", "versions")

    def __init__(self, node: int, leaves: list[Any], module: torch.nn.Module, buffers: list[_Buffer]) -> None:
        self.node = node
        self.is_compiled = False
        self.leaves = leaves
        self.versions = [version_of(leaf) for leaf in leaves]
        self.parameters = [(parameter, _state_of(parameter)) for parameter in module.parameters()]
        self.parameter_keys = {key for _, (_, keys) in self.parameters for key in keys}
        self.buffers = [(buffer, buffer.value(), version_of(buffer.value())) for buffer in buffers]


class _Buffer(NamedTuple):
    module: torch.nn.Module
    name: str

    def value(self) -> torch.Tensor | None:
        return self.module._buffers.get(self.name)


class LiveTracer(TorchDispatchMode):
    """One traced step. Use it once; finish it or discard it.

    Args:
        model: class name of the root module, for the graph.
        signature: text of the input shapes and dtypes, for the graph.
        source: ``"static"`` or ``"empirical"``.
        kernels: functions to run in place of operators, by operator.
        placement: the device whose storages are reported, if the model lies on several.
        elsewhere: names of the layers that compute on other devices.

    The order of calls: `resident_*()`; `start()`; the root's forward with `enter()` and
    `leave()` around each layer and `saved()` for each packed tensor; `outputs()`;
    `phase("loss")`; `phase("backward")`; the backward with `unpacked()` and `dropped()`;
    `gradients()`; optionally `phase("optimizer")`; `phase("done")`; `stop()`; `finish()`.

    Attributes:
        has_compiled: whether compiled code ran in a layer.
        places: of the layer entered last: its arguments' storages and their places among its inputs, -1 for none.

    Not thread-safe, but storages may die on any thread that holds the interpreter lock.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        model: str,
        signature: str,
        source: str,
        kernels: Mapping[Any, Callable[..., Any]] | None = None,
        placement: Placement | None = None,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kernels = kernels or {}
        self._trace = _core.Trace(model, signature, source, torch.get_num_threads(), placement is not None)
        self._device = None if placement is None else placement.device
        self._elsewhere = elsewhere
        self._operators: dict[Any, _Operator] = {}
        self._watched: dict[int, _Watch] = {}
        self._buffers_of: dict[int, list[_Buffer]] = {}
        self._calls: dict[str, int] = {}
        self._frame: _Frame | None = None
        self._nesting = 0
        self._previous: tuple[int, weakref.ref[torch.Tensor]] | None = None
        self.places: dict[int, int] = {}
        self.has_compiled = False
        self._paused = 0
        self._phase = "forward"
        self._finished = False
        self._error: BaseException | None = None
        self._divided = shard_type()

    def calls_of(self, name: str) -> int:
        """The number of calls of a layer so far, the one under way included."""
        return self._calls.get(name, 0)

    # -- tensors from before the step ------------------------------------------------

    def resident_parameters(self, parameters: Iterable[torch.Tensor]) -> None:
        """Reports parameters. They are counted by storage, and no event includes them."""
        for parameter in parameters:
            self._resident(parameter, "parameter", parameter.requires_grad)

    def expect_8bit_state(self, parameters: Iterable[torch.Tensor]) -> None:
        """Reports that an AdamW with 8-bit moments, which is not traced, will step these parameters."""
        for parameter in parameters:
            if parameter.requires_grad and self._is_here(parameter):
                self._trace.expect_adamw(part_of(parameter).numel(), 8, parameter.dtype is torch.bfloat16)

    def resident_buffers(self, buffers: Iterable[torch.Tensor]) -> None:
        """Reports buffers, and tensors that modules hold as plain attributes."""
        for buffer in buffers:
            self._resident(buffer, "buffer", False)

    def resident_batch(self, tensors: Iterable[torch.Tensor]) -> None:
        """Reports the caller's input tensors."""
        for tensor in tensors:
            self._resident(tensor, "batch", False)

    def _counted(self, tensor: torch.Tensor) -> Iterable[torch.UntypedStorage]:
        """The storages of a tensor that count; see `_storages()`. Those on other devices don't."""
        return _storages(tensor) if self._is_here(tensor) else ()

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return self._device is None or device_of(tensor) == self._device

    def _resident(self, tensor: torch.Tensor, role: str, trainable: bool) -> None:
        for storage in self._counted(tensor):
            key = storage._cdata
            if key not in self._watched:
                self._watch(storage, key)
            self._trace.resident(key, storage.nbytes(), tensor.element_size(), role, trainable)

    # -- operators --------------------------------------------------------------------

    def start(self) -> None:
        """Begins to listen to operators. A mode of the caller's that is already on may end before `stop()`."""
        begin_below(self)

    def stop(self) -> None:
        """Stops listening; modes begun later stay on. Does nothing if the mode was already removed."""
        leave(self)

    @property
    def is_forward(self) -> bool:
        """Whether the model's forward runs now, and its operators are reported."""
        return self._phase == "forward" and not self._paused

    def pause(self) -> None:
        """Stops reports of operators and layers until `resume()`. Deaths of storages are still reported. Calls nest."""
        self._paused += 1

    def resume(self) -> None:
        """Undoes one `pause()`."""
        self._paused -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._divided in types:
            return NotImplemented  # DTensor runs operators on the parts, which come here
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = _describe(func, self._kernels.get(func, func))
        result = operator.run(*args, **kwargs) if kwargs else operator.run(*args)
        if not (operator.silent or self._paused):
            self._report(operator, args, kwargs, result)
        return result

    def _report(self, operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any] | None, result: Any) -> None:
        if operator.adds and self._phase == "backward":
            self._tell_sum(*args)
        outputs = []
        made = []
        is_new = False
        all_new = True
        for tensor in tensors_of(result):
            for storage in self._counted(tensor):
                new = self._see(storage, operator.mutable)
                is_new |= new
                all_new &= new
                made.append(storage._cdata)
            outputs.append((shape_of(tensor), _bytes(tensor), _ELEMENTS.get(tensor.dtype, 0)))
        is_elsewhere = self._device is not None and not made and _makes_storages(args, result)
        if not is_new and not operator.mutable and not is_elsewhere:
            return  # a view, although the operator is not declared as one
        operands = [(shape_of(tensor), _bytes(tensor)) for tensor in tensors_of(args)]
        if kwargs:
            operands.extend((shape_of(tensor), _bytes(tensor)) for tensor in tensors_of(kwargs.values()))
        copied = _copied(operator, args, result) if operator.takes_workspace and not is_elsewhere else None
        if self._device is not None:
            self._trace.moves(_moved_bytes(args, result))
        self._trace.op(_name_of(operator, kwargs), tuple(operands), tuple(outputs), copied)
        if self._frame is not None:
            if operator.mutable:
                self._tell_written(operator, args, kwargs)
            elif all_new and made:
                self._trace.made(_keys(args, kwargs), tuple(made), operator.maker)
        if operator.random and self._phase == "forward":
            self._trace.flag(self._trace.current(), "uses_rng")

    def _tell_written(self, operator: _Operator, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        written = [args[place] for place in operator.written if place < len(args)]
        written.extend(kwargs[name] for name in operator.written_names if kwargs and name in kwargs)
        for tensor in tensors_of(written):
            for storage in self._counted(tensor):
                self._trace.wrote(storage._cdata)
                if self._frame is not None and storage._cdata in self._frame.parameter_keys:
                    self._trace.flag(self._frame.node, "mutates_input")  # through .data, which no version shows

    def _tell_sum(self, gradient: Any, other: Any) -> None:
        """Reports that autograd may be adding two gradients. In a real step autograd writes the sum over the first
        gradient, unless that is a view (something else holds its base). Under a dispatch mode, as in a trace, it
        never does, so C must know."""
        if not torch.is_grad_enabled() and isinstance(other, torch.Tensor) and not gradient._is_view():
            pair = [storage for tensor in (gradient, other) for storage in self._counted(tensor)]
            if len(pair) == 2:
                self._trace.adds(pair[0]._cdata, pair[1]._cdata)

    def _see(self, storage: torch.UntypedStorage, may_resize: bool) -> bool:
        """Reports a storage that is seen for the first time, or was resized. Returns whether it was either."""
        key = storage._cdata
        watch = self._watched.get(key)
        if watch is None:
            self._trace.born(key, self._watch(storage, key).size)
            return True
        if may_resize and watch.size != storage.nbytes():
            watch.size = storage.nbytes()
            self._trace.died(key)
            self._trace.born(key, watch.size)
            return True
        return False

    def born(self, tensor: torch.Tensor) -> None:
        """Reports a tensor whose operator was not seen."""
        if not self._paused and not self._finished:
            for storage in self._counted(tensor):
                self._see(storage, False)

    def _watch(self, storage: torch.UntypedStorage, key: int) -> _Watch:
        watch = _Watch(storage, self._on_death)
        watch.key = key
        watch.size = storage.nbytes()
        self._watched[key] = watch
        return watch

    def _on_death(self, watch: _Watch) -> None:
        # A new storage may have taken the address before this ran.
        if self._watched.get(watch.key) is watch:
            del self._watched[watch.key]
            self._tell(self._trace.died, watch.key)

    def _tell(self, report: Any, *values: int) -> None:
        """Reports from a destructor. An error is stored, because no caller could catch it."""
        if self._finished:
            return
        try:
            report(*values)
        except Exception as error:
            self._error = self._error or error

    def alive(self) -> int:
        """How many of the storages seen are still alive."""
        return sum(1 for watch in list(self._watched.values()) if watch() is not None)

    # -- layers -----------------------------------------------------------------------

    def enter(self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        """A layer's call begins. Every call needs a matching `leave()`.

        Returns the call's node. Calls inside another layer, outside the forward and its loss, or while
        paused have none and get None.
        """
        if self._nesting or self._paused or self._phase not in ("forward", "loss"):
            self._nesting += 1
            return None
        self._nesting = 1
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        node = self._trace.enter(name, call)
        leaves = list(plain_leaves((args, kwargs)))
        self.places = {
            storage._cdata: self._trace.input(storage._cdata)
            for tensor in plain_tensors((args, kwargs))
            for storage in self._counted(tensor)
        }
        if name in self._elsewhere:
            self._trace.flag(node, "elsewhere")
            self._hold_arguments(args, kwargs)
        if Arguments.freeze(args, kwargs) is None:
            self._trace.flag(node, "opaque_argument")
        if args and self._previous is not None and self._previous[1]() is args[0]:
            self._trace.flag(self._previous[0], "chained")
        self._previous = None
        self._frame = _Frame(node, leaves, module, self._buffers(module))
        if is_compiled(module):
            self.compiled_code()
        if any(_updates_statistics(submodule) for submodule in module.modules()):
            self._trace.flag(node, "updates_buffers")
        return node

    def _hold_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A layer on another device begins. If that device's plan recomputes it, its arguments are held until its
        backward. So those that lie here count as saved until the gradient of an argument is there, in every plan; if
        no argument gets one, until the end of backward."""
        tensors = plain_tensors((args, kwargs))
        held = [self.saved(tensor) for tensor in tensors if self._is_here(tensor)]

        def layer_ended(_: torch.Tensor) -> None:
            while held:
                self.dropped(*held.pop())

        differentiable = next((tensor for tensor in tensors if tensor.requires_grad), None)
        if held and differentiable is not None:
            differentiable.register_hook(layer_ended)

    @property
    def is_in_compiled_layer(self) -> bool:
        """Whether a layer runs whose code, or a part of it that has begun, is compiled."""
        return self._frame is not None and self._frame.is_compiled

    def compiled_code(self) -> None:
        """Code that torch.compile has compiled is about to run. A layer that it is a part of is told apart."""
        if self._frame is not None and not self._paused:
            self._trace.flag(self._frame.node, "compiled")
            self._frame.is_compiled = self.has_compiled = True

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The call ends; `output` is None if it raised."""
        self._nesting -= 1
        frame = self._frame
        if self._nesting or frame is None:
            return
        self._frame = None
        wrote = any(_state_of(parameter) != before for parameter, before in frame.parameters)
        if wrote or _changed(frame, list(plain_leaves((args, kwargs)))):
            self._trace.flag(frame.node, "mutates_input")
        for buffer, value, version in frame.buffers:
            if buffer.value() is not value or version_of(value) != version:
                self._trace.flag(frame.node, "updates_buffers")
        self._trace.leave()
        first = first_output(output)
        self._previous = (frame.node, weakref.ref(first)) if first is not None else None

    def _buffers(self, module: torch.nn.Module) -> list[_Buffer]:
        known = self._buffers_of.get(id(module))
        if known is None:
            known = [_Buffer(inner, name) for inner in module.modules() for name in inner._buffers]
            self._buffers_of[id(module)] = known
        return known

    # -- saved tensors ----------------------------------------------------------------

    def saved(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Autograd packs a tensor. Returns the node that saves it and its serial, 0 if it is not tracked."""
        if self._paused or self._finished:
            return NO_NODE, 0
        for storage in self._counted(tensor):
            return self._trace.saved(storage._cdata)
        return NO_NODE, 0

    def unpacked(self, node: int, serial: int, copy: torch.UntypedStorage | None = None) -> None:
        """Autograd unpacks a saved tensor. `copy` is a storage that replaces the original, if any does."""
        if self._finished:
            return
        key = 0
        if copy is not None:
            key = copy._cdata
            if key not in self._watched:
                self._watch(copy, key)
        self._trace.unpacked(node, serial, key)

    def given(self, node: int, serial: int, tensor: torch.Tensor) -> None:
        """Autograd gets an unpacked tensor, whose storage may be a copy of the one that was saved."""
        for storage in self._counted(tensor):
            if storage._cdata not in self._watched:
                self.unpacked(node, serial, storage)

    def dropped(self, node: int, serial: int) -> None:
        """Autograd has released a saved tensor. May be called from a destructor."""
        if serial:
            self._tell(self._trace.dropped, node, serial)

    # -- the model's own cross entropy ------------------------------------------------

    def loss(self, logits: torch.Tensor) -> int:
        """A cross entropy over rows of logits begins, outside of layers. Returns its number, 0 if
        there is nothing to mark. Call `loss_ended()` after it."""
        if self._paused or self._nesting or self._phase != "forward" or not logits.requires_grad:
            return 0
        if not self._is_here(logits):
            return 0
        return self._trace.loss(logits.untyped_storage()._cdata)

    def loss_ended(self, number: int, logits: torch.Tensor, value: torch.Tensor) -> None:
        """The cross entropy has returned `value`. Hooks on both tensors follow its backward."""
        if number == 0 or not value.requires_grad:
            return
        trace = self._trace
        trace.loss_end(number)
        value.register_hook(lambda _: trace.loss_backward(number))
        logits.register_hook(lambda gradient: trace.loss_backward_end(number, gradient.untyped_storage()._cdata))

    def head(self, made: torch.Tensor, hidden: torch.Tensor) -> int:
        """A linear layer, outside of layers, has made `made` of `hidden`, which may be logits. Returns its
        number, 0 if there is nothing to mark. It counts as a head only if `head_used()` is called."""
        if self._paused or self._nesting or self._phase != "forward" or made.grad_fn is None:
            return 0
        if not (self._is_here(made) and self._is_here(hidden)):
            return 0
        trace = self._trace
        number = trace.head(made.untyped_storage()._cdata)
        if number:
            made.grad_fn.register_prehook(lambda _: trace.head_backward(number))
            hidden.register_hook(lambda gradient: trace.head_backward_end(number, gradient.untyped_storage()._cdata))
        return number

    def head_used(self, head: int, loss: int) -> None:
        """The head's result was used by this cross entropy alone. Both arguments are numbers, of `head()` and
        `loss()`."""
        if head and loss:
            self._trace.head_used(head, loss)

    # -- phases and roles -------------------------------------------------------------

    def phase(self, name: str) -> None:
        """The phase ``"loss"``, ``"backward"``, ``"optimizer"`` or ``"done"`` begins."""
        self._trace.phase(name)
        self._phase = name

    def outputs(self, result: Any) -> None:
        """Reports the storages that the root's forward returned."""
        self._roles(self._trace.output, plain_tensors(result))

    def gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Reports the storages of parameters' gradients, after backward."""
        self._roles(self._trace.gradient, (parameter.grad for parameter in parameters))

    def watch_gradients(self, parameters: Iterable[torch.Tensor]) -> list[Any]:
        """Reports each gradient when autograd has added its last part. Returns the hooks' handles."""
        trace = self._trace

        def is_final(parameter: torch.Tensor) -> None:
            _core.let_signals_in()
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                for storage in self._counted(parameter.grad):
                    trace.final(storage._cdata)

        return [p.register_post_accumulate_grad_hook(is_final) for p in parameters if p.requires_grad and p.is_leaf]

    def _roles(self, report: Any, tensors: Iterable[torch.Tensor | None]) -> None:
        for tensor in tensors:
            for storage in self._counted(tensor) if tensor is not None else ():
                report(storage._cdata, storage.nbytes())

    def loss_outside(self) -> None:
        """The differentiated loss is a stand-in; the caller computes its own."""
        self._trace.loss_outside()

    def own_optimizer(self, streamable: list[torch.Tensor], released: bool, streamed: bool) -> None:
        """The optimizer is memscale's, and the `streamable` tensors of its state may be on disk. The flags tell
        whether the user chose gradient release and state on disk. A plan for one of several devices can arrange
        nothing, because the optimizer steps parameters of all."""
        if self._device is not None:
            if not (released or streamed):
                return
            streamable = []
        stream_bytes = _core.storage_bytes(list(map(part_of, streamable)))
        self._trace.own_optimizer(stream_bytes, released, streamed)

    def gradients_needed(self) -> None:
        """A step needs all gradients at once: no plan may let an optimizer use and free them in backward."""
        self._trace.gradients_needed()

    def made_state(self, state_bytes: int) -> None:
        """Reports bytes of the optimizers' state that exist before the step."""
        self._trace.made_state(state_bytes)

    def optimizer_unknown(self) -> None:
        """The optimizer's step could not be followed. Discards its events."""
        self._trace.optimizer_unknown()
        self._phase = "done"

    def finish(self) -> str:
        """The graph as JSON.

        Raises:
            MemScaleError: an event was refused. It is a `ProfileError` if events contradict each other or
                are too large.
        """
        if self._error is not None:
            raise self._error
        self._finished = True
        return self._trace.finish()


# ---- tensors and their storages -----------------------------------------------------


def _storages(tensor: torch.Tensor) -> Iterable[torch.UntypedStorage]:
    """The storages of a tensor. A sparse tensor has one for each part; other layouts have none. Of a tensor that is
    divided among ranks it is that of this rank's part."""
    if tensor.layout is torch.strided:
        return (part_of(tensor).untyped_storage(),)
    if tensor.layout is torch.sparse_coo:
        return (tensor._indices().untyped_storage(), tensor._values().untyped_storage())
    return ()


def _makes_storages(args: tuple[Any, ...], result: Any) -> bool:
    """Whether an operator's results lie in other storages than its arguments."""
    given = set(_keys(args, None))
    return any(storage._cdata not in given for tensor in tensors_of(result) for storage in _storages(tensor))


def _moved_bytes(args: tuple[Any, ...], result: Any) -> int:
    """The bytes that an operator copies from one device to another."""
    made = next(tensors_of(result), None)
    if made is None:
        return 0
    here = device_of(made)
    return sum(_bytes(tensor) for tensor in tensors_of(args) if tensor.dim() > 0 and device_of(tensor) != here)


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor that an operator reads or writes."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    return sum(storage.nbytes() for storage in _storages(tensor))


def _keys(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[int, ...]:
    """The storages of an operator's tensor arguments."""
    found = [storage._cdata for tensor in tensors_of(args) for storage in _storages(tensor)]
    if kwargs:
        found.extend(storage._cdata for tensor in tensors_of(kwargs.values()) for storage in _storages(tensor))
    return tuple(found)


def _describe(func: Any, run: Callable[..., Any]) -> _Operator:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return _Operator(run, str(func), silent=False, mutable=False, random=False)
    random = torch.Tag.nondeterministic_seeded in func.tags
    arguments = list(enumerate(schema.arguments)) if schema.is_mutable else []
    written = [(place, item) for place, item in arguments if item.alias_info and item.alias_info.is_write]
    return _Operator(
        run=run,
        name=str(func),
        silent=func.namespace == "prim" or func.is_view,
        mutable=schema.is_mutable,
        random=random,
        takes_workspace=_core.operator_takes_workspace(str(func)),
        converts=_core.operator_converts(str(func)),
        copies=str(func).startswith(("aten.convolution.", "aten.convolution_backward.", "aten._fft_r2c.")),
        maker=is_maker(func),
        adds=str(func) == "aten.add.Tensor",
        written=tuple(place for place, item in written if not item.kwarg_only),
        written_names=tuple(item.name for _, item in written),
    )


def _name_of(operator: _Operator, kwargs: dict[str, Any] | None) -> str:
    """The name under which C knows the operator. torch has one name for both forms of GELU, C has two."""
    if kwargs and kwargs.get("approximate") == "tanh":
        return operator.name.replace("gelu", "gelu_tanh")
    return operator.name


def is_maker(func: Any) -> bool:
    """Whether an operator, run again alone, gives the same bits. It must be known to C, and must not be random,
    write to an argument or return a view."""
    if func._schema.is_mutable or func.is_view or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return _core.operator_is_maker(str(func), torch.Tag.pointwise in func.tags)


def _copied(operator: _Operator, args: tuple[Any, ...], result: Any) -> int | None:
    """Which operands the operator copies before it computes, a bit for each, and whether a convolution has an image in
    channels_last, which it need not reorder. None if nothing is known of its workspace on its device."""
    tensors = list(tensors_of(args))
    if any(tensor.device.type != "cpu" for tensor in tensors):
        last_on_gpu = any(isinstance(tensor, torch.Tensor) and _is_channels_last(tensor) for tensor in args[:2])
        return (_ON_GPU | (_CHANNELS_LAST if last_on_gpu else 0)) if operator.copies else None
    if operator.converts:
        return _converted(tensors[:2], next(tensors_of(result)).dtype)
    if not operator.copies:
        return 0
    images = [tensor for tensor in args[:2] if isinstance(tensor, torch.Tensor)]
    last = [_is_channels_last(tensor) for tensor in images]
    if images and _is_unfolded(images[0].dtype):
        gaps = [not (tensor.is_contiguous() or is_last) for tensor, is_last in zip(images, last, strict=True)]
        return _UNFOLDS | sum(1 << place for place, has_gaps in enumerate(gaps) if has_gaps)
    if any(last):
        return _CHANNELS_LAST | sum(1 << place for place, is_last in enumerate(last) if not is_last)
    return sum(1 << place for place, tensor in enumerate(images) if not tensor.is_contiguous())


@cache
def _is_unfolded(dtype: torch.dtype) -> bool:
    """Whether torch unfolds images of this type, because oneDNN has no kernel for it on this CPU."""
    asked = _HALF_TYPES.get(dtype)
    return asked is not None and not getattr(torch.ops.mkldnn, asked)()


def _converted(operands: list[torch.Tensor], made: torch.dtype) -> int:
    """The operands that are written in another type of the same size, such as integers added to floats; a bit for
    each."""
    if made is torch.bool and len(operands) == 2:  # a comparison
        made = torch.result_type(*operands)
    return sum(
        1 << place
        for place, operand in enumerate(operands)
        if operand.dtype is not made and operand.dtype.itemsize == made.itemsize and operand.dim() > 0
    )


def _is_channels_last(tensor: torch.Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if layout is None or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=layout)


def _state_of(parameter: torch.Tensor) -> tuple[int | None, tuple[int, ...]]:
    """A value that changes if the parameter is written to or its `data` is set."""
    return version_of(parameter), tuple(storage._cdata for storage in _storages(parameter))


def _changed(frame: _Frame, leaves: list[Any]) -> bool:
    """Whether an argument was written in place, or a list among the arguments changed."""
    if len(leaves) != len(frame.leaves):
        return True
    return any(
        leaf is not before or version_of(before) != version
        for leaf, before, version in zip(leaves, frame.leaves, frame.versions, strict=True)
    )


def _updates_statistics(module: torch.nn.Module) -> bool:
    """Whether a forward writes running statistics, which no version counter shows."""
    return module._buffers.get("running_mean") is not None and is_training(module)
