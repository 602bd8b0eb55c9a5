"""Plans that use one technique for every layer that admits it, made from a trace, and a check of their
simulated peak."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from execute_support import executing, twins
from graph_support import measured_peak, observe_loop, trace
from models import Case, loss_of

from memscale import Config, _core
from memscale.config import OptimizationMode

HARDWARE: dict[str, Any] = {
    "version": 1,
    "cpu": {
        "name": "test",
        "usable_cpus": 2,
        "isa": [],
        "matmul_flops_per_s": 10**11,
        "stream_bytes_per_s": 10**10,
        "fault_bytes_per_s": 10**10,
        "checksum_bytes_per_s": 10**10,
    },
    "ram": {
        "total_bytes": 10**10,
        "available_bytes": 10**10,
        "limit_bytes": None,
        "memlock_bytes": 0,
        "limit_source": "",
    },
    "disk": {
        "dir": "/tmp",
        "filesystem": "ext4",
        "is_memory": False,
        "direct_io": True,
        "free_bytes": 10**11,
        "write_bytes_per_s": 10**9,
        "read_bytes_per_s": 10**9,
        "refusal": "",
    },
    "process": {"baseline_bytes": 0, "scratch_bytes": 0},
    "gpus": [],
    "device": -1,
    "time_scale_permille": 1000,
}


def planned(case: Case, technique: str) -> tuple[dict[str, Any], str]:
    """Traces a model; returns its graph, and a plan that uses the technique for every layer that admits it."""
    args, kwargs = case.batch(0)
    graph = trace(case.model, *args, **kwargs)
    observe_loop(graph)
    config = Config(mode=OptimizationMode.AGGRESSIVE, force_optimize=True)
    documents = json.dumps(graph), json.dumps(HARDWARE), config.to_json()
    return graph, _core.plan_uniform(*documents, technique)


def assert_peak_as_predicted(make: Any, technique: str, directory: pathlib.Path) -> None:
    """Asserts that the predicted peak is within 3% of the measured peak of a step with this technique."""
    case, _ = twins(make)
    graph, plan = planned(case, technique)
    replay = _core.plan_simulate(json.dumps(graph), json.dumps(HARDWARE), plan)
    residents = graph["residents"]
    fixed = residents["parameter_bytes"] + residents["buffer_bytes"] + residents["batch_bytes"]
    args, kwargs = case.batch(0)
    with executing(case.model, plan, directory):
        measured = measured_peak(case.model, args, kwargs, loss_of)
    predicted = replay["peak_live_bytes"] - fixed
    # The simulator counts the peak of small tensors throughout the step, and the last step's outputs beside it.
    outputs = sum(storage["bytes"] for storage in graph["storages"] if storage["role"] == "output")
    assert 0.97 * measured <= predicted <= 1.03 * measured + outputs
