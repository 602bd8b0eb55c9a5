"""bench/gpu reports each missed goal in a line; an infeasible budget doesn't count as missed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from bench_support import load_bench

bench = load_bench("gpu/offload.py")
compiled = load_bench("compiled.py")


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
        "compiled": {},
    }
    assert "All goals were met." in bench.page({**found, "missed": []})
    assert "Missed:\n\n- gpt2" in bench.page({**found, "missed": ["gpt2, offload: gradients differ"]})


def compiled_rows(**changes: Any) -> dict[str, Any]:
    """Rows that meet all goals, except for `changes` in those of memscale."""

    def row(**figures: Any) -> dict[str, Any]:
        ratios = dict.fromkeys(("step", "cpu", "first", "first_cpu"), 1.0)
        return {"ratios": ratios, "same": True, "peak": 100, "first_peak": 100, "predicted": None, **figures}

    def ours(**figures: Any) -> dict[str, Any]:
        made = row(**figures)
        changed = changes.get("ratios", {})
        return {**made, **changes, "ratios": {**made["ratios"], **changed}}

    rows = {compiled.PLAIN: row(), compiled.NOTHING_TO_DO: ours()}
    for share in compiled.SHARES:
        rows[f"activation_memory_budget {share}"] = row(same=False)
        rows[f"memscale, the peak of {share}"] = ours(budget=100)
    return rows


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"same": False}, "memscale, nothing to do: losses or gradients differ"),
        ({"ratios": {"step": 1.03}}, "memscale, nothing to do: 1.03 times the step"),
        ({"ratios": {"step": 1.01}}, "memscale, the peak of 0.5: 1.01 times the step of torch's own"),
        ({"ratios": {"first": 1.16}}, "memscale, the peak of 0.25: 1.16 times the first step"),
        ({"first_peak": 101}, "memscale, the peak of 0.75: over its budget"),
        ({"error": "BudgetInfeasibleError: no plan"}, "memscale, the peak of 0.25: BudgetInfeasibleError: no plan"),
    ],
)
def test_each_goal_that_compiled_layers_miss_gets_a_line(changes, line):
    missed = compiled.missed_goals(compiled_rows(**changes))
    assert line in missed, missed


def test_a_step_over_its_budget_counts_in_every_round(monkeypatch):
    kept, over = compiled_rows(), compiled_rows(first_peak=101)
    for order in ([kept, over], [over, kept]):
        rounds = iter(copy.deepcopy(order))
        monkeypatch.setattr(compiled, "_measure_once", lambda arguments, steps, rounds=rounds: next(rounds))
        missed = compiled.missed_goals(compiled.measure([], 1, 2))
        assert missed == [f"memscale, the peak of {share}: over its budget" for share in compiled.SHARES]


def test_compiled_layers_that_meet_all_goals_miss_none():
    rows = compiled_rows()
    assert compiled.missed_goals(rows) == []
    assert len(compiled.table(rows)) == 2 + len(rows)
    assert "| compiled | - | 0 | - | 1.00 |" in compiled.table(rows)[2]
