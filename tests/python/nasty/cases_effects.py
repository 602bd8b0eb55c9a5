"""Layers that keep state: they count calls, or write to closures, globals, classes, files or attributes."""

from __future__ import annotations

import collections
import functools
import logging
import pathlib
import tempfile
import weakref
from typing import Any

import numpy
import torch
from subjects import WIDTH, Stack, Subject, case, stack
from torch import nn
from torch.nn import functional

COUNT = 0
SEEN: list[float] = []
AVERAGE = torch.zeros(WIDTH)


def _turning(count: int, x: torch.Tensor) -> torch.Tensor:
    """Computes another function in every third call."""
    return functional.gelu(x) if count % 3 else torch.sin(x)


@case("effects")
def a_count_in_a_cell() -> Subject:
    count = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: count)


@case("effects")
def a_count_in_a_cell_that_decides() -> Subject:
    count = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return _turning(count, x)

    return Subject(stack(body), watch=lambda: count)


@case("effects")
def a_global_count() -> Subject:
    global COUNT
    COUNT = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        global COUNT
        COUNT += 1
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: COUNT)


@case("effects")
def a_global_count_that_decides() -> Subject:
    global COUNT
    COUNT = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        global COUNT
        COUNT += 1
        return _turning(COUNT, x)

    return Subject(stack(body), watch=lambda: COUNT)


@case("effects")
def a_count_in_the_class() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        type(self).count += 1
        return _turning(type(self).count, x)

    model = stack(body)
    kind: Any = type(model.blocks[0])
    kind.count = 0
    return Subject(model, watch=lambda: kind.count)


@case("effects")
def a_count_in_the_layer() -> Subject:
    def prepare(block: Any) -> None:
        block.count = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return _turning(self.count, x)

    model = stack(body, prepare)
    return Subject(model, watch=lambda: [block.count for block in model.blocks])


@case("effects")
def a_count_in_an_object_with_slots() -> Subject:
    class Counter:
        __slots__ = ("value",)

        def __init__(self) -> None:
            self.value = 0

    counter = Counter()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        counter.value += 1
        return _turning(counter.value, x)

    return Subject(stack(body), watch=lambda: counter.value)


@case("effects")
def a_count_in_the_parent() -> Subject:
    class Parent(Stack):
        count = 0

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.parents: list[Any] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.parents[0]().count += 1
            return x + _turning(self.parents[0]().count, self.linear(x))

    model = Parent([Child() for _ in range(4)])
    for block in model.blocks:
        block.parents.append(weakref.ref(model))
    return Subject(model, watch=lambda: model.count)


@case("effects")
def a_list_in_a_closure() -> Subject:
    seen: list[float] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.abs().mean().item())
        return x / (1 + seen[-1])

    return Subject(stack(body), watch=lambda: list(seen))


@case("effects")
def a_global_list() -> Subject:
    SEEN.clear()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(float(x.detach().abs().mean()))
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: list(SEEN))


@case("effects")
def activations_in_a_global_dictionary() -> Subject:
    """Layers store their last input, as feature probes do."""
    features: dict[int, torch.Tensor] = {}

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        features[id(self)] = x.detach()
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: list(features.values()))


@case("effects")
def activations_that_the_loss_uses() -> Subject:
    features: list[torch.Tensor] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        features.append(x)
        return functional.gelu(x)

    def loss(output: torch.Tensor) -> torch.Tensor:
        extra = sum(feature.square().mean() for feature in features)
        features.clear()
        return output.square().mean() + 0.01 * extra

    return Subject(stack(body), loss=loss, watch=lambda: len(features))


@case("effects")
def an_auxiliary_loss_on_the_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.auxiliary = x.square().mean()
        return functional.gelu(x)

    model = stack(body)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean() + 0.01 * sum(block.auxiliary for block in model.blocks)

    return Subject(model, loss=loss)


@case("effects")
def a_moving_average_in_a_closure() -> Subject:
    average = torch.zeros(WIDTH)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - average

    return Subject(stack(body), watch=average.clone)


@case("effects")
def a_global_moving_average() -> Subject:
    AVERAGE.zero_()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        AVERAGE.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - AVERAGE

    return Subject(stack(body), watch=AVERAGE.clone)


@case("effects")
def a_moving_average_in_numpy() -> Subject:
    def prepare(block: Any) -> None:
        block.average = numpy.zeros(WIDTH, dtype=numpy.float32)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.average *= 0.9
        self.average += 0.1 * x.detach().mean(0).numpy()
        return x - torch.from_numpy(self.average.copy())

    model = stack(body, prepare)
    return Subject(model, watch=lambda: [torch.from_numpy(block.average.copy()) for block in model.blocks])


