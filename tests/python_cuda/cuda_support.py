"""Shared by the tests of the CUDA path: the models of tests/python on a device, and schedules."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import models
import torch
import torch_double
from execute_support import twins

# All but "own_random", which multiplies device tensors with numbers drawn on the host.
MODELS = {name: make for name, make in models.MODELS.items() if name != "own_random"}

# `make test-cuda SCHEDULES=1000` sets how many schedules the sweep tries. Its twelve tests share them; each seed gives
# two.
SWEEP_TESTS = 12
SEEDS = max(1, -(-int(os.environ.get("SCHEDULES") or "48") // (2 * SWEEP_TESTS)))


def to_device(value: Any, device: str = "cuda") -> Any:
    """The value, with all tensors in it moved to the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(item, device) for item in value)
    return value


def case_on(name: str, device: str = "cuda") -> models.Case:
    """A case of tests/python, with its model and batches on the device."""
    case = MODELS[name]()

    def batch(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = case.batch(seed)
        if name == "packed_lstm":  # torch wants the lengths on the host
            return (args[0].to(device), *args[1:]), kwargs
        return to_device(args, device), to_device(kwargs, device)

    return dataclasses.replace(case, model=case.model.to(device), batch=batch)


def twins_on(name: str, device: str = "cuda") -> tuple[models.Case, torch.nn.Module]:
    """A case on the device and a second model with the same parameters."""
    return twins(lambda: case_on(name, device))


@contextmanager
def scheduled(seed: int) -> Iterator[None]:
    """Draws a schedule from the seed: how long work takes, and how far the host may run ahead. Raises at the end if any
    work was out of order."""
    chance = random.Random(seed)
    torch_double.schedule(seed, chance.choice([0, 20_000, 100_000, 500_000]), chance.choice([0, 0, 1, 3, 30]))
    yield
    torch.cuda.synchronize()
    count, first = torch_double.violations()
    torch_double.reset()
    assert count == 0, f"seed {seed}: {first}"


def peak_of(step: Callable[[], Any], device: int = 0) -> int:
    """The peak of allocated bytes during a call, as torch reports it."""
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return torch.cuda.max_memory_allocated(device)
