"""Turns a model and its arguments into a graph of a training step, without running the step.

`MemoryProfiler.trace()` runs the model's forward and backward once under fake tensors (no memory, no
arithmetic) and reports the events to the C tracer, which makes the graph. The model is restored, and
the trace's tensors are removed from the caller's containers. Other effects of the forward and of its
hooks (counting, printing) happen one extra time. If a step can't be traced, `trace()` raises
`ProfileError`, and the executor profiles real steps with `LiveTracer` instead.

One step is enough. The second step starts with the gradients, the optimizer state and the outputs of
the first. The graph names them (`loop`), and the planner adds them. Within the second step storages
are born and die as in the first: caches that a module makes in its first forward are either small
(rotary tables) or are never freed.
"""

from __future__ import annotations

import functools
import gc
import inspect
import json
import logging
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..base.aside import is_tracing, standing_aside
from ..base.compiler import running_eagerly
from ..config import check_config
from ..device import AUTOCAST_KINDS, kind_of
from ..errors import IntegrationError, MemScaleError, ProfileError
from ..model.caches import without_cache
from ..model.placement import name_on, planned_device
from .misfit import Misfit, reads_values

if TYPE_CHECKING:
    import torch

    from ..config import Config
    from ..model.isolation import Snapshot
    from ..model.placement import Placement
    from .compiled_calls import CompiledCalls
    from .fakes import Twins
    from .static_tracer import StaticTracer
    from .tracer import LiveTracer

__all__ = ["MemoryProfiler", "load_tracer"]

_log = logging.getLogger("memscale")


class _Stepping(NamedTuple):
    """The optimizers that update the model's parameters, and whether the caller named them. If not, a trace may assume
    an AdamW in place of them."""

    optimizers: list[torch.optim.Optimizer]
    is_given: bool


class _Way(NamedTuple):
    """How a trace treats values: whether transformers may branch on some (`libraries_branch_on_values`), and whether
    those of the sample's integer tensors are known."""

    branches: bool
    knows_integers: bool


_WAYS = _Way(True, False), _Way(True, True), _Way(False, False)