@case("effects")
def a_big_tensor_attribute_written_in_place() -> Subject:
    """The attribute is larger than a megabyte."""

    def prepare(block: Any) -> None:
        block.bank = torch.zeros(12000, WIDTH)
        block.place = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        self.bank[self.place : self.place + rows] = x.detach()
        self.place = (self.place + rows) % 12000
        return x - self.bank.sum(0) / (1 + self.place)

    model = stack(body, prepare)
    return Subject(model, watch=lambda: [block.bank.sum() for block in model.blocks])


@case("effects")
def a_big_tensor_that_accumulates() -> Subject:
    def prepare(block: Any) -> None:
        block.bank = torch.zeros(12000, WIDTH)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.bank += x.detach().mean()
        return x - self.bank[0]

    model = stack(body, prepare)
    return Subject(model, watch=lambda: [block.bank[:4].clone() for block in model.blocks])


@case("effects")
def a_big_buffer_that_accumulates() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("bank", torch.zeros(12000, WIDTH))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.bank += x.detach().mean()
        return x - self.bank[0]

    return Subject(stack(body, prepare))


@case("effects")
def a_buffer_rebound_in_forward() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("average", torch.zeros(WIDTH))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x - self.average

    return Subject(stack(body, prepare))


@case("effects")
def a_buffer_registered_in_forward() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.register_buffer("late", x.detach().mean(0).clone())
        self.late.mul_(0.5)
        return x - self.late

    return Subject(stack(body))


@case("effects")
def a_buffer_that_grows() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("table", torch.zeros(0, WIDTH))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.table = torch.cat([self.table, x.detach()[:1]])
        return x - self.table.mean(0)

    return Subject(stack(body, prepare))


@case("effects")
def a_batch_norm_in_a_closure() -> Subject:
    """No module holds the batch norm."""
    norm = nn.BatchNorm1d(WIDTH)
    return Subject(stack(lambda self, x: norm(x)), watch=lambda: norm.running_mean.clone())


@case("effects")
def batch_norm() -> Subject:
    def prepare(block: Any) -> None:
        block.norm = nn.BatchNorm1d(WIDTH)

    return Subject(stack(lambda self, x: self.norm(x), prepare))


@case("effects")
def spectral_norm() -> Subject:
    def prepare(block: Any) -> None:
        block.inner = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))

    return Subject(stack(lambda self, x: functional.gelu(x), prepare))


@case("effects")
def spectral_norm_as_a_parametrization() -> Subject:
    def prepare(block: Any) -> None:
        nn.utils.parametrizations.spectral_norm(block.inner)
        nn.utils.parametrizations.weight_norm(block.outer)

    return Subject(stack(lambda self, x: functional.gelu(x), prepare))


@case("effects")
def a_file_that_grows() -> Subject:
    path = pathlib.Path(tempfile.mkdtemp()) / "log"
    path.write_text("")

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with path.open("a") as file:
            file.write("x")
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: len(path.read_text()))


@case("effects")
def a_file_that_decides() -> Subject:
    path = pathlib.Path(tempfile.mkdtemp()) / "log"
    path.write_text("")

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with path.open("a") as file:
            file.write("x")
        return _turning(path.stat().st_size, x)

    return Subject(stack(body), watch=lambda: len(path.read_text()))


@case("effects")
def a_log_record_per_call() -> Subject:
    heard: list[str] = []
    logger = logging.getLogger("nasty")
    logger.handlers[:] = [logging.Handler()]
    logger.handlers[0].emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        logger.info("called")
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: len(heard))


@case("effects")
def a_cached_function() -> Subject:
    calls = []

    @functools.lru_cache(maxsize=2)
    def table(width: int) -> torch.Tensor:
        calls.append(width)
        return torch.linspace(0.5, 1.5, width)

    return Subject(stack(lambda self, x: x * table(x.shape[1])), watch=lambda: len(calls) <= 1)


@case("effects")
def a_table_made_at_the_first_call() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "table"):
            self.table = torch.rand(x.shape[1])
        return x * self.table

    return Subject(stack(body))


@case("effects")
def a_count_in_a_counter() -> Subject:
    counts: collections.Counter[str] = collections.Counter()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        return _turning(counts["calls"], x)

    return Subject(stack(body), watch=lambda: dict(counts))


