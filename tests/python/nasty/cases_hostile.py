"""Layers with odd calls and results: what autograd functions, views, hooks, results of every type, modes, copies
and threads can do to a layer that runs twice."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from subjects import BLOCKS, WIDTH, Block, Stack, Subject, case, floats, stack
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils import checkpoint

KIND = "hostile"

# ---- functions of autograd ---------------------------------------------------------------------


@case(KIND)
def a_function_whose_context_holds_numbers_of_the_data() -> Subject:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor, module: Any) -> torch.Tensor:
            context.scale, context.module, context.order = float(x.abs().max()), module, module.calls
            module.calls += 1
            return x / context.scale

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> Any:
            return gradient / context.scale * (1 + context.order % 3 + context.module.calls % 2), None

    def prepare(block: Any) -> None:
        block.calls = 0

    return Subject(stack(lambda self, x: functional.gelu(Scaled.apply(x, self)), prepare))


@case(KIND)
def a_function_with_a_dirty_argument_and_a_result_without_gradient() -> Subject:
    class Ranked(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> Any:
            order = x.argsort(-1)
            return x.mul_(1.5), order

        @staticmethod
        def setup_context(context: Any, inputs: Any, output: Any) -> None:
            context.mark_dirty(inputs[0])
            context.mark_non_differentiable(output[1])
            context.set_materialize_grads(False)
            context.save_for_backward(output[0], output[1])

        @staticmethod
        def backward(context: Any, gradient: Any, _: Any) -> Any:
            result, order = context.saved_tensors
            return gradient * 1.5 + 0.01 * result.gather(-1, order)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y, order = Ranked.apply(x * 1.0)
        return y.gather(-1, order) + functional.gelu(y)

    return Subject(stack(body))


@case(KIND)
def a_function_that_runs_layers_and_their_gradient_itself() -> Subject:
    class Inverted(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
            context.layer = layer
            with torch.no_grad():
                y = x + layer(x)
            context.save_for_backward(x)
            return y

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> Any:
            (x,) = context.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = x + context.layer(x)
            y.backward(gradient)
            return x.grad, None

    return Subject(stack(lambda self, x: Inverted.apply(functional.gelu(x), self.outer)))


@case(KIND)
def a_function_with_a_rule_for_vmap_below_vmap() -> Subject:
    class Cube(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor) -> Any:
            return x**3, x * 2

        @staticmethod
        def setup_context(context: Any, inputs: Any, output: Any) -> None:
            context.save_for_backward(inputs[0], output[1])

        @staticmethod
        def backward(context: Any, cube: torch.Tensor, double: torch.Tensor) -> Any:
            x, twice = context.saved_tensors
            return cube * 1.5 * x * twice + 2 * double

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        cube, double = torch.func.vmap(Cube.apply)(x * 0.3)
        return cube + double

    return Subject(stack(body))


# ---- views and writes --------------------------------------------------------------------------


@case(KIND)
def halves_of_a_view_written_in_turn() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        left, right = y[:, : WIDTH // 2], y[:, WIDTH // 2 :]
        left.mul_(right.detach().sigmoid())
        right.add_(left)
        y.t_()[::2].neg_()
        return y.t_()

    return Subject(stack(body))


@case(KIND)
def results_written_to_given_tensors() -> Subject:
    def prepare(block: Any) -> None:
        block.scratch = torch.empty(0)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            torch.mul(x, 0.5, out=self.scratch)
        gate = self.scratch.sigmoid()
        self.scratch.resize_(0)
        return functional.gelu(x) * gate

    return Subject(stack(body, prepare))


@case(KIND)
def a_result_that_the_next_layer_writes_in_place() -> Subject:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(torch.tanh(x))
            return x.mul_(0.5).add_(y)

    class Shifted(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = block(x) + 0.0
                x[:, :4] = 1.0
            return self.last(x)

    return Subject(Shifted([Writing() for _ in range(BLOCKS)]))


@case(KIND)
def an_argument_written_after_a_layer_that_does_not_save_it() -> Subject:
    class Model(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                stream = x * 1.0
                y = block(stream)
                stream.zero_()
                x = x + y
            return self.last(x)

    class Doubling(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(torch.tanh(self.inner(x * 2 + 1)))

    return Subject(Model([Doubling() for _ in range(BLOCKS)]))


@case(KIND)
def a_storage_that_changes_hands() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        alias = torch.empty(0)
        alias.set_(y.detach().untyped_storage(), 0, y.shape, y.stride())
        other = alias.as_strided((WIDTH, 2), (1, WIDTH))
        return y + other.sum(1)

    return Subject(stack(body))


# ---- buffers and weights -----------------------------------------------------------------------


@case(KIND)
def buffers_registered_anew_in_each_forward() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("level", torch.zeros(WIDTH))
        block.register_buffer("last", None)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        level = self.level
        del self.level
        self.register_buffer("level", level * 0.9 + x.detach().mean(0) * 0.1, persistent=bool(len(x) % 2))
        self.last = x.detach().amax(0)
        return functional.gelu(x - level) + self.last

    return Subject(stack(body, prepare))


@case(KIND)
def a_buffer_that_is_a_view_of_the_weight() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("diagonal", block.outer.weight.detach().diagonal(), persistent=False)
        block.register_buffer("wide", torch.ones(1).expand(WIDTH))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.diagonal.mul_(0.999)
        return functional.gelu(x) * self.wide + self.diagonal

    return Subject(stack(body, prepare))


@case(KIND)
def orthogonal_weights_that_are_assigned_in_the_loop() -> Subject:
    def prepare(block: Any) -> None:
        parametrizations.orthogonal(block.inner)
        parametrizations.weight_norm(block.outer)

    model = stack(None, prepare)

    def before(model: Any) -> None:
        for block in model.blocks:
            block.watched = block.outer.weight.detach().sum()

    return Subject(model, before_backward=before)


@case(KIND)
def a_parametrization_that_the_layer_changes_half_way() -> Subject:
    class Warm(nn.Module):
        temperature = 1.0

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return torch.tanh(weight * self.temperature)

    def prepare(block: Any) -> None:
        parametrize.register_parametrization(block.inner, "weight", Warm())

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        warm = self.inner.parametrizations.weight[0]
        warm.temperature = warm.temperature * 1.01
        with parametrize.cached():
            return functional.gelu(self.inner(x)) + self.inner(x)

    return Subject(stack(body, prepare))


@case(KIND)
def a_weight_that_two_layers_share_transposed() -> Subject:
    class Tied(nn.Module):
        def __init__(self, weight: nn.Parameter, is_turned: bool) -> None:
            super().__init__()
            self.weight, self.is_turned = weight, is_turned

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x @ (self.weight.t() if self.is_turned else self.weight)) + self.weight[0]

    weight = nn.Parameter(floats(3, WIDTH, WIDTH) / 6)
    return Subject(Stack([Tied(weight, number % 2 == 1) for number in range(BLOCKS)]))


@case(KIND)
def lazy_modules_that_have_run() -> Subject:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.LazyLinear(WIDTH), nn.LazyBatchNorm1d()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + functional.gelu(self.norm(self.inner(x)))

    model = Stack([Lazy() for _ in range(BLOCKS)])
    model(torch.ones(4, WIDTH))
    return Subject(model)


@case(KIND)
def lazy_buffers_that_the_first_step_makes() -> Subject:
    def prepare(block: Any) -> None:
        block.norm = nn.LazyBatchNorm1d(affine=False)

    return Subject(stack(lambda self, x: functional.gelu(self.norm(x)), prepare))


@case(KIND)
def weights_frozen_and_thawed_in_forward() -> Subject:
    def prepare(block: Any) -> None:
        block.turn = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        self.outer.weight.requires_grad_(self.turn % 2 == 0)
        self.inner.bias.requires_grad = self.turn % 3 != 0
        y = functional.gelu(self.inner(x))
        self.inner.bias.requires_grad = True
        return y

    return Subject(stack(body, prepare))


# ---- hooks -------------------------------------------------------------------------------------


@case(KIND)
def hooks_that_change_named_arguments_and_results() -> Subject:
    class Named(Block):
        def forward(self, x: torch.Tensor, *, gain: torch.Tensor, extra: Any = None) -> Any:
            y = x + self.outer(torch.tanh(self.inner(x))) * gain
            return {"y": y if extra is None else y + extra["bias"], "gain": gain}

    def before(module: Any, args: Any, kwargs: Any) -> Any:
        return (args[0] * 1.1,), {**kwargs, "extra": {"bias": kwargs["gain"].mean()}}

    def after(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        return {**output, "y": output["y"] - kwargs["gain"] * 0.1}

    class Model(Stack):
        def __init__(self, blocks: list[nn.Module]) -> None:
            super().__init__(blocks)
            self.gain = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x, gain = self.first(x), self.gain * 2
            for block in self.blocks:
                result = block(x, gain=gain)
                x, gain = result["y"], result["gain"] * 0.9
            return self.last(x)

    model = Model([Named() for _ in range(BLOCKS)])
    for block in model.blocks:
        block.register_forward_pre_hook(before, with_kwargs=True)
        block.register_forward_hook(after, with_kwargs=True)
    return Subject(model)


@case(KIND)
def a_hook_that_calls_its_own_layer_again() -> Subject:
    model = stack()

    def after(module: Any, args: Any, output: torch.Tensor) -> Any:
        if getattr(module, "inside", False):
            return None
        module.inside = True
        try:
            return output + 0.5 * module(output.tanh())
        finally:
            module.inside = False

    for block in model.blocks:
        block.register_forward_hook(after, prepend=True, always_call=True)
    return Subject(model)


@case(KIND)
def a_hook_registered_in_forward_for_this_call_only() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        handle = self.inner.register_forward_hook(lambda module, args, output: seen.append(output) or output * 0.9)
        y = self.inner(x)
        handle.remove()
        return functional.gelu(y) + seen[0]

    return Subject(stack(body))


@case(KIND)
def hooks_on_gradients_that_write_gradients() -> Subject:
    model = stack()

    def written(parameter: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)
        return gradient.clamp(-0.01, 0.01)

    def nudged(parameter: nn.Parameter) -> None:
        parameter.grad.add_(1e-3)  # type: ignore[union-attr]

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        for half in batch.chunk(2):
            loss = model(half).square().mean()
            loss.backward()
        return loss

    for parameter in model.parameters():
        parameter.register_hook(functools.partial(written, parameter))
        parameter.register_post_accumulate_grad_hook(nudged)
    return Subject(model, step=step)


# ---- results -----------------------------------------------------------------------------------


class Chained(nn.Module):
    """Blocks that pass on a result of some type; `unpack` reads a tensor from it."""

    def __init__(self, make: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()

        class Link(Block):
            def forward(self, carried: Any) -> Any:
                return make(Block.forward(self, unpack(carried)))

        self.make, self.unpack = make, unpack
        self.blocks = nn.ModuleList(Link() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        carried = self.make(x)
        for block in self.blocks:
            carried = block(carried)
        return self.unpack(carried)


@dataclasses.dataclass
class _State:
    x: torch.Tensor
    history: list[torch.Tensor] = dataclasses.field(default_factory=list)


class _Slots:
    __slots__ = ("hidden", "x")

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.hidden = x, {"twice": (x * 2,)}


class _Words(collections.OrderedDict):  # type: ignore[type-arg]
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class _Pair(typing.NamedTuple):
    x: torch.Tensor
    note: Any


def _generated(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * 0.25
    yield x * 0.75


_RESULTS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "a_dataclass": (lambda x: _State(x, [x * 2]), lambda state: state.x + 0.1 * state.history[0]),
    "an_object_of_slots": (_Slots, lambda slots: slots.x + 0.1 * slots.hidden["twice"][0]),
    "a_dictionary_of_a_users_class": (
        lambda x: _Words(x=x, none=None, tail=[x[:1], "word", 3]),
        lambda words: words.x * 1.0 + words.tail[0],
    ),
    "a_named_tuple": (lambda x: _Pair(x, {"mask": x > 0}), lambda pair: pair.x * pair.note["mask"]),
    "a_generator": (_generated, lambda parts: sum(parts, torch.zeros(()))),
    "a_function": (lambda x: lambda gain: x * gain, lambda function: function(1.5)),
    "a_set_and_a_deque": (
        lambda x: ({"a", "b"}, collections.deque([x, x.tanh()], 2)),
        lambda pair: pair[1][0] + pair[1][-1] * len(pair[0]),
    ),
    "a_sparse_tensor": (lambda x: x.relu().to_sparse(), lambda sparse: sparse.to_dense() + 0.1),
    "a_complex_tensor": (lambda x: torch.complex(x, x.tanh()), lambda z: z.real + z.imag),
    "the_same_tensor_twice": (lambda x: (x, x, x.view(-1)), lambda three: three[0] + three[2].view(three[1].shape)),
    "a_packed_sequence": (
        lambda x: nn.utils.rnn.pack_padded_sequence(x[None], [len(x)], batch_first=True),
        lambda packed: nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0][0],
    ),
    "a_jagged_tensor": (
        lambda x: torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 4, len(x)])),
        lambda jagged: jagged.values() * 1.0,
    ),
}

for _name, (_make, _unpack) in _RESULTS.items():
    case(KIND, f"layers_that_pass_on_{_name}")(
        lambda make=_make, unpack=_unpack: Subject(Chained(make, unpack))  # type: ignore[misc]
    )

# ---- modes of the layer, of autograd and of autocast -------------------------------------------


@case(KIND)
def a_norm_called_in_training_and_in_evaluation() -> Subject:
    def prepare(block: Any) -> None:
        block.norm, block.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        first = self.norm(x)
        self.norm.eval()
        second = self.norm(x * 0.5)
        self.norm.train()
        self.drop.train(not self.drop.training)
        return functional.gelu(first) + self.drop(second)

    return Subject(stack(body, prepare))


@case(KIND)
def autocast_in_autocast_with_another_type() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.inner(x)
            with torch.autocast("cpu", torch.float16, cache_enabled=False):
                z = self.inner(x * 0.5)
                with torch.autocast("cpu", enabled=False):
                    z = z.float() + self.inner(x.float())
            return functional.gelu(y.float() + self.outer(z).float())

    return Subject(stack(body))


@case(KIND)
def a_layer_that_asks_autograd_where_it_is() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        gain = 1.0 if torch._C._current_graph_task_id() == -1 else 2.0
        name = "" if x.grad_fn is None else x.grad_fn.name()
        return functional.gelu(x) * gain + len(name) * 0.01 + (0.5 if x.is_leaf else 0.0) + x._version

    return Subject(stack(body))


@case(KIND)
def gradients_switched_by_a_decorator_and_a_generator() -> Subject:
    @torch.no_grad()
    def frozen(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x * 2
        yield x * 3

    @contextlib.contextmanager
    def switched() -> Iterator[None]:
        torch.set_grad_enabled(False)
        yield
        torch.set_grad_enabled(True)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        total = functional.gelu(x)
        for part in frozen(x):
            total = total + part * x
        with switched():
            scale = total.abs().mean()
        return total / scale

    return Subject(stack(body))


@case(KIND)
def functional_calls_of_a_stack_of_models() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        copies = [self.inner, self.outer]
        parameters, buffers = torch.func.stack_module_state(copies)  # type: ignore[arg-type]
        base = copy.deepcopy(self.inner).to("meta")
        live = {name: torch.stack([getattr(c, name) for c in copies]) for name in parameters}
        both = torch.func.vmap(
            lambda p, b: torch.func.functional_call(base, (p, b), (x,)),
        )(live, buffers)
        return functional.gelu(both).mean(0)

    return Subject(stack(body))


@case(KIND)
def a_hessian_and_a_linearization_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        curve = torch.func.hessian(lambda w: (w.tanh() ** 2).sum())(self.inner.bias[:4])
        value, slope = torch.func.linearize(torch.sin, x.detach())
        return functional.gelu(x) + curve.diagonal().sum() + slope(torch.ones_like(x)) + value

    return Subject(stack(body))


@case(KIND)
def checkpoints_that_do_not_keep_the_random_state() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint.checkpoint(
            lambda x: functional.dropout(functional.gelu(x), 0.2), x, use_reentrant=False, preserve_rng_state=False
        )
        return checkpoint.checkpoint_sequential(nn.Sequential(self.inner, nn.Tanh()), 1, y, use_reentrant=False)

    return Subject(stack(body))


# ---- copies, threads, contexts -----------------------------------------------------------------


@case(KIND)
def a_copy_of_the_layer_made_in_forward() -> Subject:
    def prepare(block: Any) -> None:
        block.norm = nn.BatchNorm1d(WIDTH)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher = copy.deepcopy(self.norm)
            target = teacher(x) + copy.copy(self.inner)(x)
        return functional.gelu(self.norm(x)) + 0.1 * target

    return Subject(stack(body, prepare))


@case(KIND)
def a_copy_of_the_whole_layer_that_replaces_its_average() -> Subject:
    class Averaged(Block):
        teacher: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.teacher is None:
                self.__dict__["teacher"] = copy.deepcopy(self).requires_grad_(False)
                self.__dict__["teacher"].__dict__["teacher"] = False
            y = super().forward(x)
            if self.teacher is False:
                return y
            with torch.no_grad():
                for own, other in zip(self.teacher.parameters(), self.parameters(), strict=True):
                    own.lerp_(other, 0.1)
                target = self.teacher(x)
            return y + 0.1 * target

    return Subject(Stack([Averaged() for _ in range(BLOCKS)]))


@case(KIND)
def halves_of_the_batch_in_another_thread() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            halves = list(pool.map(lambda half: functional.gelu(self.inner(half)), x.chunk(2)))
        return torch.cat(halves)

    return Subject(stack(body))


@case(KIND)
def blocks_that_other_threads_call() -> Subject:
    class Parallel(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            with ThreadPoolExecutor(1) as pool:
                for block in self.blocks:
                    x = x + pool.submit(block, x).result()
            return self.last(x)

    return Subject(Parallel([Block() for _ in range(BLOCKS)]))


_DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)


@case(KIND)
def a_copied_context_in_which_the_layer_runs() -> Subject:
    def inner(self: Any, x: torch.Tensor) -> torch.Tensor:
        token = _DEPTH.set(_DEPTH.get() + 1)
        y = functional.gelu(x) * _DEPTH.get()
        if _DEPTH.get() > 3:
            _DEPTH.reset(token)
        return y

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        context = contextvars.copy_context()
        return context.run(inner, self, x) + inner(self, x) * 0.1

    return Subject(stack(body), watch=_DEPTH.get)
