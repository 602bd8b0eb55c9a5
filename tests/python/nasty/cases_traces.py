"""Layers with effects outside tensors: they print, log, warn, send or store, or write to containers of many kinds. Also
hooks that count or remove themselves, and modes that count."""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import io
import logging
import pathlib
import queue
import socket
import sqlite3
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import state_of_a_module
import torch
from subjects import WIDTH, Subject, case, mean_loss, stack
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# ---- prints, warnings and log records ------------------------------------------------------


@case("traces")
def what_a_layer_prints() -> Subject:
    paper = io.StringIO()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        print("called")
        return functional.gelu(x)

    @contextlib.contextmanager
    def onto() -> Iterator[None]:
        with contextlib.redirect_stdout(paper):
            yield

    return Subject(stack(body), step_in=onto, watch=lambda: paper.getvalue().count("called"))


@case("traces")
def counted_warnings_of_a_layer() -> Subject:
    heard: list[Any] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("nasty", stacklevel=1)
        return functional.gelu(x)

    @contextlib.contextmanager
    def hearing() -> Iterator[None]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield
        heard.extend(warning for warning in told if str(warning.message) == "nasty")

    return Subject(stack(body), step_in=hearing, watch=lambda: len(heard))


def _listening(name: str) -> list[str]:
    heard: list[str] = []
    logger, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    return heard


@case("traces")
def a_log_record_through_getlogger() -> Subject:
    heard = _listening("nasty.named")

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        logging.getLogger("nasty.named").info("called")
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: len(heard))


@case("traces")
def a_log_record_of_the_layers_own_logger() -> Subject:
    heard = _listening("nasty.own")

    def prepare(block: Any) -> None:
        block.log = logging.LoggerAdapter(logging.getLogger("nasty.own.inner"), {})

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.log.info("called with %d rows", x.shape[0])
        return functional.gelu(x)

    return Subject(stack(body, prepare), watch=lambda: list(heard))


@case("traces")
def a_log_record_from_another_thread() -> Subject:
    """While layers are recomputed, records of other threads must still be heard."""
    heard = _listening("nasty.other")
    log = logging.getLogger("nasty.other")

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        log.debug("not heard")
        return functional.gelu(x)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))

        def say(gradient: torch.Tensor) -> None:
            worker = threading.Thread(target=lambda: log.info("between"))
            worker.start()
            worker.join()

        for parameter in model.parameters():
            parameter.register_hook(say) if parameter.dim() == 2 and len(heard) == 0 else None
        loss.backward()
        return loss

    return Subject(stack(body), step=step, watch=lambda: len(heard))


# ---- containers and objects of other kinds --------------------------------------------------


class History(list):  # type: ignore[type-arg]
    """A user's subclass of list."""


@case("traces")
def a_users_subclass_of_list() -> Subject:
    seen = History()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return functional.gelu(x) if len(seen) % 3 else torch.sin(x)

    return Subject(stack(body), watch=lambda: len(seen))


@case("traces")
def a_users_subclass_of_dict_in_the_layer() -> Subject:
    class Counts(dict):  # type: ignore[type-arg]
        def __missing__(self, key: str) -> int:
            return 0

    def prepare(block: Any) -> None:
        block.counts = Counts()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.counts["calls"] += 1
        return functional.gelu(x)

    model = stack(body, prepare)
    return Subject(model, watch=lambda: [dict(block.counts) for block in model.blocks])


@case("traces")
def a_count_in_a_userdict() -> Subject:
    counts: Any = collections.UserDict(calls=0)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        counts["calls"] += 1
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: counts["calls"])


@case("traces")
def a_count_in_a_namespace() -> Subject:
    space = types.SimpleNamespace(calls=0)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        space.calls += 1
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: space.calls)


@case("traces")
def a_count_in_a_class_reached_by_name() -> Subject:
    class Totals:
        calls = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        Totals.calls += 1
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: Totals.calls)


@case("traces")
def a_count_in_a_python_module() -> Subject:
    state_of_a_module.CALLS = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        state_of_a_module.CALLS += 1
        state_of_a_module.note()
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: (state_of_a_module.CALLS, state_of_a_module.NOTES))


