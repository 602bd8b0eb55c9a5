"""Autograd's hooks, custom autograd functions, and parameters that forward writes."""

from __future__ import annotations

import threading
from typing import Any

import torch
from subjects import WIDTH, Block, Stack, Subject, case, mean_loss, stack
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# ---- hooks ------------------------------------------------------------------------------


@case("autograd")
def a_multi_grad_hook_on_parameters() -> Subject:
    model, heard = stack(), []
    torch.autograd.graph.register_multi_grad_hook(
        list(model.parameters()), lambda grads: heard.append(sum(g is not None for g in grads))
    )
    return Subject(model, watch=lambda: list(heard))


@case("autograd")
def a_multi_grad_hook_in_a_layer() -> Subject:
    heard: list[int] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        if y.requires_grad:
            torch.autograd.graph.register_multi_grad_hook([x, y], lambda grads: heard.append(len(grads)))
        return y

    return Subject(stack(body), watch=lambda: len(heard))


@case("autograd")
def a_multi_grad_hook_of_mode_any() -> Subject:
    heard: list[int] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        torch.autograd.graph.register_multi_grad_hook((x, y), lambda grad: heard.append(1), mode="any")
        return y

    return Subject(stack(body), watch=lambda: len(heard))


@case("autograd")
def a_multi_grad_hook_around_the_step() -> Subject:
    heard: list[int] = []

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        handle = torch.autograd.graph.register_multi_grad_hook(
            list(model.parameters()), lambda grads: heard.append(len(grads))
        )
        loss = mean_loss(model(batch))
        loss.backward()
        handle.remove()
        return loss

    return Subject(stack(), step=step, watch=lambda: list(heard))


@case("autograd")
def a_tensor_hook_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        y.register_hook(lambda gradient: gradient * 0.5)
        return y

    return Subject(stack(body))


@case("autograd")
def a_tensor_hook_that_counts() -> Subject:
    heard: list[int] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        y.register_hook(lambda gradient: heard.append(1))
        return torch.tanh(y)

    return Subject(stack(body), watch=lambda: len(heard))


@case("autograd")
def a_node_hook_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        y.grad_fn.register_hook(lambda inputs, outputs: tuple(None if g is None else g * 0.9 for g in inputs))
        y.grad_fn.register_prehook(lambda outputs: tuple(None if g is None else g * 1.1 for g in outputs))
        return y

    return Subject(stack(body))


@case("autograd")
def hooks_on_parameters() -> Subject:
    model, heard = stack(), []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
        parameter.register_post_accumulate_grad_hook(lambda p: heard.append(p.shape))
    return Subject(model, watch=lambda: len(heard))


@case("autograd")
def an_optimizer_in_backward() -> Subject:
    model = stack()
    for parameter in model.parameters():

        def update(p: torch.Tensor) -> None:
            with torch.no_grad():
                p.add_(p.grad, alpha=-0.05)  # type: ignore[arg-type]

        parameter.register_post_accumulate_grad_hook(update)

    return Subject(model)


@case("autograd")
def a_gradient_retained_in_a_layer() -> Subject:
    kept: list[torch.Tensor] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        y.retain_grad()
        kept.append(y)
        return torch.tanh(y)

    def watch() -> Any:
        return [tensor.grad for tensor in kept[:4]]

    return Subject(stack(body), watch=watch, steps=1)


@case("autograd")
def full_backward_hooks() -> Subject:
    model, heard = stack(), []
    for block in model.blocks:
        block.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.9,))
        block.register_full_backward_pre_hook(lambda module, outputs: heard.append(1))
        block.inner.register_full_backward_hook(lambda module, inputs, outputs: heard.append(2))
    return Subject(model, watch=lambda: len(heard))


@case("autograd")
def forward_hooks_that_change_what_passes() -> Subject:
    model = stack()
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: (args[0] * 1.01,))
        block.register_forward_hook(lambda module, args, output: output * 0.99)
    return Subject(model)


@case("autograd")
def a_global_module_hook_during_forward() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 1.001)
        loss = mean_loss(model(batch))
        handle.remove()
        loss.backward()
        return loss

    return Subject(stack(), step=step)


# ---- custom autograd functions ------------------------------------------------------------


class _Scaled(torch.autograd.Function):
    """Keeps a number and a detached tensor on its context, and saves its result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale, ctx.kept = scale, x.detach().clone()
        y = torch.tanh(x) * scale
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return gradient * (ctx.scale - y * y / ctx.scale) + 0 * x * ctx.kept, None


class _Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.tanh_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (1 - y * y)


class _Twice(torch.autograd.Function):
    """Returns two results, the second without a gradient. Gradients that are None stay None."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        order = x.argsort(1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return x * 2, order

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None, _: Any) -> Any:
        (order,) = ctx.saved_tensors
        return None if gradient is None else gradient * 2 + 0 * order


