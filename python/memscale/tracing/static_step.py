"""One training step of a model whose tensors are twins: forward, backward and optimizer step under fake tensors.

`MemoryProfiler` makes one for each trace, inside of a snapshot that restores the model afterwards. The step replaces
the model's tensors by fake ones, hooks its layers and its saved tensors, and reports to the tracer. It owns nothing but
what autograd holds in place of saved tensors.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..device import AUTOCAST_KINDS, kind_of
from ..errors import ProfileError

if TYPE_CHECKING:
    import torch

    from ..model.isolation import Snapshot
    from .compiled_calls import CompiledCalls
    from .fakes import Twins
    from .static_tracer import StaticTracer
    from .tracer import LiveTracer

__all__ = ["StaticStep", "Stepping", "first_line"]

_log = logging.getLogger("memscale")


class Stepping(NamedTuple):
    """The optimizers that update the model's parameters, and whether the caller named them. If not, a trace may assume
    an AdamW in place of them."""

    optimizers: list[torch.optim.Optimizer]
    is_given: bool


class StaticStep:
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
        stepping: Stepping,
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

    def _optimizer_step(self, stepping: Stepping) -> None:
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
            _log.debug("%s: the state is estimated: %s", names, first_line(error))
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


# ---- tensors of the step ---------------------------------------------------------------


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


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