@case("traces")
def a_count_on_a_parameter() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        weight = self.inner.weight
        weight.calls = getattr(weight, "calls", 0) + 1
        return functional.gelu(x) if weight.calls % 3 else torch.sin(x)

    model = stack(body)
    return Subject(model, watch=lambda: [block.inner.weight.calls for block in model.blocks])


@case("traces")
def an_array_that_grows() -> Subject:
    seen = array.array("d")

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.detach().mean()))
        return functional.gelu(x)

    return Subject(stack(body), watch=seen.tolist)


@case("traces")
def a_queue_that_grows() -> Subject:
    line: queue.Queue[int] = queue.Queue()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        line.put(1)
        return functional.gelu(x)

    return Subject(stack(body), watch=line.qsize)


@case("traces")
def a_simple_queue_in_the_layer() -> Subject:
    def prepare(block: Any) -> None:
        block.line = queue.SimpleQueue()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.line.put(x.shape[0])
        return functional.gelu(x)

    model = stack(body, prepare)
    return Subject(model, watch=lambda: [block.line.qsize() for block in model.blocks])


@case("traces")
def a_semaphore_that_is_only_acquired() -> Subject:
    left = threading.Semaphore(100)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        left.acquire(blocking=False)
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: left._value)


@case("traces")
def rows_in_a_database() -> Subject:
    base = sqlite3.connect(":memory:")
    base.execute("create table calls (rows integer)")

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        base.execute("insert into calls values (?)", (x.shape[0],))
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: base.execute("select count(*) from calls").fetchone())


@case("traces")
def bytes_that_are_sent() -> Subject:
    here, there = socket.socketpair()
    there.setblocking(False)
    got = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        here.send(b"x")
        return functional.gelu(x)

    def watch() -> int:
        nonlocal got
        with contextlib.suppress(BlockingIOError):
            got += len(there.recv(1000))
        return got

    return Subject(stack(body), watch=watch)


@case("traces")
def tensors_that_are_saved() -> Subject:
    folder = pathlib.Path(tempfile.mkdtemp())

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.save(x.detach().mean(), folder / f"{len(list(folder.iterdir()))}.pt")
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: len(list(folder.iterdir())))


@case("traces")
def folders_that_are_made() -> Subject:
    folder = pathlib.Path(tempfile.mkdtemp())

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        (folder / str(len(list(folder.iterdir())))).mkdir()
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: len(list(folder.iterdir())))


@case("traces")
def a_cache_that_forgets() -> Subject:
    made = [0]

    @functools.lru_cache(maxsize=1)
    def table(width: int, turn: int) -> torch.Tensor:
        made[0] += 1
        return torch.linspace(0.5, 1.5 + turn, width)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * table(x.shape[1], 0) * table(x.shape[1], 1)

    return Subject(stack(body), watch=lambda: made[0])


@case("traces")
def a_cached_table_that_is_drawn() -> Subject:
    @functools.lru_cache
    def table(width: int) -> torch.Tensor:
        return torch.rand(width)

    return Subject(stack(lambda self, x: x * table(x.shape[1])), watch=lambda: table(WIDTH).clone())


@case("traces")
def a_cached_method() -> Subject:
    calls = collections.Counter()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * self.table(x.shape[1])

    @functools.cache
    def table(self: Any, width: int) -> torch.Tensor:
        calls["made"] += 1
        return torch.linspace(0.5, 1.5, width)

    model = stack(body)
    type(model.blocks[0]).table = table  # type: ignore[union-attr]
    return Subject(model, watch=lambda: dict(calls))


@case("traces")
def objects_counted_by_a_weakset() -> Subject:
    class Token:
        pass

    made: weakref.WeakSet[Token] = weakref.WeakSet()
    kept: list[Token] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        kept.append(Token())
        made.add(kept[-1])
        return functional.gelu(x)

    return Subject(stack(body), watch=lambda: (len(made), len(kept)))


@case("traces")
def a_gradient_that_forward_reads() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        gradient = self.inner.weight.grad
        return functional.gelu(x) * (1.0 if gradient is None else 1.0 + gradient.norm().item())

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        for part in batch.chunk(2):
            loss = mean_loss(model(part))
            loss.backward()
        return loss

    return Subject(stack(body), step=step)