class MemoryProfiler:
    """Describes the machine and traces training steps.

    Args:
        config: its `disk_offload_dir`, `enable_tiling` and `use_8bit_optimizer` are read; may be None.
        placement: the device whose bytes the graphs count, if models lie on several.

    Raises:
        TypeError: `config` is not a `Config`.
    """

    def __init__(self, config: Config | None = None, placement: Placement | None = None) -> None:
        self._config = None if config is None else check_config(config)
        self._placement = placement

    def hardware(self) -> dict[str, Any]:
        """Describes the machine: CPUs, memory and its limits, disks, GPUs; see hardware.schema.json."""
        named = self._config.disk_offload_dir if self._config is not None else None
        found: dict[str, Any] = json.loads(_core.hardware_probe(None if named is None else str(named)))
        return found

    def trace(
        self,
        model: torch.nn.Module,
        sample_args: tuple[Any, ...] = (),
        sample_kwargs: Mapping[str, Any] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        calls: CompiledCalls | None = None,
    ) -> str:
        """Traces one training step under fake tensors.

        Args:
            model: the root module. It is traced in training mode and not changed.
            sample_args, sample_kwargs: arguments of a training forward. Only shapes, dtypes and plain
                values matter. Tensors are not read, except masks, and integers if the forward reads one, in host
                memory.
            optimizer: the optimizer that will step; None: those that live and update the model's parameters. A
                copy is stepped on fake gradients. If there is none, or that fails, or it is somebody else's that was
                not given, an AdamW's state is assumed.
            calls: records how layers are called.

        The first attempt lets transformers branch on values (`libraries_branch_on_values`). If it fails because the
        forward reads a value that is not known (a loss takes the lengths of labels; transformers looks for padding
        among tokens), the second takes the integers of the sample. The last traces without those branches.

        With `enable_tiling` the step is traced a second time, with position-wise modules in tiles, unless the model
        lies on several devices: a plan for one of them can't divide the others' modules.

        Returns:
            The graph as JSON (docs/formats/graph.schema.json).

        Raises:
            ProfileError: the step can't be traced: its control flow depends on values,
                an operator has no fake kernel, or a module still holds a fake tensor.
        """
        from ..base.torch_names import check_torch

        check_torch()
        import torch

        from ..model.optimizers import optimizers_of

        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: expected an nn.Module, got {type(model).__name__}")
        kwargs = without_cache(model, sample_args, dict(sample_kwargs or {}))
        stepping = _Stepping(optimizers_of(model), False) if optimizer is None else _Stepping([optimizer], True)
        graph, way = self._trace_somehow(model, sample_args, kwargs, stepping, calls)
        if self._config is None or not self._config.enable_tiling or self._placement is not None:
            return graph
        try:
            tiled = self._trace(model, sample_args, kwargs, stepping, way, in_tiles=True)
        except ProfileError as error:
            _log.debug("in tiles: %s", str(error))
            return graph
        return _core.graph_add_tiled(graph, tiled)

    def _trace_somehow(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stepping: _Stepping,
        calls: CompiledCalls | None,
    ) -> tuple[str, _Way]:
        """The graph, and the first of _WAYS that gives one."""
        from ..model.shards import computes_in_parts

        failed: ProfileError | None = None
        for way in _WAYS:
            if way.knows_integers and not reads_values(failed):
                continue
            try:
                if computes_in_parts(model):  # at their first calls, torch tries operators on whole tensors
                    self._trace(model, args, kwargs, stepping, way)
                return self._trace(model, args, kwargs, stepping, way, calls), way
            except ProfileError as error:
                _log.debug("%s; it was traced with %s", str(error), way)
                failed = error
        assert failed is not None
        try:
            raise failed
        finally:
            del failed  # its traceback has this frame and the caller's, whose variables would wait for the collector

    def _expects_8bit(self, model: torch.nn.Module) -> bool:
        """Whether the model's AdamW will get 8-bit state of memscale's; on a GPU that takes another package."""
        asked = self._config is not None and self._config.use_8bit_optimizer
        return asked and kind_of(planned_device(model, self._placement)).is_host

    def _trace(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stepping: _Stepping,
        way: _Way,
        calls: CompiledCalls | None = None,
        in_tiles: bool = False,
    ) -> str:
        from ..base.divided import has_several_processes
        from ..base.signature import describe_arguments
        from ..model.isolation import isolated
        from ..model.optimizers import have_8bit_moments, made_state_bytes, to_trace
        from ..model.reach import Reach
        from ..model.shards import gathered_parameters
        from ..techniques.tiles import Tiles
        from .fakes import Twins
        from .static_tracer import StaticTracer, libraries_branch_on_values

        name = name_on(model, self._placement)
        obstacle = Reach(list(model.modules())).obstacle
        if obstacle is not None:
            raise ProfileError(f"{name} can't be traced without running it: {obstacle}, and a trace would do that too")
        placement = self._placement
        elsewhere = frozenset[str]() if placement is None else placement.elsewhere(model)
        tracer = StaticTracer(name, describe_arguments(args, kwargs), placement, elsewhere)
        twins = Twins(gathered_parameters(model))
        if has_several_processes() or any(map(_needs_gradients, stepping.optimizers)):
            tracer.gradients_needed()
        tracer.made_state(made_state_bytes(stepping.optimizers, planned_device(model, self._placement)))
        asks_8bit = not stepping.is_given and self._expects_8bit(model)
        expects_8bit = have_8bit_moments(stepping.optimizers) or asks_8bit
        if expects_8bit:
            stepping = stepping._replace(optimizers=[])
        elif not stepping.is_given:
            stepping = stepping._replace(optimizers=to_trace(stepping.optimizers, model))
        step = _StaticStep(model, tracer, twins, expects_8bit, way.knows_integers, calls)
        try:

            def run(snapshot: Snapshot) -> None:
                if in_tiles:
                    Tiles(model, is_tracing, traced=True).set(True)  # the snapshot removes them
                with libraries_branch_on_values() if way.branches else nullcontext():
                    step.run(snapshot, args, kwargs, stepping)

            _core.guarded(
                _holding_signals,
                lambda: standing_aside(lambda: running_eagerly(lambda: isolated(model, run), tracer.compiled_code)),
            )
            graph = tracer.finish()
            if calls is not None:
                calls.has_compiled = tracer.has_compiled
        except BaseException as error:
            _take_back_after(error, twins)
            if not isinstance(error, Exception):
                raise
            if isinstance(error, Misfit):
                raise ProfileError(f"the input does not fit {name}: {error}") from error
            kind = "" if isinstance(error, MemScaleError) else f"{type(error).__name__}: "
            raise ProfileError(f"{name} can't be traced without running it: {kind}{_first_line(error)}") from error
        finally:
            twins.forget()
        _refuse_leftovers(name, tracer, twins)
        return graph


def _holding_signals(undo: _core.Undo, function: Callable[[], None]) -> None:
    """Calls `function` while signals wait: what their handlers raise could end the process inside of fake tensors.
    Layers' hooks and gradients' let them in."""
    undo.signals()
    function()