@case("effects")
def a_count_in_a_nested_attribute() -> Subject:
    class Options:
        def __init__(self) -> None:
            self.inner = {"schedule": [0]}

    def prepare(block: Any) -> None:
        block.options = Options()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.options.inner["schedule"][0] += 1
        return _turning(self.options.inner["schedule"][0], x)

    model = stack(body, prepare)
    return Subject(model, watch=lambda: [block.options.inner["schedule"][0] for block in model.blocks])


@case("effects")
def a_count_on_the_function_itself() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        body.count += 1  # type: ignore[attr-defined]
        return _turning(body.count, x)  # type: ignore[attr-defined]

    body.count = 0  # type: ignore[attr-defined]
    return Subject(stack(body), watch=lambda: body.count)  # type: ignore[attr-defined]


@case("effects")
def a_forward_hook_that_counts() -> Subject:
    counts = [0]
    model = stack()

    def count(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        counts[0] += 1
        return output * (1.0 if counts[0] % 3 else 0.5)

    for block in model.blocks:
        block.register_forward_hook(count)
    return Subject(model, watch=lambda: counts[0])


@case("effects")
def an_attribute_changed_before_backward() -> Subject:
    """The loop changes a temperature after forward has used it."""

    def prepare(block: Any) -> None:
        block.temperature = 1.0

    def anneal(model: nn.Module) -> None:
        for block in model.blocks:  # type: ignore[union-attr]
            block.temperature *= 0.5

    return Subject(stack(lambda self, x: torch.tanh(x / self.temperature), prepare), before_backward=anneal)


@case("effects")
def eval_before_backward() -> Subject:
    def prepare(block: Any) -> None:
        block.dropout = nn.Dropout(0.4)

    model = stack(lambda self, x: self.dropout(x), prepare)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        model.train()
        loss = model(batch).square().mean()
        model.eval()
        loss.backward()
        return loss

    return Subject(model, step=step)


@case("effects")
def a_cell_changed_before_backward() -> Subject:
    scale = 1.0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * scale)

    def change(model: nn.Module) -> None:
        nonlocal scale
        scale *= 1.1

    return Subject(stack(body), before_backward=change)


@case("effects")
def a_tensor_in_a_closure_changed_before_backward() -> Subject:
    scale = torch.ones(WIDTH)

    def change(model: nn.Module) -> None:
        scale.mul_(1.1)

    return Subject(stack(lambda self, x: torch.tanh(x + scale)), before_backward=change)


@case("effects")
def a_buffer_changed_before_backward() -> Subject:
    def prepare(block: Any) -> None:
        block.register_buffer("shift", torch.zeros(WIDTH))

    def change(model: nn.Module) -> None:
        for block in model.blocks:  # type: ignore[union-attr]
            block.shift.add_(0.1)

    return Subject(stack(lambda self, x: torch.tanh(x + self.shift), prepare), before_backward=change)


@case("effects")
def a_parameter_frozen_before_backward() -> Subject:
    def change(model: nn.Module) -> None:
        model.blocks[1].inner.weight.requires_grad_(False)  # type: ignore[index, union-attr]

    return Subject(stack(), before_backward=change, steps=1)


@case("effects")
def a_hook_added_before_backward() -> Subject:
    def change(model: nn.Module) -> None:
        model.blocks[1].register_forward_hook(lambda module, args, output: output * 2)  # type: ignore[index]

    return Subject(stack(), before_backward=change, steps=1)


@case("effects")
def a_weight_replaced_before_backward() -> Subject:
    def change(model: nn.Module) -> None:
        layer = model.blocks[1].inner  # type: ignore[index, union-attr]
        layer.weight = nn.Parameter(layer.weight.detach() * 2)

    return Subject(stack(), before_backward=change, steps=1)


@case("effects")
def a_second_forward_before_backward() -> Subject:
    count = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        return _turning(count, x)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch).square().mean() + model(batch * 2).square().mean()
        loss.backward()
        return loss

    return Subject(stack(body), step=step, watch=lambda: count)


@case("effects")
def a_moving_average_in_numpy_in_a_closure() -> Subject:
    average = numpy.zeros(WIDTH, dtype=numpy.float32)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal average
        average *= 0.9
        average += 0.1 * x.detach().mean(0).numpy()
        return x - torch.from_numpy(average.copy())

    return Subject(stack(body), watch=lambda: torch.from_numpy(average.copy()))
