"""Shared by the executor's tests: plans made by hand, bitwise comparison of runs, and a check that
nothing is left behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from models import Case, loss_of
from time_limits import comes_true

from memscale.execution.executor import Executor
from memscale.model.layers import find_layers

TECHNIQUES = ("recompute", "recompute_joined", "recompute_segment", "offload_disk", "recompute_offload_input", "mixed")

_REPLAY = (
    "peak_bytes",
    "peak_live_bytes",
    "first_step_peak_bytes",
    "small_peak_bytes",
    "step_ns",
    "compute_ns",
    "recompute_ns",
    "fault_ns",
    "stall_forward_ns",
    "stall_backward_ns",
    "moved_bytes",
    "host_peak_bytes",
    "disk_peak_bytes",
    "peak_node",
)


def plan_json(
    entries: list[tuple[str, int, str]],
    fallback: str = "keep",
    min_bytes: int = 1,
    write_window: int = 1 << 20,
    read_window: int = 1 << 20,
    host_cap: int = 0,
) -> str:
    """A plan document: (name, call, technique) in order of execution; "" is the root's work."""
    replay = {**dict.fromkeys(_REPLAY, 0), "peak_in_backward": False}
    return json.dumps(
        {
            "version": 1,
            "model": "test",
            "signature": "",
            "decision_source": "user_config",
            "skipped": False,
            "over_target": False,
            "assumed": {"outputs_held": False, "gradients_live_in_forward": False},
            "pressure": {
                "need_bytes": 0,
                "allowed_bytes": 0,
                "permille": 0,
                "budget_given": False,
                "comfortable": False,
                "forced": True,
            },
            "predicted": replay,
            "unoptimized": replay,
            "settings": {
                "offload_min_bytes": min_bytes,
                "write_window_bytes": write_window,
                "read_window_bytes": read_window,
                "ceiling_bytes": 0,
                "slab_bytes": 32 << 20,
                "disk_cap_bytes": 1 << 30,
                "host_cap_bytes": host_cap,
            },
            "smallest_budget_bytes": None,
            "fallback": fallback,
            "entries": [
                {
                    "name": name,
                    "node": index,
                    "call": call,
                    "technique": technique,
                    "rule": "forced",
                    "runner_up": technique,
                    "kept_bytes": 0,
                    "saved_bytes": 0,
                    "cost_ns": 0,
                    "runner_up_ns": 0,
                    "runner_up_peak_bytes": 0,
                }
                for index, (name, call, technique) in enumerate(entries)
            ],
        }
    )


def uniform(model: torch.nn.Module, technique: str, root: str | None = None, **settings: Any) -> str:
    """A plan with one technique for every layer; ``"mixed"`` alternates between four. `root` is the technique of the
    root's own work."""
    turns = ["recompute", "offload_disk", "recompute_offload_input", "keep"]
    own = root or ("offload_disk" if technique in ("offload_disk", "mixed") else "keep")
    entries: list[tuple[str, int, str]] = [("", 0, own)]
    for index, (name, _) in enumerate(find_layers(model)):
        entries.append((name, 0, turns[index % len(turns)] if technique == "mixed" else technique))
        entries.append(("", index + 1, own))
    return plan_json(entries, fallback="keep" if technique == "mixed" else technique, **settings)


@contextlib.contextmanager
def executing(model: torch.nn.Module, plan: str, directory: Any) -> Iterator[Executor]:
    """Runs the model under a plan; removes the executor afterwards."""
    executor = Executor(model, disk_dir=str(directory))
    executor.attach()
    try:
        executor.apply(plan)
        yield executor
    finally:
        executor.detach()


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def rng_states() -> tuple[Any, ...]:
    state = numpy.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), devices, random.getstate(), state[1].tolist(), state[2]


def forward(case: Case, model: torch.nn.Module, seed: int) -> Any:
    args, kwargs = case.batch(seed)
    if case.autocast is not None:
        with torch.autocast(next(model.parameters()).device.type, dtype=case.autocast):
            return model(*args, **kwargs)
    return model(*args, **kwargs)


def stored(model: torch.nn.Module) -> None:
    """Waits until every store of forward has ended. Otherwise backward uses the bytes that are still in memory; on a
    busy disk that may be all of them."""
    executor = model.__dict__.get("_memscale_executor")
    if executor is not None:
        assert comes_true(lambda: executor.stats()["storing_bytes"] == 0), executor.stats()


def train(case: Case, model: torch.nn.Module, steps: int = 2) -> list[Any]:
    """Runs the usual loop; returns everything that must not depend on a plan. The last backward starts after all
    stores have ended."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: list[Any] = []
    for step in range(steps):
        seed_everything(100 + step)
        loss = loss_of(forward(case, model, step))
        if step == steps - 1:
            stored(model)
        loss.backward()
        seen.append(loss.detach().clone())
        seen.append(gradients(model))
        seen.append(rng_states())
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, state_of(model)]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {
        name: None if parameter.grad is None else parameter.grad.clone() for name, parameter in model.named_parameters()
    }


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    """Parameters, buffers, and plain attributes of every module."""
    state: dict[str, Any] = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for name, module in model.named_modules():
        for key, value in module.__dict__.items():
            if type(value) in (int, float, bool, str) or (type(value) is list and key == "collected"):
                state[f"{name}.{key}"] = copy.copy(value)
    for name, buffer in model.named_buffers():
        state[name] = buffer.clone()
    return state


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Asserts that two results are equal to the bit, containers included."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor), where
        assert a.dtype == b.dtype and torch.equal(a, b), f"{where} differs by {_difference(a, b)}"
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{index}]")
    else:
        assert a == b, f"{where}: {a} != {b}"


def _difference(a: torch.Tensor, b: torch.Tensor) -> Any:
    return (a.double() - b.double()).abs().max().item() if a.shape == b.shape else (a.shape, b.shape)


def assert_nothing_left(executor: Executor) -> None:
    """Asserts that no frame, slot, extent or transfer is left."""
    gc.collect()

    def left() -> dict[str, int]:
        return {key: value for key, value in executor.stats().items() if value and not isinstance(value, bool)}

    assert comes_true(lambda: not left()), left()  # transfers in flight end first


def twins(make: Callable[[], Case]) -> tuple[Case, torch.nn.Module]:
    """A case and a second model with the same parameters."""
    seed_everything(1)
    case = make()
    return case, copy.deepcopy(case.model)


def hook_tables(model: torch.nn.Module) -> dict[str, Any]:
    """The attributes and hooks that `detach()` must restore."""
    return {
        name: (
            list(module.__dict__),
            {key: list(value) for key, value in module.__dict__.items() if key.endswith("_hooks") and value},
        )
        for name, module in model.named_modules()
    }


def hook_counts(model: torch.nn.Module) -> dict[str, Any]:
    """The number of hooks of each kind on each module; some models register their own."""
    return {
        name: {key: len(hooks) for key, hooks in tables.items()} for name, (_, tables) in hook_tables(model).items()
    }


@pytest.fixture
def few_threads() -> Iterator[None]:
    """Uses one thread, so that every sum has the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def no_hooks_left() -> bool:
    """Whether this thread's stack of saved-tensor hooks is empty."""
    hooks: Any = torch._C._autograd
    if hasattr(hooks, "_top_saved_tensors_default_hooks"):
        return hooks._top_saved_tensors_default_hooks(True) is None
    try:  # torch before 2.8
        hooks._saved_tensors_hooks_disable("some are left")
        return True
    except RuntimeError:
        return False
    finally:
        hooks._saved_tensors_hooks_enable()