# ---- hooks ---------------------------------------------------------------------------------


@case("traces")
def pruned_weights() -> Subject:
    model = stack()
    for block in model.blocks:
        prune.l1_unstructured(block.inner, "weight", 0.3)
        prune.random_unstructured(block.outer, "weight", 0.2)
    return Subject(model)


@case("traces")
def hooks_that_remove_themselves() -> Subject:
    model = stack()
    handles: dict[int, Any] = {}

    def once(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        handles[id(module)].remove()
        return output * 1.5

    for block in model.blocks:
        handles[id(block.inner)] = block.inner.register_forward_hook(once)
    return Subject(model)


@case("traces")
def a_hook_that_counts_in_the_layer_below() -> Subject:
    model, calls = stack(), collections.Counter()

    def count(module: nn.Module, args: Any) -> Any:
        calls["calls"] += 1
        return (args[0] * (1.0 + calls["calls"] % 3),)

    for block in model.blocks:
        block.inner.register_forward_pre_hook(count)
    return Subject(model, watch=lambda: dict(calls))


@case("traces")
def features_that_hooks_collect_for_the_loss() -> Subject:
    model, features = stack(), []
    for block in model.blocks:
        block.inner.register_forward_hook(lambda module, args, output: features.append(output))

    def loss(output: torch.Tensor) -> torch.Tensor:
        extra = sum(feature.square().mean() for feature in features)
        features.clear()
        return mean_loss(output) + 0.01 * extra

    return Subject(model, loss=loss, watch=lambda: len(features))


@case("traces")
def backward_hooks_that_count() -> Subject:
    model, calls = stack(), collections.Counter()

    def halve(module: nn.Module, gradients: Any) -> Any:
        calls["calls"] += 1
        return tuple(gradient * (1.0 if calls["calls"] % 3 else 0.5) for gradient in gradients)

    for block in model.blocks:
        block.inner.register_full_backward_pre_hook(halve)
    return Subject(model, watch=lambda: dict(calls))


# ---- modes ---------------------------------------------------------------------------------


class Turning(TorchFunctionMode):
    """Changes the result of every third linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, {"linear": [0]}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is not functional.linear:
            return result
        self.calls += 1
        self.seen["linear"][0] += 1
        return result if self.calls % 3 else result * 0.5


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _again(mode: Any) -> Iterator[None]:
    with mode:
        yield


@case("traces")
def a_mode_that_changes_every_third_layer_around_forward() -> Subject:
    mode = Turning()
    return Subject(stack(), forward_in=lambda: _again(mode), watch=lambda: (mode.calls, mode.seen["linear"][0]))


@case("traces")
def a_mode_that_counts_around_forward() -> Subject:
    mode = Watching()
    return Subject(stack(), forward_in=lambda: _again(mode), watch=lambda: mode.seen["aten.addmm.default"])


@case("traces")
def a_mode_that_forbids_layers_in_backward() -> Subject:
    class Forbidding(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is functional.linear:
                raise RuntimeError("a layer ran in backward")
            return function(*args, **(kwargs or {}))

    return Subject(stack(), backward_in=Forbidding)


@case("traces")
def saved_tensors_may_be_written() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        return y + x.clone().mul_(0.5)

    return Subject(stack(body), step_in=torch.autograd.graph.allow_mutation_on_saved_tensors)


@case("traces")
def a_profiler_around_the_step() -> Subject:
    return Subject(stack(), step_in=lambda: _again(torch.profiler.profile()), steps=3)


@case("traces")
def parameters_given_by_a_functional_call() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        given = {name: parameter * 1.5 for name, parameter in model.named_parameters()}
        loss = mean_loss(torch.func.functional_call(model, given, (batch,)))
        loss.backward()
        return loss

    return Subject(stack(), step=step)


@case("traces")
def a_default_device_between_two_modes() -> Subject:
    @contextlib.contextmanager
    def all_three() -> Iterator[None]:
        with Turning(), torch.device("cpu"), Watching():
            yield

    return Subject(stack(lambda self, x: x * torch.full((WIDTH,), 0.5)), forward_in=all_three)
