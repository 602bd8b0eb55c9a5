"""Forks and signals in the middle of a step, while transfers are in flight. Workers of a loader are forked, or a signal
ends the process: no gradient is wrong, nothing hangs, and nothing is left."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from execute_support import (
    assert_nothing_left,
    assert_same,
    executing,
    few_threads,  # noqa: F401
    gradients,
    seed_everything,
    stored,
    uniform,
)
from process_support import environment_of_tests
from time_limits import HANG_SECONDS

pytestmark = pytest.mark.usefixtures("few_threads")

# On a busy machine all writes may have ended before the step continues. A test then repeats the run.
TRIES = 50


def _load_with_workers() -> None:
    """Loads all batches from a forked worker; a separate generator leaves the run's random state alone."""
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4)),
        batch_size=4,
        num_workers=1,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(0),
        timeout=HANG_SECONDS,
    )
    rows = [batch for (batch,) in loader]
    assert torch.equal(torch.cat(rows), torch.arange(64.0).reshape(16, 4))


def _steps(model: torch.nn.Module, in_forward: Callable[[], None]) -> list[Any]:
    """Runs three steps over storages of 8 MB; calls `in_forward` in the middle of each forward."""
    hook = model[1].register_forward_hook(lambda *_: in_forward())
    rows = torch.randn(4096, 512, generator=torch.Generator().manual_seed(1))
    seen: list[Any] = []
    for _ in range(3):
        model.zero_grad()
        loss = model(rows).square().mean()
        stored(model)
        loss.backward()
        seen += [loss.detach().clone(), gradients(model)]
    hook.remove()
    return seen


@pytest.mark.parametrize("technique", ["offload_disk", "mixed"])
def test_loader_workers_are_forked_while_transfers_are_under_way(technique, tmp_path):
    seed_everything(1)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Sigmoid()) for _ in range(4))
    )
    expected = _steps(copy.deepcopy(model), lambda: None)
    in_flight = []
    with executing(model, uniform(model, technique, write_window=1 << 30), tmp_path) as executor:

        def fork_now() -> None:
            in_flight.append(executor.stats()["storing_bytes"])
            _load_with_workers()

        for _ in range(TRIES):
            assert_same(expected, _steps(model, fork_now))
            if max(in_flight) > 0:
                break
        assert executor.counters()["fetched_bytes"] > 0
        assert executor.counters()["tier_fallbacks"] == 0
        assert_nothing_left(executor)
    assert max(in_flight) > 0
    assert os.listdir(tmp_path) == []


# Reports that transfers of 8 MB storages are in flight, and continues to train until a signal ends it.
_PROGRAM = """
    import signal, sys
    import torch
    from execute_support import executing, uniform

    def leave(*_):
        print("in flight:", executor.stats()["storing_bytes"], file=sys.stderr)
        raise SystemExit(7)

    torch.set_num_threads(1)
    if sys.argv[2] == "handler":
        signal.signal(signal.SIGTERM, leave)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Sigmoid()) for _ in range(4))
    )
    rows = torch.randn(4096, 512)
    with executing(model, uniform(model, "offload_disk", write_window=1 << 30), sys.argv[1]) as executor:
        def tell(*_):
            if executor.stats()["storing_bytes"] > 0:
                hook.remove()
                print("under way", flush=True)
                if sys.argv[2] == "handler":
                    signal.raise_signal(signal.SIGTERM)  # with bytes in flight, mostly

        hook = model[3].register_forward_hook(tell)
        for _ in range(100000):
            model(rows).square().mean().backward()
"""


def _end_in_the_middle(reaction: str, status: int, folder: Path) -> int | None:
    """The bytes in flight when the program's own handler ran; None if it has no handler."""
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(folder), reaction],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_of_tests(),
    )
    try:
        assert program.stdout is not None and program.stdout.readline() == "under way\n"
        if reaction == "default":
            program.send_signal(signal.SIGTERM)
        _, errors = program.communicate(timeout=HANG_SECONDS)
    finally:
        program.kill()
    assert program.returncode == status, errors
    assert os.listdir(folder) == []
    return None if reaction == "default" else int(errors.split("in flight:")[1].split()[0])


@pytest.mark.parametrize(("reaction", "status"), [("default", -signal.SIGTERM), ("handler", 7)])
def test_a_signal_to_end_in_the_middle_of_steps_leaves_nothing(reaction, status, tmp_path):
    assert any(_end_in_the_middle(reaction, status, tmp_path) != 0 for _ in range(TRIES))
