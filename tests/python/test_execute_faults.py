"""Any call of the library may fail, at any time: the training step then gives the unmodified step's gradients or an
error. The next step is right, and nothing is left behind."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from execute_support import (
    assert_nothing_left,
    assert_same,
    few_threads,  # noqa: F401
    gradients,
    seed_everything,
    stored,
    uniform,
)

from memscale import _core
from memscale.errors import MemScaleError
from memscale.execution.executor import Executor

pytestmark = pytest.mark.usefixtures("few_threads")

# For each kind of fault: the errno of the failed call, and whether a step may raise an error because of it.
KINDS = {
    "write": (errno.EIO, False),
    "read": (errno.EIO, True),
    "short": (0, False),
    "flip": (0, True),
    "map": (errno.ENOMEM, True),
    "open": (errno.ENOSPC, True),
    "alloc": (errno.ENOMEM, True),
    "thread": (errno.EAGAIN, True),
}


def _model() -> torch.nn.Module:
    seed_everything(1)
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1)) for _ in range(3))
    )


def _step(model: torch.nn.Module) -> list[Any]:
    model.zero_grad()
    torch.manual_seed(2)
    loss = model(torch.randn(300, 64)).square().mean()
    stored(model)
    loss.backward()
    return [loss.detach().clone(), gradients(model)]


def _is_right(executor: Executor, model: torch.nn.Module, plan: str, expected: list[Any]) -> bool:
    """Runs two steps under a fault and compares them; False if one raised an error."""
    try:
        executor.apply(plan)
        for _ in range(2):
            assert_same(expected, _step(model))
    except (MemScaleError, MemoryError):
        return False
    return True


def _one(
    kind: str, nth: int, model: torch.nn.Module, plan: str, folder: Path, expected: list[Any]
) -> tuple[bool, bool]:
    """Returns whether the nth call failed, and whether a step raised an error."""
    executor = Executor(model, disk_dir=str(folder))
    executor.attach()
    try:
        _core.fault_arm(kind, nth, KINDS[kind][0])
        is_right = _is_right(executor, model, plan, expected)
        has_struck = _core.fault_passed(kind) >= nth
        _core.fault_disarm_all()
        executor.apply(plan)
        assert_same(expected, _step(model))
        assert_nothing_left(executor)
    finally:
        _core.fault_disarm_all()
        executor.detach()
    assert os.listdir(folder) == []
    return has_struck, not is_right


@pytest.mark.parametrize("technique", ["offload_disk", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_whichever_call_fails_a_step_is_right_or_refused(kind, technique, tmp_path):
    original = _model()
    expected = _step(copy.deepcopy(original))
    struck = refused = 0
    nth = 1
    while True:
        model = copy.deepcopy(original)
        has_struck, is_refused = _one(kind, nth, model, uniform(model, technique), tmp_path, expected)
        assert has_struck or not is_refused
        if not has_struck:
            break
        struck += 1
        refused += is_refused
        nth += 1 + nth // 10  # all of the first ten, then fewer
    assert struck > (0 if kind in ("thread", "open", "map") else 5)
    # A failed store costs memory, not a step. Only the first write, which tests the disk, may cause an error.
    assert KINDS[kind][1] or refused <= (1 if kind == "write" else 0)