@case("autograd")
def a_function_with_a_context() -> Subject:
    return Subject(stack(lambda self, x: _Scaled.apply(x, 0.7)))


@case("autograd")
def a_function_that_writes_its_argument() -> Subject:
    return Subject(stack(lambda self, x: _Dirty.apply(x * 1.0)))


@case("autograd")
def a_function_with_a_nondifferentiable_result() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y, order = _Twice.apply(x)
        return y.gather(1, order)

    return Subject(stack(body))


@case("autograd")
def a_checkpoint_in_a_layer() -> Subject:
    return Subject(stack(lambda self, x: checkpoint(functional.gelu, x, use_reentrant=False)))


@case("autograd")
def a_reentrant_checkpoint_in_a_layer() -> Subject:
    return Subject(stack(lambda self, x: checkpoint(functional.gelu, x, use_reentrant=True)))


@case("autograd")
def a_checkpoint_with_dropout_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: functional.dropout(torch.tanh(y), 0.3), x, use_reentrant=False)

    return Subject(stack(body))


@case("autograd")
def a_gradient_inside_forward() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            y = x if x.requires_grad else x.detach().requires_grad_()
            energy = torch.tanh(y @ self.inner.weight).sum()
            (force,) = torch.autograd.grad(energy, y, create_graph=True)
        return x + force

    return Subject(stack(body))


@case("autograd")
def a_backward_inside_forward() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            probe = x.detach().requires_grad_()
            torch.tanh(probe).sum().backward()
        return x * probe.grad

    return Subject(stack(body))


@case("autograd")
def a_gradient_penalty() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_()
        loss = mean_loss(model(batch))
        (gradient,) = torch.autograd.grad(loss, batch, create_graph=True)
        loss = loss + gradient.square().sum()
        loss.backward()
        return loss

    return Subject(stack(lambda self, x: torch.tanh(x)), step=step)


@case("autograd")
def a_detached_part() -> Subject:
    return Subject(stack(lambda self, x: functional.gelu(x).detach() * x))


@case("autograd")
def an_argument_written_in_place() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5)
        return functional.gelu(x)

    return Subject(stack(body))


class _Odd(nn.Module):
    """Returns its argument, a view of it, or a new tensor, depending on its number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.number == 0:
            return x
        if self.number == 1:
            return x.view(-1).view(x.shape)
        y = self.linear(x)
        if self.number == 2:
            y += x
            return y
        return y.t().t()


@case("autograd")
def layers_that_return_their_argument() -> Subject:
    return Subject(Stack([_Odd(number) for number in (2, 0, 1, 3)]))


class _Writing(nn.Module):
    """Writes into its argument and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(torch.tanh(self.linear(x.clone())))
        return x


@case("autograd")
def a_residual_stream_written_in_place() -> Subject:
    return Subject(Stack([_Writing() for _ in range(4)]))


@case("autograd")
def a_branch_on_the_data() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) if x.detach().mean() > 0 else functional.gelu(x)

    return Subject(stack(body))


@case("autograd")
def a_shape_that_depends_on_the_data() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        chosen = x[:, 0] > 0
        y = x.clone()
        y[chosen] = torch.tanh(x[chosen])
        return y

    return Subject(stack(body))


@case("autograd")
def an_exception_that_the_layer_swallows() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            return x @ x
        except RuntimeError:
            return functional.gelu(x)

    return Subject(stack(body))


@case("autograd")
def a_thread_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(torch.tanh(x)))
        thread.start()
        thread.join()
        return found[0] * x

    return Subject(stack(body))