@functools.cache
def load_tracer() -> None:
    """Traces a step of two weights, once per process. torch's first trace loads code that stays resident, about
    80 MB, so it has to run before a baseline is measured."""
    import torch

    model = torch.nn.LayerNorm(1, device="cpu")  # draws no random numbers
    with suppress(ProfileError):
        MemoryProfiler().trace(model, (torch.zeros(1, 1, device="cpu"),))


class _StaticStep:
    """One forward, backward and optimizer step of a model whose tensors are twins.

    Args:
        expects_8bit: without an optimizer, whether an AdamW with 8-bit state is assumed in place of one with fp32.
        knows_integers: whether the values of the arguments' integer tensors are known.
        calls: records how layers are called, if given.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tracer: StaticTracer,
        twins: Twins,
        expects_8bit: bool,
        knows_integers: bool,
        calls: CompiledCalls | None = None,
    ) -> None:
        self._model = model
        self._expects_8bit = expects_8bit
        self._knows_integers = knows_integers
        self._tracer = tracer
        self._twins = twins
        self._calls = calls
        self._copies: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def run(
        self,
        snapshot: Snapshot,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stepping: _Stepping,
    ) -> None:
        """Traces the step up to the tracer's `done`, that of the optimizers included."""
        import torch

        from ..base.walk import is_training
        from ..model.shards import has_shards, stand_in_for_fsdp
        from .fakes import applied_if_changed, tensors_in

        if not is_training(self._model):
            self._model.train()
        if has_shards(self._model):
            stand_in_for_fsdp(self._model)
        self._swap_in(snapshot)
        self._silence()
        if self._knows_integers:
            self._know_integers(args, kwargs)
        self._know_masks(kwargs)
        args = self._twins.replace(tuple(args))
        kwargs = self._twins.replace(kwargs)
        tracer = self._tracer
        for name, tensor in _named_tensors(self._model, args, kwargs):
            tracer.add_input(name, tensor)
        tracer.resident_batch(tensors_in((args, kwargs)))
        parameters = list(self._model.parameters())
        tracer.resident_parameters(parameters)
        if self._expects_8bit:
            tracer.expect_8bit_state(parameters)
        tracer.resident_buffers(tensors_in(snapshot.containers(), depth=2))
        with ExitStack() as stack:
            for handle in (*self._hook_layers(), *tracer.watch_gradients(parameters)):
                stack.callback(handle.remove)
            stack.enter_context(applied_if_changed())
            stack.enter_context(self._twins.mode)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
            tracer.start()
            stack.callback(tracer.stop)
            loss = self._step(args, kwargs)
            _refuse_sparse_gradients(parameters)
            tracer.gradients(parameters)
            if stepping.optimizers:
                self._optimizer_step(stepping)
            else:
                tracer.phase("done")
            del loss  # not earlier, because a caller holds it through the step

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        import torch

        from .loss import loss_of_traced_forward

        loss = loss_of_traced_forward(self._tracer, self._model, args, kwargs)
        if loss is not None:
            _refuse_real_leaves(loss)
            # Backward runs on this thread, which is marked as tracing. By default a GPU's backward has its own.
            with _without_autocast(), torch.autograd.set_multithreading_enabled(False):
                loss.backward()
        return loss

    # -- twins in the model -------------------------------------------------------------

    def _swap_in(self, snapshot: Snapshot) -> None:
        """Replaces every tensor in a module by its twin; the snapshot removes the twins."""
        import torch

        for container in snapshot.containers():
            if isinstance(container, dict):
                for key, value in container.items():
                    if isinstance(value, torch.Tensor):
                        container[key] = self._twins.of(value)
            elif isinstance(container, list):
                for index, value in enumerate(container):
                    if isinstance(value, torch.Tensor):
                        container[index] = self._twins.of(value)

    def _silence(self) -> None:
        """Removes the caller's backward hooks, which could read or keep gradients. The snapshot restores
        them."""
        for module in self._model.modules():
            module._backward_hooks.clear()
            module._backward_pre_hooks.clear()

    def _know_integers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from .fakes import tensors_in
        from .static_tracer import know

        for value in tensors_in((args, kwargs)):
            if kind_of(value.device).is_host and not value.dtype.is_floating_point and not value.dtype.is_complex:
                know(self._twins.of(value), value.detach().clone())

    def _know_masks(self, kwargs: dict[str, Any]) -> None:
        """Gives the trace values of padding masks: ones if the mask has only ones. An unread mask counts as
        one with padding, so that memory is not underestimated."""
        from ..base.signature import is_full_mask, is_unread_mask
        from .static_tracer import know

        for name, value in kwargs.items():
            if is_full_mask(name, value):
                know(self._twins.of(value), value.new_ones(value.shape, device="cpu"))
            elif is_unread_mask(name, value):
                know(self._twins.of(value), _padded(value))

    # -- layers -------------------------------------------------------------------------

    def _hook_layers(self) -> Iterator[Any]:
        from ..model.layers import find_layers

        tracer = self._tracer
        for name, layer in find_layers(self._model):

            def before(module: Any, args: Any, kwargs: Any, name: str = name) -> None:
                _core.let_signals_in()
                node = tracer.enter(name, module, args, kwargs)
                if node is not None and self._calls is not None:
                    self._calls.note(name, tracer.calls_of(name) - 1, module, args, kwargs, tracer.places)

            def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
                tracer.leave(args, kwargs, output)

            yield layer.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
            yield layer.register_forward_hook(after, with_kwargs=True, always_call=True)

    # -- saved tensors ------------------------------------------------------------------

    def _pack(self, tensor: torch.Tensor) -> _Token:
        node, serial = self._tracer.saved(tensor)
        return _Token(self._tracer, node, serial, tensor)

    def _unpack(self, token: _Token) -> torch.Tensor:
        from .fakes import copy_of_storage, fake_view

        if token.tensor is not None:
            self._tracer.unpacked(token.node, 0)
            return token.tensor
        reference = self._copies.get(token.serial)
        storage = reference() if reference is not None else None
        if storage is None:
            storage = copy_of_storage(token.storage_bytes)
            self._copies[token.serial] = weakref.ref(storage)
        self._tracer.unpacked(token.node, token.serial, storage)
        view = fake_view(self._twins.mode, storage, *token.geometry)
        return view if token.division is None else token.division.with_part(view)

    # -- optimizer ----------------------------------------------------------------------

    def _optimizer_step(self, stepping: _Stepping) -> None:
        """Steps copies of the optimizers on the twins. This first step makes their state."""
        from .fakes import foreach_as_for

        self._tracer.phase("optimizer")
        self._tracer.assume_numbers()
        copies = []
        try:
            self._tracer.pause()
            try:
                copies = [_fake_optimizer(optimizer, self._twins) for optimizer in stepping.optimizers]
            finally:
                self._tracer.resume()
            for optimizer, copy in zip(stepping.optimizers, copies, strict=True):
                with foreach_as_for(optimizer):
                    _step_alone(copy)
            self._tracer.phase("done")  # while the state is held
            self._report_own(copies, stepping.is_given)
        except Exception as error:
            names = ", ".join(type(optimizer).__name__ for optimizer in stepping.optimizers)
            _log.debug("%s: the state is estimated: %s", names, _first_line(error))
            self._tracer.optimizer_unknown()

    def _report_own(self, copies: list[torch.optim.Optimizer], is_given: bool) -> None:
        """Reports what the user chose for optimizers of memscale's. A plan may move the state only of one that it was
        given."""
        asked = [getattr(copy, "_facts_for_plan", None) for copy in copies]
        facts = [own_facts() for own_facts in asked if own_facts is not None]
        if not facts:
            return
        streamable = [tensor for tensors, _, _ in facts for tensor in tensors] if is_given else []
        is_released = len(facts) == len(copies) and all(released for _, released, _ in facts)
        self._tracer.own_optimizer(streamable, is_released, any(is_moved for _, _, is_moved in facts))


