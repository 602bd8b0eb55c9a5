"""What a case is, and `CASES`, the table of all cases: layers and loops that nobody should write but somebody does.

A case is a function that makes a `Subject`: a model, its batches and the loop around it. Every run calls the function
again, so runs share nothing. `run.py` trains the subject twice unwrapped and once wrapped in each configuration, and
compares every bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH, ROWS, BLOCKS = 32, 16, 4

Context = Callable[[], contextlib.AbstractContextManager[Any]]


def floats(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (ROWS, WIDTH)), generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def mean_loss(output: Any) -> torch.Tensor:
    """A loss that weights every element differently."""
    weights = torch.linspace(0.5, 1.5, output.numel(), dtype=torch.float32, device=output.device).view(output.shape)
    return (output.float() * weights).mean()


@dataclasses.dataclass
class Subject:
    """A model and a loop that trains it.

    `forward_in`, `backward_in`, `step_in`: contexts around forward, backward and the whole step.
    `before_backward`: called with the model between forward and backward. `step`: replaces forward and
    backward; takes (model, batch), leaves gradients and returns the loss. `watch`: returns the state outside
    the model that a run changes (generators, counters, files). `steps`: number of steps.
    """

    model: nn.Module
    batch: Callable[[int], torch.Tensor] = floats
    loss: Callable[[Any], torch.Tensor] = mean_loss
    forward_in: Context = contextlib.nullcontext
    backward_in: Context = contextlib.nullcontext
    step_in: Context = contextlib.nullcontext
    before_backward: Callable[[nn.Module], None] | None = None
    step: Callable[[nn.Module, torch.Tensor], torch.Tensor | None] | None = None
    watch: Callable[[], Any] | None = None
    steps: int = 4

    def one_step(self, batch: torch.Tensor) -> torch.Tensor | None:
        with self.step_in():
            if self.step is not None:
                return self.step(self.model, batch)
            with self.forward_in():
                loss = self.loss(self.model(batch))
            if self.before_backward is not None:
                self.before_backward(self.model)
            with self.backward_in():
                loss.backward()
            return loss


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str
    name: str
    make: Callable[[], Subject]

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}"


CASES: list[Case] = []


def case(kind: str, name: str = "") -> Callable[[Callable[[], Subject]], Callable[[], Subject]]:
    """Decorator: adds a function that makes a subject to the table."""

    def enter(make: Callable[[], Subject]) -> Callable[[], Subject]:
        CASES.append(Case(kind, name or make.__name__, make))
        return make

    return enter


Body = Callable[[Any, torch.Tensor], torch.Tensor]


class Block(nn.Module):
    """A residual block around `body`, a method that subclasses replace."""

    def __init__(self, prepare: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if prepare is not None:
            prepare(self)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.tanh(self.body(self.inner(x))))


class Stack(nn.Module):
    """A list of blocks between two linear layers."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def stack(body: Body | None = None, prepare: Callable[[Any], None] | None = None) -> Stack:
    """Four blocks whose forward calls `body(self, x)`."""
    kind = Block if body is None else type("Nasty", (Block,), {"body": body})
    return Stack([kind(prepare) for _ in range(BLOCKS)])
