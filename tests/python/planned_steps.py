"""Predicts and measures the peak of a step under a plan whose options a test chooses.

hostmem counts the allocations of a whole process, so `rows_of` runs a test's script in a new one. The script calls
`start` before it makes a model, and `compare` for each plan.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from forked_python import run_python
from process_support import environment_of_tests

if TYPE_CHECKING:
    import memscale


def rows_of(script: str) -> list[list[int]]:
    """Runs `script` in a new process; returns the numbers that it printed, a list for each line."""
    environment = environment_of_tests(HF_HUB_OFFLINE="1")
    done = run_python("-c", script, check=True, env=environment)
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def start() -> None:
    """Starts counting storages of 128 KiB and more; must be called before the first tensor is made."""
    import torch
    import transformers

    from memscale import _core

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    _core.hostmem_install()


def _step(model: Any, ids: Any, hold: bool) -> None:
    output = model(input_ids=ids, labels=ids)
    loss = output.loss
    if not hold:
        del output
    loss.backward()
    model.zero_grad()


def compare(
    model: Any,
    ids: Any,
    config: memscale.Config,
    *,
    technique: str = "keep",
    options: tuple[str, ...] = (),
    hold: bool = False,
    precision: AbstractContextManager[Any] | None = None,
) -> tuple[int, int]:
    """The predicted and the measured peak of a step in bytes, without parameters, buffers and batch.

    Every layer uses `technique`, the step uses exactly `options`, and hostmem caches nothing.

    Args:
        model: takes `input_ids` and `labels`, both `ids`, and returns an output with a `loss`.
        hold: whether the loop holds the output until backward has ended.
        precision: a context for the trace and the steps, such as autocast.
    """
    from graph_support import observe_loop

    from memscale import _core
    from memscale.execution.executor import Executor
    from memscale.session.session import Session
    from memscale.tracing.profiler import MemoryProfiler

    with precision or nullcontext():
        graph = json.loads(MemoryProfiler(config).trace(model.train(), (), {"input_ids": ids, "labels": ids}))
        observe_loop(graph, outputs_held=hold)
        text = json.dumps(graph)
        session = Session(model, config)
        plan = json.loads(_core.plan_uniform(text, session.hardware_json, session.config_json, technique))
        plan["settings"]["ceiling_bytes"] = 0
        for option in plan["step_options"]:
            option["chosen"] = option["name"] in options
        replay = _core.plan_simulate(text, session.hardware_json, json.dumps(plan))
        executor = Executor(model, config)
        executor.attach()
        executor.apply(json.dumps(plan))
        for _ in range(2):
            before = _core.hostmem_stats()["live_bytes"]
            _core.hostmem_reset_peak()
            _step(model, ids, hold)
        executor.detach()
    residents = graph["residents"]
    fixed = residents["parameter_bytes"] + residents["buffer_bytes"] + residents["batch_bytes"]
    predicted = replay["peak_live_bytes"] - fixed - plan["predicted"]["small_peak_bytes"]
    return predicted, _core.hostmem_stats()["peak_live_bytes"] - before
