"""bench/gpu reports each missed goal in a line; an infeasible budget doesn't count as missed."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import pytest

_FILE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "gpu" / "offload.py"
_spec = importlib.util.spec_from_file_location("gpu_bench", _FILE)
assert _spec is not None and _spec.loader is not None
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


def run(**changes: Any) -> dict[str, Any]:
    """A run that meets all goals, except for `changes`."""
    met = {"peak_bytes": 100, "reserved_bytes": 120, "predicted_bytes": 100, "counters": {}}
    return {**met, "budget_bytes": 100, "same": True, "step_ratio": 1.0, **changes}


def test_nothing_is_missed_where_all_goals_are_met():
    assert bench.missed_goals({"gpt2": {"unmodified": {"peak_bytes": 200}, "offload": run()}}) == []
    assert bench.missed_goals({"gpt2": {"35%": {"error": "memscale.errors.BudgetInfeasibleError: no plan"}}}) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"same": False}, "gradients differ"),
        ({"peak_bytes": 101}, "over its budget"),
        ({"predicted_bytes": 109}, "9.0% off"),
        ({"predicted_bytes": 104}, "at the median"),
        ({"step_ratio": 1.06}, "1.060 of the unmodified step"),
        ({"error": "RuntimeError: device lost"}, "device lost"),
    ],
)
def test_each_goal_that_is_missed_gets_a_line(changes, line):
    missed = bench.missed_goals({"gpt2": {"offload": run(**changes)}})
    assert any(line in text for text in missed), missed


def test_the_page_says_what_was_missed():
    found = {"gpu": "card", "torch": "2", "copies": {}, "engine": {}, "models": {"gpt2": {"offload": run()}}}
    assert "All goals were met." in bench.page({**found, "missed": []})
    assert "Missed:\n\n- gpt2" in bench.page({**found, "missed": ["gpt2, offload: gradients differ"]})
