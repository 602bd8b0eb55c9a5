"""The user's function modes, dispatch modes and saved-tensor hooks: around parts of the step, inside layers, across
steps, and ended by exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from subjects import Stack, Subject, case, mean_loss, stack
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten


class Scaling(TorchFunctionMode):
    """Multiplies the result of each linear layer by 1.25."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 1.25 if function is functional.linear else result


class Counting(TorchFunctionMode):
    """Counts calls and changes nothing."""

    calls = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


class Rounding(TorchDispatchMode):
    """Rounds the results of some operators to BF16, below autograd."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in (aten.mm.default, aten.addmm.default, aten.tanh.default):
            result = result.bfloat16().float()
        return result


class Watching(TorchDispatchMode):
    """Counts operators and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return function(*args, **(kwargs or {}))


_MODES: dict[str, Any] = {
    "scaling_function_mode": Scaling,
    "counting_function_mode": Counting,
    "rounding_dispatch_mode": Rounding,
    "watching_dispatch_mode": Watching,
    "flop_counter": lambda: FlopCounterMode(display=False),
    "two_modes": lambda: _both(Scaling(), Rounding()),
}


@contextlib.contextmanager
def _both(*modes: Any) -> Iterator[None]:
    with contextlib.ExitStack() as entered:
        for mode in modes:
            entered.enter_context(mode)
        yield


def _enter() -> None:
    for name, mode in _MODES.items():
        for where in ("forward", "backward", "step"):

            @case("modes", f"{name}_around_{where}")
            def make(mode: Any = mode, where: str = where) -> Subject:
                return Subject(stack(), **{f"{where}_in": mode})


_enter()


@case("modes")
def a_mode_inside_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with Scaling():
            return functional.linear(x, self.inner.weight)

    return Subject(stack(body))


@case("modes")
def a_dispatch_mode_inside_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with Rounding():
            return functional.gelu(functional.linear(x, self.inner.weight))

    return Subject(stack(body))


@case("modes")
def a_mode_entered_in_one_step_and_left_in_the_third() -> Subject:
    """No `with` statement could enclose this: the mode is entered in the middle of one step and left in another's."""
    mode, turns = Scaling(), iter(range(100))

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        turn = next(turns)
        output = model(batch)
        if turn == 0:
            mode.__enter__()
        loss = mean_loss(output)
        loss.backward()
        if turn == 2:
            mode.__exit__(None, None, None)
        return loss

    return Subject(stack(), step=step)


@case("modes")
def a_dispatch_mode_entered_before_backward_and_left_after_the_next_forward() -> Subject:
    held: list[Any] = []

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        output = model(batch)
        while held:
            held.pop().__exit__(None, None, None)
        loss = mean_loss(output)
        held.append(Rounding())
        held[0].__enter__()
        loss.backward()
        return loss

    def watch() -> int:
        while held:
            held.pop().__exit__(None, None, None)
        return torch._C._len_torch_dispatch_stack()

    return Subject(stack(), step=step, watch=watch)


@case("modes")
def a_mode_entered_by_the_first_block_and_left_by_the_last() -> Subject:
    mode = Scaling()

    class Entering(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number, self.linear = number, nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.number == 0:
                mode.__enter__()
            y = torch.tanh(functional.linear(x, self.linear.weight))
            if self.number == 3:
                mode.__exit__(None, None, None)
            return x + y

    return Subject(Stack([Entering(number) for number in range(4)]))


@case("modes")
def an_exception_inside_a_mode_in_a_layer() -> Subject:
    """The second step's forward fails inside a mode; the loop continues."""
    calls = iter(range(10**6))
    state = {"armed": False}

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with Rounding(), Scaling():
            y = functional.linear(x, self.inner.weight)
            if state["armed"]:
                raise ValueError("nasty")
            return y

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor | None:
        state["armed"] = next(calls) == 1
        try:
            loss = mean_loss(model(batch))
        except ValueError:
            return None
        loss.backward()
        return loss

    return Subject(stack(body), step=step)


@case("modes")
def an_exception_in_backward_below_a_mode() -> Subject:
    turns = iter(range(100))

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor | None:
        def fail(gradient: torch.Tensor) -> None:
            raise ValueError("nasty")

        turn = next(turns)
        with Watching(), Counting():
            output = model(batch)
            if turn == 1:
                output.register_hook(fail)
            loss = mean_loss(output)
            try:
                loss.backward()
            except ValueError:
                return None
        return loss

    return Subject(stack(), step=step)


@case("modes")
def an_exception_in_the_middle_of_backward() -> Subject:
    """Backward fails after some layers were replayed and before the others are."""
    state = {"turn": -1, "block": 0}

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self is state["third"] and state["turn"] == 1:

            def fail(gradient: torch.Tensor) -> None:
                raise ValueError("nasty")

            x = x * 1.0
            if x.requires_grad:
                x.register_hook(fail)
        return functional.gelu(x)

    model = stack(body)
    state["third"] = model.blocks[2]  # type: ignore[assignment]

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor | None:
        state["turn"] += 1
        loss = mean_loss(model(batch))
        try:
            loss.backward()
        except ValueError:
            return None
        return loss

    return Subject(model, step=step)


def _to_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


def _from_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


@case("modes")
def saved_tensors_to_half_around_forward() -> Subject:
    return Subject(stack(), forward_in=lambda: torch.autograd.graph.saved_tensors_hooks(_to_half, _from_half))


@case("modes")
def save_on_cpu_around_forward() -> Subject:
    return Subject(stack(), forward_in=torch.autograd.graph.save_on_cpu)


@case("modes")
def saved_tensors_to_half_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(_to_half, _from_half):
            return torch.tanh(x) * x

    return Subject(stack(body))


@case("modes")
def hooks_disabled_around_forward() -> Subject:
    return Subject(stack(), forward_in=lambda: torch.autograd.graph.disable_saved_tensors_hooks("nasty"))


@case("modes")
def hooks_disabled_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.disable_saved_tensors_hooks("nasty"):
            return torch.tanh(x) * x

    return Subject(stack(body))


@case("modes")
def hooks_disabled_in_one_block_only() -> Subject:
    model = stack()
    usual = model.blocks[1].body

    def body(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.disable_saved_tensors_hooks("nasty"):
            return usual(x)

    model.blocks[1].body = body  # type: ignore[assignment]
    return Subject(model)


@case("modes")
def hooks_disabled_around_backward() -> Subject:
    return Subject(stack(), backward_in=lambda: torch.autograd.graph.disable_saved_tensors_hooks("nasty"))


@case("modes")
def hooks_disabled_around_the_step() -> Subject:
    return Subject(stack(), step_in=lambda: torch.autograd.graph.disable_saved_tensors_hooks("nasty"))


@case("modes")
def forward_mode_gradients_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        _, tangent = torch.func.jvp(torch.tanh, (x,), (torch.ones_like(x),))
        return x * tangent

    return Subject(stack(body))


@case("modes")
def vmap_and_grad_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        def energy(row: torch.Tensor) -> torch.Tensor:
            return torch.tanh(row @ self.inner.weight).sum()

        return torch.func.vmap(torch.func.grad(energy))(x)

    return Subject(stack(body))