class _Token:
    """Autograd holds a token instead of a saved tensor. The token can make the fake tensor again.

    A tensor that is not the trace's own (a parameter, the batch) is held itself, as autograd would hold
    it. The token dies when autograd releases the saved tensor.
    """

    __slots__ = ("division", "geometry", "node", "serial", "storage_bytes", "tensor", "tracer")

    def __init__(self, tracer: LiveTracer, node: int, serial: int, tensor: torch.Tensor) -> None:
        from torch._subclasses.fake_tensor import FakeTensor

        from ..base.divided import Division, is_shard, part_of

        self.tracer = tracer
        self.node = node
        self.serial = serial
        self.tensor: torch.Tensor | None = None
        part = part_of(tensor)
        if serial == 0 or type(part) is not FakeTensor:
            self.tensor = tensor if tensor.grad_fn is None else tensor.detach()
            return
        self.division = Division.of(tensor) if is_shard(tensor) else None
        tensor = part
        self.storage_bytes = tensor.untyped_storage().nbytes()
        self.geometry = (
            tensor.dtype,
            tensor.device,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tensor.stride(),
        )

    def __del__(self) -> None:
        self.tracer.dropped(self.node, self.serial)


def _named_tensors(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a forward's arguments by the names of the forward's parameters."""
    from .fakes import tensors_in

    try:
        named = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        named = {**{f"argument {place}": value for place, value in enumerate(args)}, **kwargs}
    for name, value in named.items():
        for tensor in tensors_in(value):
            yield name, tensor


# ---- the loss ---------------------------------------------------------------------------


def _padded(mask: torch.Tensor) -> torch.Tensor:
    value = mask.new_ones(mask.shape, device="cpu")
    value[..., -1:] = 0
    return value


def _refuse_real_leaves(loss: torch.Tensor) -> None:
    """Raises if backward would reach a tensor without a twin, because that would get a fake gradient. Such a
    tensor is held by no module."""
    from torch._subclasses.fake_tensor import FakeTensor

    from ..base.divided import part_of
    from ..base.walk import leaves_of

    for leaf in leaves_of(loss):
        if not isinstance(part_of(leaf), FakeTensor):
            shape = "x".join(map(str, leaf.shape))
            raise ProfileError(f"it uses a trainable tensor ({shape}) that is not an attribute of a module")


def _refuse_sparse_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Raises if a gradient is sparse. Its size depends on values, and a fake one is empty."""
    import torch

    if any(p.grad is not None and p.grad.layout is not torch.strided for p in parameters):
        raise ProfileError("it has sparse gradients, whose sizes depend on values")


# ---- before and after the step --------------------------------------------------------


def _needs_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer of memscale's knows that its loop needs all gradients at once."""
    asked = getattr(optimizer, "_needed_gradients", None)
    return asked is not None and asked()


def _fake_optimizer(optimizer: torch.optim.Optimizer, twins: Twins) -> torch.optim.Optimizer:
    """A copy of the optimizer without state, whose groups hold the twins of the parameters. It lacks the caller's
    hooks and methods patched on the instance (schedulers wrap `step`)."""
    import torch

    stepping = object.__new__(type(optimizer))
    methods = {name for name, value in vars(optimizer).items() if callable(value)}
    stepping.__dict__ = {key: value for key, value in vars(optimizer).items() if key not in methods}
    for name, value in vars(torch.optim.SGD([torch.zeros(())])).items():
        if "hook" in name:
            stepping.__dict__[name] = type(value)()
    stepping.state = type(optimizer.state)(*([dict] if hasattr(optimizer.state, "default_factory") else []))
    stepping.param_groups = [
        {**twins.replace({**group, "params": ()}), "params": [twins.stored(p) for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    return stepping


def _step_alone(optimizer: torch.optim.Optimizer) -> None:
    """Steps it without the hooks on every optimizer of the process, which would take the trace for a step."""
    step = type(optimizer).step
    inner = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
    inner(optimizer)


@contextmanager
def _without_autocast() -> Iterator[None]:
    import torch

    with ExitStack() as stack:
        for device in AUTOCAST_KINDS:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _take_back_after(error: BaseException, twins: Twins) -> None:
    """Removes a failed trace's tensors from the caller's containers."""
    from .leftovers import take_back

    traceback.clear_frames(error.__traceback__)
    twins.forget()
    take_back(twins.mode)


def _refuse_leftovers(name: str, tracer: LiveTracer, twins: Twins) -> None:
    """Raises if anything still holds a tensor of the trace, after removing it from there.

    Raises:
        IntegrationError: a tensor can't be removed, so the real step would use it.
        ProfileError: the tensors were removed, or only a graph holds them; the model can't be traced.
    """
    from .leftovers import take_back

    if not (tracer.alive() and gc.collect() >= 0 and tracer.alive()):
        return
    holders = take_back(twins.mode)
    if tracer.alive() and gc.collect() >= 0 and tracer.alive():
        if not holders:  # a graph that holds itself (register_multi_grad_hook() makes one); no code can reach it
            raise ProfileError(
                f"{name} can't be traced without running it: its forward makes an autograd graph that is never freed"
            )
        held_by = ", ".join(sorted(set(holders)))
        raise IntegrationError(
            f"{name} was traced under fake tensors, and its forward keeps some in {held_by}, from which memscale can't "
            "remove them; keep them in a list, a dict or an attribute, or not at all"
        )
    raise ProfileError(f"{name} can't be traced without running it: its forward keeps tensors outside its modules")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
