"""Loops that continue after an exception or interrupt in a layer, a hook or backward; and unusual steps."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import signal
from collections.abc import Callable
from typing import Any

import torch
from subjects import WIDTH, Subject, case, floats, mean_loss, stack
from torch import nn
from torch.nn import functional


def _raising(error: type[BaseException], where: str, turns: tuple[int, ...] = (1,)) -> Callable[[], Subject]:
    """A model whose third block fails in the steps `turns`: in forward, or in backward before or after the block's own
    operators. The loop drops all gradients and continues."""

    def make() -> Subject:
        state: dict[str, Any] = {"turn": -1}

        def fail(*_: Any) -> None:
            raise error("nasty")

        def body(self: Any, x: torch.Tensor) -> torch.Tensor:
            self.norm(x)
            if self is state["third"] and state["turn"] in turns:
                if where == "forward":
                    fail()
                y = functional.gelu(x)
                (y if where == "before" else x).register_hook(fail)
                return y
            return functional.gelu(functional.dropout(x, 0.2))

        def prepare(block: Any) -> None:
            block.norm = nn.BatchNorm1d(WIDTH)

        model = stack(body, prepare)
        state["third"] = model.blocks[2]

        def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor | None:
            state["turn"] += 1
            try:
                loss = mean_loss(model(batch))
                loss.backward()
            except error:
                model.zero_grad()
                return None
            return loss

        return Subject(model, step=step)

    return make


for _error in (ValueError, KeyboardInterrupt, MemoryError):
    for _where in ("forward", "before", "after"):
        case(
            "loops", f"{_error.__name__}_{_where}_backward" if _where != "forward" else f"{_error.__name__}_in_forward"
        )(_raising(_error, _where))
case("loops", "an_error_in_the_first_step")(_raising(ValueError, "forward", (0,)))
case("loops", "an_error_in_backward_of_the_first_step")(_raising(ValueError, "after", (0,)))


@case("loops")
def a_signal_in_forward() -> Subject:
    """As Ctrl-C does, the handler raises between two bytecodes."""
    state = {"turn": -1}

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        if state["turn"] == 1:
            signal.raise_signal(signal.SIGINT)
        return y

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor | None:
        state["turn"] += 1
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            loss = mean_loss(model(batch))
            loss.backward()
        except KeyboardInterrupt:
            return None
        finally:
            signal.signal(signal.SIGINT, before)
        return loss

    return Subject(stack(body), step=step)


@case("loops")
def backward_twice() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    return Subject(stack(lambda self, x: functional.dropout(torch.tanh(x), 0.2)), step=step)


@case("loops")
def backward_once_too_often() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        loss.backward()
        with contextlib.suppress(RuntimeError):
            loss.backward()
        return loss

    return Subject(stack(), step=step)


@case("loops")
def the_weights_change_before_backward() -> Subject:
    """torch refuses this backward, so memscale must refuse it too."""

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor | None:
        loss = mean_loss(model(batch))
        with torch.no_grad():
            model.blocks[1].outer.weight.mul_(0.9)  # type: ignore[index, union-attr, operator]
        try:
            loss.backward()
        except RuntimeError:
            model.zero_grad()
            return None
        return loss

    return Subject(stack(), step=step)


@case("loops")
def evaluation_between_forward_and_backward() -> Subject:
    def prepare(block: Any) -> None:
        block.norm, block.dropout = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        model.eval()
        with torch.no_grad():
            model(batch * 2)
        model.train()
        loss.backward()
        return loss

    return Subject(stack(lambda self, x: self.dropout(self.norm(x)), prepare), step=step)


@case("loops")
def a_copy_and_a_checkpoint_between_forward_and_backward() -> Subject:
    def prepare(block: Any) -> None:
        block.norm = nn.BatchNorm1d(WIDTH)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        copy.deepcopy(model.state_dict())
        torch.save(model.state_dict(), io.BytesIO())
        gc.collect()
        loss.backward()
        return loss

    return Subject(stack(lambda self, x: self.norm(x), prepare), step=step)


@case("loops")
def gradients_of_some_parameters_only() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        torch.autograd.backward(loss, inputs=list(model.blocks[1].parameters()))  # type: ignore[index]
        return loss

    return Subject(stack(), step=step)


@case("loops")
def gradients_without_backward() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        return loss

    return Subject(stack(), step=step)


@case("loops")
def gradient_accumulation() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for part in batch.chunk(4):
            loss = mean_loss(model(part)) / 4
            loss.backward()
            total += loss.detach()
        return total

    return Subject(stack(), step=step)


@case("loops")
def a_batch_of_another_size_each_step() -> Subject:

    return Subject(stack(), batch=lambda seed: floats(seed, 4 + 3 * (seed % 4), WIDTH))
