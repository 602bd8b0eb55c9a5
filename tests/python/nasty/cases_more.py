"""Mixed layers: settings, random sources, parametrizations, custom autograd functions with side effects, hooks that
change gradients, views, data-dependent control flow, function transforms, checkpoints."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import functools
import itertools
import os
import random
import threading
import time
from typing import Any

import numpy
import torch
from subjects import ROWS, WIDTH, Subject, case, floats, mean_loss, stack
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils import checkpoint

KIND = "more"


# ---- ambient state ----------------------------------------------------------------------------


@case(KIND)
def autocast_in_every_second_block() -> Subject:
    places = itertools.count()

    def prepare(block: Any) -> None:
        block.place = next(places)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.place % 2 == 1):
            return functional.gelu(self.outer(x).float())

    return Subject(stack(body, prepare))


@case(KIND)
def autocast_without_its_cache_around_half_of_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            y = self.outer(x)
        return functional.gelu(y.float()) * self.outer(x)

    return Subject(stack(body), forward_in=lambda: torch.autocast("cpu", torch.bfloat16))


@case(KIND)
def a_context_variable_that_each_block_deepens() -> Subject:
    depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        depth.set(depth.get() + 1)
        return functional.gelu(x) / depth.get()

    return Subject(stack(body), watch=depth.get)


@case(KIND)
def a_thread_local_number_that_each_block_reads_and_writes() -> Subject:
    local = threading.local()
    local.scale = 1.0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        local.scale = local.scale * 0.9 + 0.1
        local.scale -= 0.01
        return functional.gelu(x) * local.scale

    return Subject(stack(body), watch=lambda: local.scale)


@case(KIND)
def an_environment_variable_that_each_block_counts_in() -> Subject:
    os.environ["NASTY_COUNT"] = "0"

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        os.environ["NASTY_COUNT"] = str(int(os.environ["NASTY_COUNT"]) + 1)
        return functional.gelu(x) * (1 + int(os.environ["NASTY_COUNT"]) % 3)

    return Subject(stack(body), watch=lambda: os.environ["NASTY_COUNT"])


@case(KIND)
def the_time_of_day() -> Subject:
    started = time.monotonic()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) if time.monotonic() >= started else torch.sin(x)

    return Subject(stack(body))


# ---- modes ---------------------------------------------------------------------------------------


@case(KIND)
def a_mode_that_replaces_gelu() -> Subject:
    class Replacing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return (torch.sin if func is functional.gelu else func)(*args, **(kwargs or {}))

    return Subject(stack(), forward_in=Replacing)


@case(KIND)
def a_dispatch_mode_that_doubles_tanh() -> Subject:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result.mul_(2) if func is torch.ops.aten.tanh.default else result

    return Subject(stack(), forward_in=Doubling)


@case(KIND)
def anomaly_mode_in_every_second_step() -> Subject:
    turn = itertools.count()

    def around() -> contextlib.AbstractContextManager[Any]:
        return torch.autograd.detect_anomaly(check_nan=True) if next(turn) % 2 else contextlib.nullcontext()

    return Subject(stack(), step_in=around)


# ---- random sources ---------------------------------------------------------------------------------


@case(KIND)
def a_system_random() -> Subject:
    source = random.SystemRandom()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) if source.random() >= 0 else torch.sin(x)

    return Subject(stack(body))


@case(KIND)
def gaussians_of_which_python_and_numpy_keep_every_second_one() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) * (1 + 0.1 * random.gauss(0, 1)) + 0.1 * numpy.random.randn()

    return Subject(stack(body), watch=lambda: (random.gauss(0, 1), numpy.random.randn()))


@case(KIND)
def a_copy_of_the_global_generator_that_the_layer_draws_from() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        own = random.Random()
        own.setstate(random.getstate())
        other = numpy.random.RandomState()
        other.set_state(numpy.random.get_state())
        return functional.gelu(x) * own.random() + other.rand()

    def between(model: nn.Module) -> None:
        random.random(), numpy.random.rand()

    return Subject(stack(body), before_backward=between)


@case(KIND)
def numpys_bit_generator_replaced_before_backward() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) * numpy.random.rand()

    def swap(model: nn.Module) -> None:
        numpy.random.set_bit_generator(numpy.random.MT19937(5))

    return Subject(stack(body), before_backward=swap)


@case(KIND)
def a_generator_that_a_thread_draws_from() -> Subject:
    generator = torch.Generator().manual_seed(3)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            mask = pool.submit(torch.rand, x.shape, generator=generator).result()
        return functional.gelu(x) * mask

    return Subject(stack(body), watch=generator.get_state)


@case(KIND)
def dropout_rates_that_cycle() -> Subject:
    def prepare(block: Any) -> None:
        block.turn = itertools.cycle((0.0, 0.5, 0.25))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(functional.gelu(x), next(self.turn))

    return Subject(stack(body, prepare))


@case(KIND)
def rrelu_and_alpha_dropout_and_gumbel() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.alpha_dropout(functional.rrelu(x, training=True), 0.2, training=True)
        return y * functional.gumbel_softmax(x, tau=0.7)

    return Subject(stack(body))


# ---- layers that write state -------------------------------------------------------------------------


@case(KIND)
def weight_norms_and_orthogonal_weights() -> Subject:
    def prepare(block: Any) -> None:
        block.old = nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))
        block.new = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH), dim=1)
        block.right = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.old(x)) + torch.sin(self.new(x)) * self.right(x)

    return Subject(stack(body, prepare))


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return weight * (1 + 0.1 * torch.sin(self.calls.float()))


@case(KIND)
def a_parametrization_that_counts() -> Subject:
    def prepare(block: Any) -> None:
        parametrize.register_parametrization(block.outer, "weight", _Counting())

    return Subject(stack(None, prepare))


@case(KIND)
def a_parametrization_cached_during_forward() -> Subject:
    def prepare(block: Any) -> None:
        parametrize.register_parametrization(block.outer, "weight", _Counting())

    return Subject(stack(None, prepare), forward_in=parametrize.cached)


@case(KIND)
def a_parametrization_removed_after_the_second_step() -> Subject:
    model = stack(None, lambda block: parametrize.register_parametrization(block.outer, "weight", _Counting()))
    turn = itertools.count()

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        if next(turn) == 2:
            for block in model.blocks:
                parametrize.remove_parametrizations(block.outer, "weight")
        loss = mean_loss(model(batch))
        loss.backward()
        return loss

    return Subject(model, step=step)


@case(KIND)
def batch_norm_with_a_cumulative_average() -> Subject:
    def prepare(block: Any) -> None:
        block.norm = nn.BatchNorm1d(WIDTH, momentum=None)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.norm(x)) + self.norm(x * 2)

    return Subject(stack(body, prepare))


@case(KIND)
def a_codebook_that_moves() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("codes", floats(3, 8, WIDTH))
        block.register_buffer("sizes", torch.ones(8))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        picked = self.codes[nearest]
        with torch.no_grad():
            hot = functional.one_hot(nearest, 8).float()
            self.sizes.mul_(0.9).add_(hot.sum(0), alpha=0.1)
            self.codes.lerp_((hot.t() @ x.detach()) / (1 + self.sizes[:, None]), 0.1)
        return x + (picked - x).detach()

    return Subject(stack(body, prepare))


@case(KIND)
def a_memory_that_carries_over_steps() -> Subject:
    def prepare(block: Any) -> None:
        block.memory = None

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x) if self.memory is None else functional.gelu(x) + 0.5 * self.memory
        self.memory = y.detach()
        return y

    return Subject(stack(body, prepare))


@case(KIND)
def a_queue_of_keys() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("keys", functional.normalize(floats(4, 2 * ROWS, WIDTH)))
        block.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(x @ self.keys.clone().t(), 1)
        with torch.no_grad():
            at = int(self.at)
            self.keys[at : at + len(x)] = functional.normalize(x)
            self.at[0] = (at + len(x)) % len(self.keys)
        return scores @ self.keys.clone().detach() + functional.gelu(x)

    return Subject(stack(body, prepare))


# ---- hooks and functions of autograd ----------------------------------------------------------------


@case(KIND)
def a_function_that_counts_in_backward() -> Subject:
    seen: list[float] = []

    class Scaling(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(x)
            context.times = len(seen)
            return torch.sin(x)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = context.saved_tensors
            seen.append(float(gradient.sum()))
            return gradient * x.cos() * (1 + 0.1 * (len(seen) % 5)) + 0.001 * context.times

    return Subject(stack(lambda self, x: Scaling.apply(x)), watch=lambda: seen)


@case(KIND)
def a_function_that_counts_in_forward() -> Subject:
    calls = [0]

    class Turning(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            context.save_for_backward(x)
            return torch.sin(x) * (1 + calls[0] % 3)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * context.saved_tensors[0].cos()

    return Subject(stack(lambda self, x: functional.gelu(Turning.apply(x))), watch=lambda: calls)


@case(KIND)
def a_function_that_keeps_tensors_on_its_context() -> Subject:
    class Holding(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            context.x, context.weight = x.clone(), weight.detach().clone()
            return x @ weight.t()

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return gradient @ context.weight, gradient.t() @ context.x

    return Subject(stack(lambda self, x: functional.gelu(Holding.apply(x, self.outer.weight))))


@case(KIND)
def hooks_on_gradients_that_clip_and_draw() -> Subject:
    model = stack()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01) + 1e-4 * torch.randn(gradient.shape))
    return Subject(model)


@case(KIND)
def backward_hooks_that_replace_gradients() -> Subject:
    model = stack()
    for block in model.blocks:
        block.register_full_backward_hook(lambda module, into, outof: tuple(g * 1.5 + 1e-3 for g in into))
        block.outer.register_full_backward_pre_hook(lambda module, outof: tuple(g.tanh() for g in outof))
    return Subject(model)


@case(KIND)
def a_hook_that_reads_the_input_of_another_layer() -> Subject:
    model = stack()
    kept: dict[str, torch.Tensor] = {}
    model.blocks[0].register_forward_pre_hook(lambda module, args: kept.__setitem__("x", args[0]))
    model.blocks[2].register_forward_hook(lambda module, args, output: output + 0.1 * kept["x"])
    return Subject(model)


@case(KIND)
def a_tensor_hook_that_reads_what_forward_saved() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        scale = y.detach().abs().mean()
        y.register_hook(lambda gradient: gradient / (1 + scale))
        return y

    return Subject(stack(body))


@case(KIND)
def gradients_taken_twice() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_()
        loss = mean_loss(model(batch))
        (gradient,) = torch.autograd.grad(loss, batch, create_graph=True)
        total = loss + gradient.square().sum()
        total.backward()
        return total

    return Subject(stack(lambda self, x: torch.tanh(x) * x), step=step)


# ---- views, in-place writes, control flow --------------------------------------------------------------


@case(KIND)
def views_written_in_place() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        left, right = y[:, : WIDTH // 2], y[:, WIDTH // 2 :]
        left.sin_()
        y[:, ::3] = right[:, : len(range(0, WIDTH, 3))].detach().clone() * 0.5
        y.view(-1, 4).narrow(1, 0, 1).mul_(1.1)
        return functional.gelu(y)

    return Subject(stack(body))


@case(KIND)
def outputs_that_share_memory() -> Subject:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, 2 * WIDTH)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = functional.gelu(self.linear(x))
            return y[:, :WIDTH], y[:, WIDTH:]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Two() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                a, b = part(x)
                x = x + a * b
            return x

    return Subject(Net())


@case(KIND)
def a_loop_whose_length_depends_on_the_data() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(1 + int(x.detach().abs().sum().item()) % 3):
            x = torch.sin(x) + 0.1 * x
        return torch.where(x.mean() > 0, functional.gelu(x), torch.tanh(x))

    return Subject(stack(body))


@case(KIND)
def rows_chosen_by_the_data() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nonzero(x.detach()[:, 0] > 0)[:, 0]
        return functional.gelu(x).index_add(0, rows, torch.sin(x[rows]))

    return Subject(stack(body))


@case(KIND)
def experts_chosen_by_the_data() -> Subject:
    def prepare(block: Any) -> None:
        block.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        block.register_buffer("load", torch.zeros(3))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.softmax(x[:, :3], 1).max(1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            self.load[number] += len(rows)
            if len(rows):
                result[rows] = expert(x[rows]) * weights[rows, None]
        return result

    return Subject(stack(body, prepare))


# ---- torch.func, checkpoints ---------------------------------------------------------------------------


@case(KIND)
def a_jacobian_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        field = torch.func.vmap(torch.func.jacrev(lambda row: torch.tanh(row[:4]).sum()))(x)
        return functional.gelu(x) + field

    return Subject(stack(body))


@case(KIND)
def an_ensemble_by_vmap() -> Subject:
    def prepare(block: Any) -> None:
        block.weights = nn.Parameter(floats(5, 3, WIDTH, WIDTH) / 8)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda weight: functional.gelu(x @ weight))(self.weights).mean(0)

    return Subject(stack(body, prepare))


@case(KIND)
def a_jvp_of_a_vmap_that_draws() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        noisy = torch.func.vmap(lambda row: functional.dropout(row, 0.3), randomness="different")(x)
        value, tangent = torch.func.jvp(torch.sin, (noisy,), (torch.ones_like(x),))
        return value + 0.1 * tangent

    return Subject(stack(body))


@case(KIND)
def nested_checkpoints_that_draw() -> Subject:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(functional.gelu(x), 0.3)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(checkpoint.checkpoint(inner, x, use_reentrant=False)) + functional.dropout(x, 0.1)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint.checkpoint(outer, x, use_reentrant=False) * random.random()

    return Subject(stack(body))


@case(KIND)
def a_selective_checkpoint() -> Subject:
    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        is_product = operator is torch.ops.aten.addmm.default
        return checkpoint.CheckpointPolicy.MUST_SAVE if is_product else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(checkpoint.create_selective_checkpoint_contexts, policy)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint.checkpoint(
            lambda x: functional.gelu(self.outer(torch.sin(x))), x, use_reentrant=False, context_fn=contexts
        )

    return Subject(stack(body))
