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
    met = {"peak_bytes": 100, "settled_peak_bytes": 100, "reserved_bytes": 120, "predicted_bytes": 100, "counters": {}}
    return {**met, "budget_bytes": 100, "same": True, "step_ratio": 1.0, **changes}


def test_nothing_is_missed_where_all_goals_are_met():
    assert bench.missed_goals({"gpt2": {"unmodified": {"peak_bytes": 200}, "offload": run()}}) == []
    assert bench.missed_goals({"gpt2": {"TRL offload": {"error": "ModuleNotFoundError: trl"}, "50%": run()}}) == []
    unequal = {"unmodified again": {"same": False}, "offload": run(same=False)}  # two plain runs differ
    assert bench.missed_goals({"gpt2": unequal}) == []
    assert bench.missed_goals({"gpt2": {"35%": {"error": "memscale.errors.BudgetInfeasibleError: no plan"}}}) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"same": False}, "gradients differ"),
        ({"peak_bytes": 101}, "over its budget"),
        ({"predicted_bytes": 109}, "9.0% off"),
        ({"predicted_bytes": 104}, "at the median"),
        ({"step_ratio": 1.06}, "1.060 times the unmodified step"),
        ({"error": "RuntimeError: device lost"}, "device lost"),
    ],
)
def test_each_goal_that_is_missed_gets_a_line(changes, line):
    missed = bench.missed_goals({"gpt2-large": {"offload": run(**changes)}})
    assert any(line in text for text in missed), missed


def test_a_digest_tells_every_bit_and_place_of_the_gradients():
    import torch

    def digest(change: Any = lambda gradients: None, dtype: torch.dtype = torch.float32) -> str:
        model = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Linear(30, 30)).to(dtype)
        draw = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw).to(dtype)
        change([parameter.grad for parameter in model.parameters()])
        return bench.digest_of([parameter.grad for parameter in model.parameters()])

    def flip_last_bit(gradients: Any) -> None:
        gradients[2].view(torch.int32)[29, 29] ^= 1

    def swap_two(gradients: Any) -> None:
        gradients[0][0, :2] = gradients[0][0, :2].flip(0)

    def swap_layers(gradients: Any) -> None:
        first = gradients[0].clone()
        gradients[0].copy_(gradients[2])
        gradients[2].copy_(first)

    bench.DIGEST_PIECE = 256
    assert digest() == digest() and len(digest()) == 16
    found = {digest(), *(digest(change) for change in (flip_last_bit, swap_two, swap_layers)), digest(dtype=torch.half)}
    assert len(found) == 5


@pytest.mark.parametrize(
    ("copies", "kernels", "share"),
    [
        ([], [(0, 1)], None),
        ([(0, 4)], [], 0.0),
        ([(0, 4)], [(1, 2), (3, 6)], 0.5),
        ([(0, 2), (2, 4), (8, 12)], [(3, 9)], 0.25),
        ([(4, 5), (0, 4), (1, 2)], [(-1, 1), (0, 2)], 0.4),
    ],
)
def test_the_share_of_copies_beside_kernels(copies, kernels, share):
    assert bench.share_beside(copies, kernels) == share


def test_the_page_says_what_was_missed():
    found = {
        "gpu": "card",
        "torch": "2",
        "transformers": "5",
        "memscale": "0",
        "copies": {},
        "engine": {},
        "models": {"gpt2": {"offload": run()}},
    }
    assert "All goals were met." in bench.page({**found, "missed": []})
    assert "Missed:\n\n- gpt2" in bench.page({**found, "missed": ["gpt2, offload: gradients differ"]})
