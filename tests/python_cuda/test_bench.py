"""bench/gpu on the double: every wrapped variant finishes, keeps to its budget and has the unmodified bits. (Its
messages and its page are tested in tests/python/test_gpu_bench.py. At 35% no plan fits: the reserve is half of it.)"""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch

_FILE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "gpu" / "offload.py"
_spec = importlib.util.spec_from_file_location("gpu_bench", _FILE)
assert _spec is not None and _spec.loader is not None
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


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
