"""bench/gpu on the double: every wrapped variant finishes, keeps to its budget and has the unmodified bits. (Its
messages and its page are tested in tests/python/test_gpu_bench.py. At 35% no plan fits: the reserve is half of it.)"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import pytest
import torch
from bench_support import load_bench

bench = load_bench("gpu/offload.py")
compiled = load_bench("compiled.py")


@pytest.mark.double
def test_every_wrapped_variant_finishes_within_its_goals(monkeypatch):
    told = []
    monkeypatch.setattr(bench, "DIGEST_PIECE", bench.DIGEST_PIECE)  # which small runs set
    try:
        bench.runs_of("gpt2", True, ["unmodified again", *bench.WRAPPED], told.append)
    finally:
        torch.use_deterministic_algorithms(False)
    runs = bench.compared(told)
    assert runs.keys() >= bench.WRAPPED.keys()
    assert bench.misses_of("gpt2", runs) == []
    for variant in bench.WRAPPED.keys() - {"35%"}:
        assert runs[variant].get("same"), runs[variant]
    assert runs["offload"]["counters"]["offloaded_bytes"] > 0
    assert runs["recompute"]["counters"]["recomputed_layers"] > 0


@pytest.mark.double
def test_full_fine_tuning_in_bf16_has_the_bits_of_fp32_state_on_the_card(monkeypatch):
    told = []
    monkeypatch.setattr(bench, "DIGEST_PIECE", bench.DIGEST_PIECE)
    monkeypatch.setitem(bench.FULL_TUNING, "24 GB", {**bench.FULL_TUNING["24 GB"], "budget_bytes": 160 * 10**6})
    try:
        bench.runs_of(bench.models.BF16, True, [], told.append)
    finally:
        torch.use_deterministic_algorithms(False)
    runs = bench.compared(told)
    assert runs.keys() == {"unmodified", *bench.OF_LARGEST[bench.models.BF16]}
    assert bench.misses_of(bench.models.BF16, runs) == []
    assert all(run.get("same", True) for run in runs.values())


@pytest.mark.double
def test_compiled_layers_are_measured_on_the_card_with_equal_bits():
    def row(budget: float) -> list[dict[str, Any]]:
        sizes = {"threads": 1, "backend": "aot_eager", **bench.SMALL_COMPILED_SIZES}
        steps = compiled.training(argparse.Namespace(device="cuda", share=0.0, budget=budget, **sizes))
        return list(itertools.islice(steps, 4))

    try:
        plain, wrapped = row(0.0), row(compiled._UNLIMITED_BYTES)
        budget = 0.9 * max(step["peak"] for step in plain)
        limited = row(budget)
    finally:
        torch.use_deterministic_algorithms(False)
    assert plain[0]["predicted"] is None and wrapped[0]["predicted"] is not None
    digests = [[step["digest"] for step in steps] for steps in (plain, wrapped, limited)]
    assert digests[0] == digests[1] == digests[2]
    assert max(step["peak"] for step in limited) <= budget
