"""Loops that copy, pickle, load or change the model between steps, or train it from threads; and layers that are shared
or fill their arguments."""

from __future__ import annotations

import concurrent.futures
import copy
import io
import itertools
import math
import pickle
import queue
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from subjects import WIDTH, Stack, Subject, case, floats, mean_loss, stack
from torch import nn
from torch.nn import functional

KIND = "copies"


def _between_steps(act: Callable[[Any], None], model: Any | None = None) -> Subject:
    """A loop that calls `act(model)` before each step but the first."""
    turn = itertools.count()

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if next(turn):
            act(model)
        loss = mean_loss(model(batch))
        loss.backward()
        return loss

    return Subject(model if model is not None else stack(), step=step)


@case(KIND)
def a_copy_that_trains_between_the_steps() -> Subject:
    seen: list[float] = []

    def act(model: nn.Module) -> None:
        twin = copy.deepcopy(model)
        loss = mean_loss(twin(floats(9)))
        loss.backward()
        seen.append(float(loss) + sum(float(parameter.grad.sum()) for parameter in twin.parameters()))

    subject = _between_steps(act)
    subject.watch = lambda: seen
    return subject


@case(KIND)
def an_average_of_weights_by_a_copy() -> Subject:
    model = stack(None, lambda block: setattr(block, "norm", nn.BatchNorm1d(WIDTH)))
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    subject = _between_steps(average.update_parameters, model)
    subject.watch = lambda: [value.clone() for value in average.state_dict().values()]
    return subject


class _Plain(nn.Module):
    """A model without closures, so that it can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *[nn.TransformerEncoderLayer(WIDTH, 2, 64, 0.1, batch_first=True) for _ in range(3)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.view(2, -1, WIDTH))


@case(KIND)
def pickles_between_forward_and_backward() -> Subject:
    seen: list[torch.Tensor] = []

    def save(model: nn.Module) -> None:
        stream = io.BytesIO()
        torch.save(model.state_dict(), stream)
        stream.seek(0)
        seen.append(sum(value.double().sum() for value in torch.load(stream).values()))

    return Subject(_Plain(), before_backward=save, watch=lambda: list(seen))


@case(KIND)
def an_unpickled_copy_that_evaluates_between_the_steps() -> Subject:
    seen: list[float] = []

    def act(model: Any) -> None:
        twin = pickle.loads(pickle.dumps(model.layers)).eval()
        with torch.no_grad():
            seen.append(float(twin(floats(8).view(2, -1, WIDTH)).sum()))

    subject = _between_steps(act, _Plain())
    subject.watch = lambda: seen
    return subject


@case(KIND)
def the_state_loaded_back_each_step() -> Subject:
    first = stack()
    saved = copy.deepcopy(first.state_dict())
    return _between_steps(lambda model: model.load_state_dict(saved, assign=False), first)


@case(KIND)
def the_state_assigned_each_step() -> Subject:
    model = stack()
    saved = copy.deepcopy(model.state_dict())

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        model.load_state_dict({name: value.clone() for name, value in saved.items()}, assign=True)
        loss = mean_loss(model(batch))
        loss.backward()
        return loss

    return Subject(model, step=step)


@case(KIND)
def blocks_exchanged_between_the_steps() -> Subject:
    def act(model: Any) -> None:
        model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]

    return _between_steps(act)


@case(KIND)
def a_forward_replaced_between_the_steps() -> Subject:
    def act(model: Any) -> None:
        block = model.blocks[1]
        block.forward = types.MethodType(lambda self, x: x + torch.sin(self.outer(self.inner(x))), block)

    return _between_steps(act)


@case(KIND)
def a_model_that_becomes_double_between_the_steps() -> Subject:
    turn = itertools.count()

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if next(turn) == 2:
            model.double()
        loss = mean_loss(model(batch.to(next(model.parameters()).dtype)).double())
        loss.backward()
        return loss

    return Subject(stack(), step=step)


@case(KIND)
def two_threads_train_one_after_the_other() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        results: queue.Queue[torch.Tensor] = queue.Queue()

        def work(part: torch.Tensor) -> None:
            loss = mean_loss(model(part))
            loss.backward()
            results.put(loss)

        for part in batch.chunk(2):
            thread = threading.Thread(target=work, args=(part,))
            thread.start()
            thread.join()
        return results.get() + results.get()

    return Subject(stack(lambda self, x: functional.dropout(functional.gelu(x), 0.1)), step=step)


@case(KIND)
def two_forwards_at_once_and_two_backwards() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            losses = list(pool.map(lambda part: mean_loss(model(part)), batch.chunk(2)))
        (losses[0] + losses[1]).backward()
        return losses[0] + losses[1]

    return Subject(stack(), step=step)


@case(KIND)
def weak_references_to_activations() -> Subject:
    alive: list[Any] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(x)
        alive.append(weakref.ref(y))
        return y

    return Subject(stack(body), watch=lambda: len(alive))


@case(KIND)
def an_argument_that_is_a_dictionary_the_layer_fills() -> Subject:
    class Filling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, notes: dict[str, Any]) -> torch.Tensor:
            notes["calls"] = notes.get("calls", 0) + 1
            notes.setdefault("means", []).append(x.mean())
            return x + functional.gelu(self.linear(x)) * notes["calls"]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Filling() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            notes: dict[str, Any] = {}
            for part in self.parts:
                x = part(x, notes)
            return x * torch.stack(notes["means"]).sum()

    return Subject(Net())


@case(KIND)
def an_argument_that_is_an_iterator() -> Subject:
    class Pulling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, scales: Iterator[float]) -> torch.Tensor:
            return x + functional.gelu(self.linear(x)) * next(scales)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Pulling() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scales = iter((1.0, 0.5, 2.0, 0.25))
            for part in self.parts:
                x = part(x, scales)
            return x

    return Subject(Net())


@case(KIND)
def recurrent_layers_with_a_detached_state() -> Subject:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True, dropout=0.0) for _ in range(3))
            self.states: list[torch.Tensor | None] = [None] * 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.view(2, -1, WIDTH)
            for number, cell in enumerate(self.cells):
                x, state = cell(x, self.states[number])
                self.states[number] = state.detach()
            return x

    return Subject(Net())


@case(KIND)
def a_temperature_that_a_schedule_changes_before_backward() -> Subject:
    steps = [0]

    def prepare(block: Any) -> None:
        block.temperature = lambda: 1 + math.cos(steps[0])

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.softmax(x / self.temperature(), 1) * functional.gelu(x)

    model = stack(body, prepare)

    def between(model: nn.Module) -> None:
        steps[0] += 1

    return Subject(model, before_backward=between)


@case(KIND)
def one_block_used_four_times() -> Subject:
    model = stack(lambda self, x: functional.dropout(functional.gelu(x), 0.2))
    return Subject(Stack([model.blocks[0]] * 4))