@case("autograd")
def a_layer_called_twice() -> Subject:
    class Twice(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in [*self.blocks, *self.blocks]:
                x = block(x)
            return self.last(x)

    return Subject(Twice([Block() for _ in range(3)]))


@case("autograd")
def forward_called_without_the_module() -> Subject:
    class Direct(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = block.forward(x)
            return self.last(x)

    return Subject(Direct([Block() for _ in range(4)]))


@case("autograd")
def backward_in_another_thread() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return loss

    return Subject(stack(), step=step)


@case("autograd")
def two_forwards_and_then_two_backwards() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        one, two = mean_loss(model(batch)), mean_loss(model(batch.flip(0)))
        one.backward()
        two.backward()
        return one + two

    return Subject(stack(), step=step)


@case("autograd")
def a_forward_that_is_thrown_away() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        model(batch * 3)
        loss = mean_loss(model(batch))
        loss.backward()
        return loss

    return Subject(stack(), step=step)


# ---- parameters written in forward --------------------------------------------------------


class _Words(nn.Module):
    """A block that looks up an embedding, which `max_norm` scales down in forward."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding, self.linear = embedding, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index = (x.detach()[:, :4].abs() * 100).long() % 50
        rows = self.embedding(index)
        return x + torch.tanh(self.linear(rows.mean(1) if rows.dim() == 3 else rows))


def _large(embedding: Any) -> Any:
    with torch.no_grad():
        embedding.weight.mul_(5)
    return embedding


@case("autograd")
def embeddings_with_max_norm() -> Subject:
    return Subject(Stack([_Words(_large(nn.Embedding(50, WIDTH, max_norm=1.0))) for _ in range(4)]))


@case("autograd")
def a_shared_embedding_with_max_norm() -> Subject:
    embedding = _large(nn.Embedding(50, WIDTH, max_norm=1.0))
    return Subject(Stack([_Words(embedding) for _ in range(4)]))


@case("autograd")
def embedding_bags_with_max_norm() -> Subject:
    return Subject(Stack([_Words(_large(nn.EmbeddingBag(50, WIDTH, max_norm=1.0))) for _ in range(4)]))


@case("autograd")
def an_embedding_with_max_norm_before_the_blocks() -> Subject:
    class Model(Stack):
        def __init__(self, blocks: list[nn.Module]) -> None:
            super().__init__(blocks)
            self.words = _large(nn.Embedding(50, WIDTH, max_norm=1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.words((x[:, 0].abs() * 100).long() % 50))

    return Subject(Model([Block() for _ in range(4)]))


class _Lsq(nn.Module):
    """Quantizes its weight with a learned step size, which its first forward sets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.step = nn.Parameter(torch.ones(1))
        self.register_buffer("is_set", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_set == 0:
            with torch.no_grad():
                self.step.copy_(2 * self.linear.weight.abs().mean() / 7**0.5)
                self.is_set.fill_(1)
        scaled = (self.linear.weight / self.step).clamp(-8, 7)
        rounded = scaled + (scaled.round() - scaled).detach()
        return x + torch.tanh(functional.linear(x, rounded * self.step))


@case("autograd")
def a_learned_step_size() -> Subject:
    return Subject(Stack([_Lsq() for _ in range(4)]))


@case("autograd")
def a_learned_step_size_through_data() -> Subject:
    def prepare(block: Any) -> None:
        block.scale, block.ready = nn.Parameter(torch.ones(WIDTH)), False

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            self.scale.data = x.detach().abs().mean(0)
            self.ready = True
        return x / (self.scale + 0.1)

    return Subject(stack(body, prepare))


@case("autograd")
def weights_standardized_in_place() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.outer.weight.sub_(self.outer.weight.mean(1, keepdim=True))
        return functional.gelu(x)

    return Subject(stack(body))


@case("autograd")
def weights_decayed_in_place() -> Subject:
    """Running the layer twice decays the weight twice."""

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.outer.weight.mul_(0.99)
        return functional.gelu(x)

    return Subject(stack(body))


@case("autograd")
def weights_decayed_through_data() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.outer.weight.data.mul_(0.99)
        return functional.gelu(x)

    return Subject(stack(body))


@case("autograd")
def weights_clipped_through_data() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.outer.weight.data.clamp_(-0.1, 0.1)
        return functional.gelu(x)

    return Subject(stack(body))


@case("autograd")
def weights_rebound_in_forward() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.outer.weight.data = self.outer.weight.data * 0.99
        return functional.gelu(x)

    return Subject(stack(body))


@case("autograd")
def a_parameter_that_only_every_second_step_uses() -> Subject:
    turn = [0]

    def prepare(block: Any) -> None:
        block.extra = nn.Linear(WIDTH, WIDTH)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.extra(x) if turn[0] % 2 else functional.gelu(x)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        loss.backward()
        turn[0] += 1
        return loss

    return Subject(stack(body, prepare), step=step)


@case("autograd")
def a_branch_that_flips_before_backward() -> Subject:
    turn = [0]

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) if turn[0] % 2 else functional.gelu(x)

    def change(model: nn.Module) -> None:
        turn[0] += 1

    return Subject(stack(body), before_backward=change)


@case("autograd")
def layers_without_a_training_mode() -> Subject:
    model = stack(lambda self, x: functional.gelu(x))
    for module in model.modules():
        del module.training
    return Subject(model)
